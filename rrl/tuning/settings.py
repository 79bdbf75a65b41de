"""How long a run is: its intervals of the start, of the search and of the validation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rrl.tuning.set_by_others import OnForeignChange

BASELINE_WITHOUT_VALIDATION = 3  # intervals of the start where it is not measured again


@dataclass(frozen=True)
class TuningSettings:
    intervals: int = 50  # decisions to take
    # Intervals of the start, first of all; fewer where it is overloaded. One is enough where the validation
    # measures it again, since users bear every one of them.
    baseline: int = 1
    # Turns of the best and of the start, each, last of all. There are up to twice as many where these leave
    # open which is better. Where one short turn of the start settles that, it has no other.
    validation: int = 2
    duration_s: float = math.inf  # the run ends about then, whatever is left to do
    watches: bool = False  # it is to go on for ever: see `watching`
    counts_silence: bool = False  # intervals without requests use up `intervals` as well
    on_foreign_change: OnForeignChange = "adopt"  # what is done where somebody else changes the target

    def __post_init__(self) -> None:
        for name, least in (("intervals", 1), ("baseline", 1), ("validation", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


def baseline_for(validation: int) -> int:
    """The intervals of the start at the beginning: more where no validation measures it again."""
    return TuningSettings.baseline if validation else BASELINE_WITHOUT_VALIDATION
