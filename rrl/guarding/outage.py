"""Whether it is the target that fails all requests, or the configuration in force. Pure logic.

| all requests of an interval fail | then |
|---|---|
| under a configuration that never served | it is to blame |
| under one that served, while others did too | in doubt: the next answers under another tell |
| under that other one, too, or where no other ever served | the target is down: nobody is to blame |

What failed first and never served may have brought the target down, so it stays to blame. A target that
hangs under the other one is down, too. From the first failures until a request is answered, few are enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rrl.measurement import Measurement

DOWN = "all requests fail, whatever is in force"
IN_DOUBT = "all requests failed under what had served: another configuration shows whether it is to blame"
TEXTS = (DOWN, IN_DOUBT)


@dataclass
class Outage:
    """What is known of the intervals in a row in which all requests failed."""

    _served: set[int] = field(default_factory=set)  # the configurations that answered requests
    _failed_under: set[int] = field(default_factory=set)  # since one served last
    _in_doubt: dict[int, Measurement] = field(default_factory=dict)

    @property
    def suspected(self) -> bool:
        """True from an interval in which all requests failed until a request is answered."""
        return bool(self._failed_under)

    @property
    def in_doubt(self) -> frozenset[int]:
        """Configurations that no rollback may return to now."""
        return frozenset(self._in_doubt)

    def all_failed(self, number: int, measurement: Measurement, is_to_blame: bool) -> str:
        """Takes in such an interval. One of `TEXTS` if it says nothing of its configuration, else empty.

        `is_to_blame`: all requests failed under it before, when another served.
        """
        self._failed_under.add(number)
        only_one = self._served == {number}
        if (len(self._failed_under) > 1 or only_one) and self._failed_under & self._served:
            self._in_doubt.clear()
            return DOWN
        if number not in self._served or is_to_blame:
            return ""
        self._in_doubt[number] = measurement
        return IN_DOUBT

    def served(self, number: int) -> dict[int, Measurement]:
        """Takes in one in which requests were answered. Returns what is to blame, and for which interval."""
        self._served.add(number)
        self._failed_under.clear()
        to_blame = {each: seen for each, seen in self._in_doubt.items() if each != number}
        self._in_doubt.clear()
        return to_blame

    def hung(self, number: int) -> None:
        """Takes in one in which requests queued up, and none was answered."""
        if number in self._served:
            self._in_doubt = {each: seen for each, seen in self._in_doubt.items() if each == number}
