"""How a person stops a run: Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rrl.tuning import Stopped


class Stop:
    """Set by the first SIGINT or SIGTERM; the second is Python's own."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._event = threading.Event()
        self._say = say

    def is_set(self) -> bool:
        return self._event.is_set()

    def sleep(self, duration_s: float) -> None:
        """Sleeps, but for a stop."""
        if self._event.wait(duration_s):
            raise Stopped

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._set) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _set(self, number: int, frame: object) -> None:
        self._event.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._say("stopping: putting the best configuration known to be safe in force")
