"""A model that has fallen silent while others of the server have requests.

Its forecast holds what came while requests came, as these may come again. Next, less is expected of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rrl.belief.belief import Belief
from rrl.measurement import Measurement
from rrl.objective import Objective

LEAST_INTERVALS = 3  # in a row: one quiet interval, or two, may be chance


class Silence(NamedTuple):
    """The intervals in a row in which others had requests, and this model had none."""

    intervals: int = 0
    lasts_s: float = 0.0

    def expected(self, belief: Belief, objective: Objective) -> Belief:
        """The model's belief, asked of the load that is expected after such a silence.

        A silence longer than those that requests came back from lately is a lower load. As nothing came, that
        is one request in its time at most.
        """
        if self.intervals < LEAST_INTERVALS or not belief.known:
            return belief
        if self.lasts_s <= belief.forecast.longest_silence_s:
            return belief
        times = 1.0 / (self.lasts_s * belief.requests_per_s)
        return belief.supposing(objective, times) if times < 1.0 else belief


def silences_after(silences: Sequence[Silence], measured: Sequence[Measurement | None]) -> list[Silence]:
    """Those of the models once an interval is over, too.

    One in which all were silent tells nothing, nor does it of a model that was not measured in it.
    """
    if not any(own is not None and own.arrivals for own in measured):
        return list(silences)
    return [_after(*each) for each in zip(silences, measured, strict=True)]


def _after(silence: Silence, own: Measurement | None) -> Silence:
    if own is None:
        return silence
    return Silence() if own.arrivals else Silence(silence.intervals + 1, silence.lasts_s + own.duration_s)
