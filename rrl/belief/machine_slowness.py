"""How slow the machine was in each interval remembered, and how slow it is expected to be."""

from __future__ import annotations

import math

import numpy as np

from rrl.belief import drift
from rrl.belief.load.forecast import MEMORY

# The share of the present drift that is left on average over the intervals for which a choice must pay.
PAYS_FOR = 0.3


class MachineSlowness:
    """Drift and scatter of each interval (`drift`), their usual scale, and how unusual each was."""

    def __init__(self) -> None:
        self.scale = drift.SCALES[1]
        self._shocks: dict[int, tuple[float, float]] = {}  # k, k' by the interval's time
        self._effects: dict[int, tuple[float, float]] = {}  # d, s by the interval's time

    def log_slowness(self, time: int) -> float:
        """ln of how many times as long everything took in this interval, over what is usual."""
        return sum(self._effects_of(time))

    def log_slowness_ahead(self, time: int) -> float:
        """The same as it is expected of the interval after this one."""
        return drift.persisting() * self._effects_of(time)[0]

    def log_slowness_to_come(self, time: int) -> float:
        """The same on average over the intervals after it for which a choice must pay."""
        return PAYS_FOR * self._effects_of(time)[0]

    @property
    def remembered(self) -> drift.Slowness:
        """How slow the machine was in the last intervals; of those forgotten, as it was told last."""
        return drift.Slowness(
            {time: sum(both) for time, both in self._effects.items()}, math.hypot(*self.scale)
        )

    @property
    def log_slowness_told(self) -> dict[int, float]:
        """ln, in the intervals that were learned from last, by their time."""
        return {time: sum(self._effects[time]) for time in self._shocks}

    def shocks(self, times: np.ndarray) -> drift.Shocks:
        """Of the intervals of these times; 1 of those that are new."""
        pairs = np.array([self._shocks.get(int(time), (1.0, 1.0)) for time in times])
        return drift.Shocks(pairs[:, 0], pairs[:, 1])

    def learn(self, rows: drift.Rows, times: np.ndarray, shocks: drift.Shocks, expected: np.ndarray) -> None:
        """Takes what the intervals shared from their rows, given the (R,) ln S expected of them."""
        effects, again = drift.effects(rows, times, self.scale, shocks, expected)
        numbers = [int(time) for time in times]
        kept = {time: both for time, both in self._effects.items() if time > numbers[-1] - MEMORY}
        self._effects = kept | dict(
            zip(numbers, zip(effects.drift, effects.scatter, strict=True), strict=True)
        )
        self._shocks = dict(zip(numbers, zip(again.drift, again.scatter, strict=True), strict=True))

    def _effects_of(self, time: int) -> tuple[float, float]:
        """d and s; of an interval that told nothing, what is left of the last drift that was told."""
        if time in self._effects or not self._effects:
            return self._effects.get(time, (0.0, 0.0))
        last = max(self._effects)
        return drift.persisting(time - last) * self._effects[last][0], 0.0
