"""The guard judges intervals, rolls back, refuses, and takes over."""

from __future__ import annotations

import math

import pytest

from rrl.guarding.settings import GuardSettings
from rrl.measurement import NODES_CHANGED
from tests.support.runs.guard_told import ABORTED, BAD, GOOD, START, begun, begun_once, measured, tell, turn


def test_an_aborted_interval_rolls_back_to_the_best_known_whatever_the_agent_proposes() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    verdict = tell(guard, BAD, 50.0, **ABORTED)
    assert verdict.rollback
    assert verdict.learn
    assert guard.takes_over
    assert guard.admit(5)[:2] == (GOOD, "rollback")
    assert guard.admit(5)[:2] == (5, "agent")


def test_a_broken_limit_rolls_back() -> None:
    guard = begun(GuardSettings(slo_p95_ms=300.0))
    verdict = tell(guard, BAD, 151.0)
    assert verdict.rollback
    assert "302 ms broke the limit of 300 ms" in verdict.reason


@pytest.mark.parametrize(("mean_ms", "rolls_back"), [(290.0, False), (310.0, True)])
def test_latency_far_worse_than_at_the_start_rolls_back(mean_ms: float, rolls_back: bool) -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    assert tell(guard, BAD, mean_ms).rollback is rolls_back


def test_the_best_known_itself_is_never_rolled_back() -> None:
    guard = begun(GuardSettings(slo_p95_ms=10.0))  # nothing can keep this limit
    assert not tell(guard, GOOD, 20.0).rollback
    assert not tell(guard, START, 100.0).rollback


def test_an_aborted_configuration_is_refused_for_a_while_at_this_or_a_higher_load() -> None:
    guard = begun(GuardSettings(cooldown=5))
    tell(guard, GOOD, 20.0)
    tell(guard, BAD, 50.0, **ABORTED)
    tell(guard, GOOD, 20.0)
    assert guard.admit(BAD)[:2] == (GOOD, "refused")
    tell(guard, GOOD, 40.0, rate_per_s=80.0)
    assert guard.admit(BAD).decision == "refused"
    tell(guard, GOOD, 5.0, rate_per_s=10.0)
    assert guard.admit(BAD).decision == "agent"  # much less load than it failed under
    for _ in range(3):
        tell(guard, GOOD, 20.0)
    assert guard.admit(BAD).decision == "agent"  # long ago


def test_the_interval_that_drains_an_aborted_ones_queue_is_not_held_against_its_configuration() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    tell(guard, BAD, 50.0, **ABORTED)
    number, decision, _ = guard.admit(None)
    assert (number, decision) == (GOOD, "rollback")
    draining = measured(900.0, backlog=2, backlog_growth=-78, completions=238)
    verdict = guard.judge(GOOD, 900.0, draining)
    assert not verdict.learn
    assert not verdict.rollback
    assert guard.best == GOOD


def test_a_configuration_that_drains_a_long_queue_is_kept_until_it_is_gone_but_not_for_ever() -> None:
    guard = begun()
    tell(guard, BAD, 50.0, **ABORTED)
    guard.admit(None)
    guard.judge(START, 9e3, measured(9e3, backlog=1000))
    assert guard.admit(GOOD)[:2] == (GOOD, "agent")
    draining = measured(9e3, backlog=500, backlog_growth=-200, completions=360)
    assert not guard.judge(GOOD, 9e3, draining).learn
    assert guard.admit(None)[:2] == (GOOD, "hold")
    taken = 1
    while not guard.judge(GOOD, 9e3, draining).learn:
        guard.admit(None)
        taken += 1
    assert taken == GuardSettings().drain_intervals


def test_failures_of_a_queue_that_a_rollback_met_are_forgiven_until_it_is_gone() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    tell(guard, BAD, 50.0, **ABORTED)
    for decision in ("rollback", "hold"):
        assert guard.admit(None)[:2] == (GOOD, decision)
        draining = measured(9e3, backlog=500, backlog_growth=-200, completions=360, failures=30)
        guard.judge(GOOD, 9e3, draining)
    assert guard.fitness.fits(GOOD)


def test_a_queue_that_a_rollback_met_and_that_only_fails_has_as_many_intervals_as_any_to_be_gone() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    tell(guard, BAD, 50.0, **ABORTED)
    only_fails = measured(math.nan, backlog=500, backlog_growth=-200, completions=0, failures=360)
    for _ in range(GuardSettings().drain_intervals):
        assert guard.admit(None).number == GOOD
        guard.judge(GOOD, math.nan, only_fails)
    assert guard.fitness.fits(GOOD)


def test_nothing_is_learned_from_a_gap_and_the_best_known_comes_back() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    verdict = tell(guard, BAD, 1.0, gap="the server restarted")
    assert not verdict.learn
    assert guard.best == GOOD
    assert guard.admit(None)[:2] == (GOOD, "rollback")


