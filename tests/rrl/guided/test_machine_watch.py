"""What the service times of an interval say of the machine."""

from __future__ import annotations

import math

import pytest

from rrl.guided.machine_watch import MachineMove, MachineWatch
from rrl.guided.settings import GUIDED

SD = 0.01
SLOWER = math.log(1.5)
NOTHING, DRIFT, MAY_PASS, CHANGE = MachineMove


def verdicts(log_factors: list[float], costly: bool, before: int = 2) -> list[MachineMove]:
    """After so many intervals as ever, which make what is in force steady."""
    watch = MachineWatch(GUIDED)
    for _ in range(before):
        watch.judged(0.0, SD, costly)
    return [watch.judged(each, SD, costly) for each in log_factors]


def test_where_nothing_is_known_of_before_nothing_is_said() -> None:
    for costly in (False, True):
        watch = MachineWatch(GUIDED)
        assert watch.judged(SLOWER, math.inf, costly) is NOTHING
        assert watch.judged(SLOWER, math.inf, costly) is NOTHING


@pytest.mark.parametrize(
    ("log_factors", "expected"),
    [
        ([SLOWER], [CHANGE]),
        ([-SLOWER], [CHANGE]),
        ([0.03], [NOTHING]),
        ([SLOWER, 0.0], [CHANGE, NOTHING]),
    ],
)
def test_where_changes_cost_nothing_one_interval_tells(
    log_factors: list[float], expected: list[MachineMove]
) -> None:
    assert verdicts(log_factors, costly=False) == expected


@pytest.mark.parametrize(
    ("log_factors", "expected"),
    [
        ([SLOWER, SLOWER], [MAY_PASS, CHANGE]),
        ([SLOWER, 0.0, SLOWER], [MAY_PASS, DRIFT, MAY_PASS]),
        ([SLOWER, -SLOWER, -SLOWER], [MAY_PASS, MAY_PASS, CHANGE]),
        ([0.03, -0.03], [DRIFT, DRIFT]),
        ([SLOWER, SLOWER, -SLOWER, -SLOWER], [MAY_PASS, CHANGE, MAY_PASS, CHANGE]),
    ],
)
def test_where_changes_cost_a_second_interval_must_say_the_same(
    log_factors: list[float], expected: list[MachineMove]
) -> None:
    assert verdicts(log_factors, costly=True) == expected


def test_what_was_just_put_in_force_tells_of_itself_alone() -> None:
    watch = MachineWatch(GUIDED)
    for _ in range(2):
        watch.put_in_force()
        assert [watch.judged(SLOWER, SD, costly=True) for _ in range(3)] == [NOTHING, NOTHING, MAY_PASS]


@pytest.mark.parametrize("costly", [False, True])
def test_where_service_times_commonly_move_more_must_be_said(costly: bool) -> None:
    watch = MachineWatch(GUIDED)
    for k in range(20):
        watch.judged(0.055 * (-1) ** k, SD, costly)
    commonly = GUIDED.change_commonly_costly if costly else GUIDED.change_commonly
    assert watch.judged(0.95 * 0.055 * commonly, SD, costly) is (DRIFT if costly else NOTHING)
    assert watch.judged(1.05 * 0.055 * commonly, SD, costly) is (MAY_PASS if costly else CHANGE)


@pytest.mark.parametrize(("deviations", "verdict"), [(3, NOTHING), (5, CHANGE)])
def test_noise_is_no_change(deviations: float, verdict: MachineMove) -> None:
    assert MachineWatch(GUIDED).judged(SLOWER, SLOWER / deviations, costly=False) is verdict
