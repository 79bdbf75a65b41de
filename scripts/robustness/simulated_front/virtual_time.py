"""An event loop whose time is simulated: it jumps to the next timer, and its selector never waits."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable

STALL_SHARE = 0.08  # of the jumps, as if the loop had been busy when the timer was due
MEAN_STALL_S = 0.004


class NothingLeftToHappen(Exception):
    """Somebody waits, but no timer runs and no process will say anything: a hang."""


class EndlessSimulation(Exception):
    """The simulation does not come to its end in the steps that it may take."""


class SimulationStopped(Exception):
    """Something does not hold, so the rest is of no interest."""


class VirtualSelector(selectors.EpollSelector):
    """Tells what is ready in a drawn order; where nothing is, it is later by the time that it may wait."""

    def __init__(self, draw: random.Random, max_steps: int) -> None:
        super().__init__()
        self._draw, self._max_steps = draw, max_steps
        self._numbers: dict[int, int] = {}  # of descriptors, whose values are not those of another run
        self._registered = 0
        self.now_s = 0.0
        self.steps = 0
        self.stops = False

    def register(self, fileobj, events, data=None):  # type: ignore[no-untyped-def]
        self._registered += 1
        key = super().register(fileobj, events, data)
        self._numbers[key.fd] = self._registered
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.steps += 1
        if self.stops:
            raise SimulationStopped
        if self.steps > self._max_steps:
            raise EndlessSimulation(f"it has not ended after {self._max_steps} steps")
        ready = super().select(0)
        if ready:
            if len(ready) > 1:
                ready.sort(key=lambda event: self._numbers[event[0].fd])
                self._draw.shuffle(ready)
            return ready
        if timeout is None:
            raise NothingLeftToHappen("somebody waits for what will never happen")
        if timeout > 0:
            self.now_s += timeout
            if self._draw.random() < STALL_SHARE:
                self.now_s += self._draw.expovariate(1 / MEAN_STALL_S)
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self, draw: random.Random, max_steps: int) -> None:
        self.selector = VirtualSelector(draw, max_steps)
        super().__init__(self.selector)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.selector.now_s

    def now_ns(self) -> int:
        return round(self.selector.now_s * 1e9)

    def stop_here(self) -> None:
        """Ends the simulation before the next step."""
        self.selector.stops = True

    @property
    def steps(self) -> int:
        """How often it has looked for what is ready: the simulation's own order of things."""
        return self.selector.steps


def call_later(delay_s: float, call: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, call, *arguments)
