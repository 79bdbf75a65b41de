"""One interval under one configuration: how it is watched while it runs, and what it was like."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from rrl.measurement import Measurement, Progress, SoFar


@dataclass(frozen=True)
class Watch:
    """What may end an interval before its usual time is over."""

    interrupt: Callable[[Progress], str] | None = None  # its text ends the interval: `measurement.aborted`
    share: float = 1.0  # the share of its usual time that a live interval is measured for
    enough: Callable[[SoFar], bool] | None = None  # True ends a live interval that follows a change
    gives_way: bool = False  # what another client has set since the last look is not replaced
    hands_off: bool = False  # nothing is put in force, whatever is in force


UNWATCHED = Watch()


@dataclass(frozen=True)
class MeasuredInterval:
    """An interval as it was measured on the server, before an objective judges it."""

    measurement: Measurement
    changed: bool = False  # it began with a change of the configuration in force
    refused: bool = False  # the server did not make that change and kept what it had
    settling: Measurement | None = None  # from before a change until it had settled; not in `measurement`
    share: float = 1.0  # the share of its usual time that it was measured for
    replaced: Mapping[str, int] = field(default_factory=dict)  # what was in force before; empty: not known
    apply_ms: float = math.nan  # how long the last change took to be in force; NaN where nobody knows
    set_by_others: Mapping[str, int] = field(default_factory=dict)  # of the tuned knobs; empty: nothing
    gave_way: bool = False  # others' stays in place of its own; if `changed`, set in the middle of the change


@dataclass(frozen=True, kw_only=True, eq=False)
class Interval(MeasuredInterval):
    """An interval with its cost and with what an agent observes of it."""

    number: int  # the configuration, by its number in the space
    cost: float  # NaN where nothing was completed
    observation: np.ndarray  # (fields + knobs,) float32

    @property
    def reward(self) -> float:
        """Minus the cost; 0 where there is none."""
        return 0.0 if math.isnan(self.cost) else -self.cost
