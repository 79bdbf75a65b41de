"""Load levels: the discretised arrival rate, RRL's state s (section 4.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LoadLevels:
    """Geometric levels: level n spans rates within a factor sqrt(ratio) of ratio**n per second.

    Poisson noise over an interval of 100 requests is 10%, so a ratio below about 1.3 tells noise, not load.
    """

    ratio: float = 1.5  # between the centres of neighbouring levels

    def __post_init__(self) -> None:
        if self.ratio <= 1.0:
            raise ValueError(f"the ratio between load levels must exceed 1, got {self.ratio:g}")

    def level(self, arrival_rate_per_s: float) -> int:
        """The level of a rate; every rate up to 0.01/s falls in the lowest."""
        return round(math.log(max(arrival_rate_per_s, 0.01)) / math.log(self.ratio))

    def rate_per_s(self, level: int) -> float:
        """The centre of a level."""
        return float(self.ratio**level)
