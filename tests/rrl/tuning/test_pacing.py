"""A run's time and its limits on changes, whatever happens to the wall clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rrl.tuning.change_limits import HOUR_S, ChangeLimits
from rrl.tuning.pacing import Pacing
from rrl.tuning.settings import TuningSettings

DAY_S = 24 * HOUR_S
NOW_S = 1.75e9


class Clocks:
    """The wall's, which may be set, and the monotonic one."""

    def __init__(self) -> None:
        self.passed_s = self.set_by_s = 0.0

    def wall(self) -> float:
        return NOW_S + self.passed_s + self.set_by_s

    def monotonic(self) -> float:
        return 1000.0 + self.passed_s


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def pacing_of(clocks: Clocks, *changed_at_s: float) -> Pacing:
    """A run of an hour that may change something twice an hour, and did so at these Unix times before."""
    limits = ChangeLimits(per_hour=2)
    for at_s in changed_at_s:
        limits.changed(at_s)
    journal: Any = SimpleNamespace(records=[], header=SimpleNamespace(interval_s=5.0))
    settings = TuningSettings(duration_s=HOUR_S)
    pacing = Pacing(limits, journal, settings, clocks.wall, clocks.monotonic)
    pacing.begin()
    return pacing


@pytest.mark.parametrize("set_by_s", [-DAY_S, DAY_S])
def test_a_clock_that_is_set_moves_neither_the_end_nor_the_changes_so_far(
    clocks: Clocks, set_by_s: float
) -> None:
    pacing = pacing_of(clocks)
    for _ in range(2):
        pacing.limits.changed(clocks.wall())
        clocks.passed_s += 60.0
    clocks.set_by_s = set_by_s
    assert "no more than 2 changes in an hour" in pacing.pause()
    clocks.passed_s = HOUR_S - 1.0
    assert pacing.pause()
    assert not pacing.is_over
    clocks.passed_s = HOUR_S
    assert pacing.is_over
    assert not pacing.pause()  # the first of the two was an hour ago


def test_changes_that_a_clock_told_of_which_was_set_back_since_count_from_the_start(clocks: Clocks) -> None:
    pacing = pacing_of(clocks, NOW_S + DAY_S, NOW_S + DAY_S + 5.0)
    assert pacing.pause()
    clocks.passed_s = HOUR_S
    assert not pacing.pause()
