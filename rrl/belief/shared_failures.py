"""Which failures come whatever is in force, told by the order in which they come. Pure logic.

Clients may send for a while what cannot be served. Then many requests begin to fail under a configuration
that had served without, and many fail under the next one, too.

| many requests fail | then |
|---|---|
| under one configuration, for some intervals in a row | it may be to blame |
| under a second one in a row, and one of both had served | the lesser share is shared: nobody is to blame |
| after that | as many as before are shared, and more up to `ALIKE` times; what is beyond is blamed |

What is blamed after all of the first two is what is beyond `ALIKE` times the lesser. An interval in which few
requests fail ends it all.
"""

from __future__ import annotations

from rrl.measurement import Measurement

FEW_FAILURES = 3  # requests that may fail in any interval
FEW_SHARE = 0.01  # of the answered requests, likewise
ALIKE = 2.0  # times another share


class SharedFailures:
    """Remembers the intervals in a row in which many requests failed."""

    def __init__(self) -> None:
        self.share = 0.0  # that fails now whatever is in force
        self._served: set[int] = set()  # the configurations of intervals in which few failed
        self._failed: dict[int, float] = {}  # the last share under each, of the intervals in a row

    def learn(self, number: int, measurement: Measurement) -> dict[int, float]:
        """The share that is blamed on this configuration, and on those before once failures are shared."""
        share = measurement.failure_share
        if measurement.failures <= max(FEW_FAILURES, FEW_SHARE * measurement.answered):
            self._served.add(number)
            self._failed, self.share = {}, 0.0
            return {number: share}
        self._failed[number] = share
        if self.share:
            self.share = share if share <= ALIKE * self.share else self.share
            return {number: self._blamed(share)}
        if len(self._failed) == 1 or not self._failed.keys() & self._served:
            return {number: share}
        self.share = min(self._failed.values())
        return {each: self._blamed(its) for each, its in self._failed.items()}

    def _blamed(self, share: float) -> float:
        return share - self.share if share > ALIKE * self.share else 0.0