def test_silence_moves_nothing() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    assert tell(guard, BAD, 1.0, arrivals=0, completions=0)[:3] == (False, False, "no requests arrive")
    assert guard.best == GOOD
    assert guard.admit(None) == (BAD, "hold", "no requests arrive")
    tell(guard, BAD, 30.0)
    assert guard.admit(GOOD).decision == "agent"


def test_requests_that_only_fail_are_no_silence() -> None:
    """As where clients have gone, and what waits for them is given up."""
    guard = begun()
    tell(guard, GOOD, 20.0)
    verdict = tell(guard, BAD, 4000.0, arrivals=0, completions=0, failures=40, backlog_growth=-40)
    assert verdict.rollback
    assert verdict.reason == "40 requests failed"
    assert guard.memory.rate_per_s == 40.0
    assert guard.admit(None)[:2] == (GOOD, "rollback")


def test_a_configuration_under_which_the_target_was_lost_twice_is_refused() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    for refused in (False, True):
        tell(guard, BAD, 1.0, gap="the server restarted")
        tell(guard, GOOD, 20.0)
        assert (guard.admit(BAD).decision == "refused") is refused


@pytest.mark.parametrize("served", [1, 5, 21])
def test_what_served_between_two_losses_of_the_target_was_not_to_blame(served: int) -> None:
    """An operator restarts the server, and a run of days sees it restart every night."""
    guard = begun()
    for _ in range(3):
        tell(guard, GOOD, 20.0, gap="the server restarted")
        for _ in range(served):
            tell(guard, GOOD, 20.0)
    assert guard.admit(GOOD).decision == "agent"
    assert guard.fitness.fits(GOOD)


def test_what_others_do_to_the_target_speaks_against_no_configuration() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    for _ in range(3):
        assert not tell(guard, GOOD, 20.0, gap="another client changed it", gap_by_others=True).rollback
        assert guard.admit(None)[:2] == (GOOD, "hold")
        assert not guard.must_act
    tell(guard, GOOD, 20.0)
    assert guard.best == GOOD
    assert guard.admit(GOOD).decision == "agent"


def test_a_node_that_dies_and_comes_back_rolls_nothing_back_and_blames_nothing() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    for _ in range(2):  # its death, and its workers' return: nothing is served in between
        assert not tell(guard, BAD, 20.0, gap=NODES_CHANGED, gap_by_others=True).rollback
        assert guard.admit(None)[:2] == (BAD, "hold")
    assert not guard.fitness.was_lost_again(BAD)
    assert guard.fitness.fits(BAD)
    tell(guard, BAD, 20.0)
    assert guard.admit(BAD).decision == "agent"


def test_what_was_in_force_too_seldom_to_meet_two_losses_by_chance_is_to_blame_though_it_served() -> None:
    guard = begun()
    for _ in range(2):
        for _ in range(10):
            tell(guard, GOOD, 20.0)
        tell(guard, BAD, 10.0)
        tell(guard, BAD, 1.0, gap="the server restarted")
    tell(guard, GOOD, 20.0)
    assert guard.admit(BAD).decision == "refused"
    assert guard.admit(GOOD).decision == "agent"


def test_a_start_under_which_the_target_is_lost_and_not_under_another_is_left() -> None:
    guard = begun_once(50.0)
    for _ in range(4):
        turn(guard, START, 50.0)
        assert not guard.choice.avoids_start
        guard.enter(START)
        guard.judge(START, 50.0, measured(gap="the server restarted"))
        for _ in range(3):
            tell(guard, GOOD, 80.0)
    assert guard.choice.avoids_start
    assert guard.best == guard.to_keep() == GOOD
    assert "the target was lost under the start" in guard.keeping().reason
    assert guard.admit(START)[:2] == (GOOD, "refused")


@pytest.mark.parametrize(
    ("number", "changes", "must_act"),
    [
        (BAD, ABORTED, True),
        (BAD, {"failures": 80}, True),
        (BAD, {"arrivals": 0, "completions": 0}, False),  # quiet: nothing bad is known
        (BAD, {"gap": "the server restarted"}, True),  # perhaps because of it
        (START, {"gap": "the server restarted"}, False),
    ],
)
def test_the_guard_must_act_where_what_is_in_force_may_be_bad(
    number: int, changes: dict, must_act: bool
) -> None:
    guard = begun()
    tell(guard, GOOD, 95.0)
    tell(guard, number, 90.0, **changes)
    assert guard.takes_over
    assert guard.must_act is must_act


def test_the_guard_knows_what_it_was_told_of() -> None:
    guard = begun()
    assert guard.memory.knows(START)
    assert not guard.memory.knows(GOOD)
    tell(guard, GOOD, 95.0, rate_per_s=1.0)
    assert guard.memory.knows(GOOD)
