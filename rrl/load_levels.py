"""Load levels: the discretised arrival rate, RRL's state s (section 4.1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LoadLevels:
    """Geometric levels: level n spans rates within a factor sqrt(ratio) of centre_per_s * ratio**n.

    Poisson noise over an interval of 100 requests is 10%, so a ratio below about 1.3 tells noise, not load.
    """

    ratio: float = 1.5  # between the centres of neighbouring levels
    centre_per_s: float = 1.0  # of level 0: where a usual load lies on no boundary between two

    def __post_init__(self) -> None:
        if self.ratio <= 1.0:
            raise ValueError(f"the ratio between load levels must exceed 1, got {self.ratio:g}")
        if not 0 < self.centre_per_s < math.inf:
            raise ValueError(f"the centre of a load level must be a positive rate, got {self.centre_per_s:g}")

    def level(self, arrival_rate_per_s: float) -> int:
        """The level of a rate; every rate up to 0.01/s falls in the lowest."""
        return round(math.log(max(arrival_rate_per_s, 0.01) / self.centre_per_s) / math.log(self.ratio))

    def rate_per_s(self, level: int) -> float:
        """The centre of a level."""
        return float(self.centre_per_s * self.ratio**level)


def newest_of_each(measured: Sequence[tuple[int, float]], each: int) -> list[int]:
    """The newest few intervals of every configuration at every load level, by index, newest first.

    `measured` has the number of the configuration and the arrival rate of each interval, oldest first.
    """
    levels = LoadLevels()
    told: Counter[tuple[int, int]] = Counter()
    newest = []
    for i in reversed(range(len(measured))):
        number, rate_per_s = measured[i]
        place = number, levels.level(rate_per_s)
        told[place] += 1
        if told[place] <= each:
            newest.append(i)
    return newest
