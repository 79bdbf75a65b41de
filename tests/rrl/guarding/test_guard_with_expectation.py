"""The guard compares like with like: by what another configuration would have cost in the same interval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.measurement import LatencySummary, Measurement, Progress
from tests.support.runs.guard_told import ABORTED, BAD, GOOD, START, measured, tell, turn
from tests.support.runs.told_costs import ToldCosts

BURST: dict[str, Any] = {"dispersion": 9.0}
OTHER = 7


def guarded(
    good_ms: float = 20.0,
    bad_ms: float = 90.0,
    sd: float = 0.1,
    settings: GuardSettings | None = None,
    **more: Any,
) -> tuple[Guard, ToldCosts]:
    """The start and GOOD were measured; the start takes 100 ms."""
    told = ToldCosts({START: 100.0, GOOD: good_ms, BAD: bad_ms}, sd, **more)
    guard = Guard(START, settings or GuardSettings(), expectation=told)
    guard.enter(START)
    guard.judge(START, 100.0, measured(100.0), kind="baseline")
    tell(guard, GOOD, good_ms)
    return guard, told


@pytest.mark.parametrize(
    ("changes", "why"),
    [({}, "the machine is slower, or the load higher"), (BURST, "requests came in a burst")],
)
def test_what_the_start_would_have_cost_as_well_is_no_reason_to_roll_back(changes: dict, why: str) -> None:
    guard, told = guarded()
    told.then = told.now = 5.0
    judgement = tell(guard, BAD, 450.0, **changes)
    assert judgement.learn
    assert not judgement.rollback
    assert judgement.reason == (
        f"mean latency of 450 ms, 4.5x that at the start, "
        f"but the start would have cost 500 under the same arrivals: {why}"
    )
    assert not guard.takes_over
    assert guard.choice.fitness.fits(BAD)


def test_what_went_worse_than_the_start_would_have_is_rolled_back_though_it_was_quick_at_the_start() -> None:
    guard, told = guarded()
    told.costs_ms[BAD] = 450.0
    judgement = tell(guard, BAD, 450.0)
    assert judgement.rollback
    assert judgement.reason == "cost 450, 4.5x what the start would have cost 100 under the same arrivals"
    assert guard.admit(None)[:2] == (GOOD, "rollback")


def test_a_quick_machine_excuses_nothing() -> None:
    guard, told = guarded()
    told.then, told.costs_ms[BAD] = 0.25, 500.0
    assert tell(guard, BAD, 120.0).rollback


@pytest.mark.parametrize(("sd", "rolls_back"), [(0.1, True), (0.4, False)])
def test_an_unsure_expectation_accuses_less(sd: float, rolls_back: bool) -> None:
    guard, told = guarded(sd=sd)
    told.costs_ms[BAD] = 400.0
    assert tell(guard, BAD, 400.0).rollback is rolls_back


def test_where_the_start_does_not_bear_the_load_the_best_known_is_compared_with() -> None:
    guard, told = guarded(capacities_per_s={START: 30.0})
    told.costs_ms |= {START: 5000.0, BAD: 150.0}
    judgement = tell(guard, BAD, 150.0)
    assert judgement.rollback
    assert "7.5x what the best known would have cost 20" in judgement.reason


def test_an_interval_that_cost_nothing_is_no_fault() -> None:
    guard, _ = guarded()
    guard.admit(BAD)
    assert not guard.judge(BAD, 0.0, measured(0.0)).reason


def test_a_cost_that_is_no_latency_is_no_fault() -> None:
    guard, told = guarded(settings=GuardSettings(cost_is_latency=False))
    told.costs_ms[BAD] = 450.0
    assert not tell(guard, BAD, 450.0).rollback


def test_a_rollback_never_goes_to_what_is_expected_to_be_worse_now() -> None:
    guard, told = guarded()
    told.costs_ms |= {GOOD: 700.0, BAD: 450.0}
    told.costs_ms[START] = 100.0
    told.then = 1.0

    def worse_ahead(numbers: Any, beside: int | None = None, ahead: Any = told.log_costs_ahead) -> Any:
        m, s = ahead(numbers, beside)
        return m + 3.0 * (numbers == START), s  # by now the start takes longest

    told.log_costs_ahead = worse_ahead  # type: ignore[method-assign]
    judgement = tell(guard, BAD, 450.0)
    assert judgement[:3] == (
        False,
        True,
        "cost 450, 4.5x what the start would have cost 100 under the same arrivals; "
        "nothing known is expected to be better now",
    )
    assert guard.admit(BAD).decision == "agent"


def test_a_rollback_for_failures_goes_to_whatever_is_fit() -> None:
    guard, told = guarded()
    told.costs_ms |= {START: 5000.0, GOOD: 4000.0}
    assert tell(guard, BAD, 90.0, failures=80).rollback
    assert guard.admit(None).number == GOOD


@pytest.mark.parametrize(
    ("changes", "why"), [({}, "nothing known keeps it now"), (BURST, "requests came in a burst")]
)
def test_a_limit_that_nothing_known_would_have_kept_speaks_against_nobody(changes: dict, why: str) -> None:
    guard, told = guarded(good_ms=70.0, settings=GuardSettings(slo_p95_ms=300.0))
    told.then = told.now = 4.0
    judgement = tell(guard, BAD, 350.0, **changes)
    assert not judgement.rollback
    assert judgement.reason == (
        "p95 of 700 ms broke the limit of 300 ms; the start would have had 800 ms under the same arrivals, "
        f"and the best known 560 ms: {why}"
    )
    assert not guard.takes_over
    assert guard.choice.fitness.fits(BAD)
    told.then = told.now = 1.0
    assert tell(guard, BAD, 350.0).rollback
    assert not guard.choice.fitness.fits(BAD)


def test_a_limit_that_the_best_known_would_have_kept_is_broken_though_the_start_breaks_it() -> None:
    guard, told = guarded(bad_ms=170.0, settings=GuardSettings(slo_p95_ms=100.0))
    judgement = tell(guard, BAD, 170.0)
    assert judgement.rollback
    assert judgement.reason == (
        "p95 of 340 ms broke the limit of 100 ms; "
        "the start would have had 200 ms under the same arrivals, but the best known 40 ms"
    )
    assert guard.admit(None)[:2] == (GOOD, "rollback")
    told.then = 3.0
    assert not tell(guard, BAD, 510.0).rollback  # the best known would have had 120 ms


def test_what_broke_the_limit_as_the_start_does_is_fit_where_the_best_known_fails() -> None:
    """It is better than the start, though worse than what had kept the limit."""
    guard, _ = guarded(bad_ms=70.0, settings=GuardSettings(slo_p95_ms=100.0))
    assert tell(guard, BAD, 70.0).rollback
    assert guard.choice.fitness.fits(BAD)
    tell(guard, GOOD, 20.0, failures=80)
    assert guard.best == guard.to_keep() == BAD


def test_neither_the_start_nor_the_best_known_is_rolled_back_for_a_limit_that_the_start_breaks() -> None:
    guard, _ = guarded(settings=GuardSettings(slo_p95_ms=100.0))
    assert not tell(guard, START, 100.0).rollback
    assert not tell(guard, GOOD, 60.0).rollback
    assert guard.choice.fitness.fits(GOOD)


def test_a_limit_that_the_start_would_have_kept_is_broken_however_low_the_mean() -> None:
    guard, told = guarded(settings=GuardSettings(slo_p95_ms=150.0))
    told.costs_ms[START], told.p95_over_cost = 140.0, 1.06
    guard.admit(BAD)
    assert guard.judge(
        BAD, 160.0, replace(measured(10.0), latency=LatencySummary(10.0, 10.0, 160.0, 170.0))
    ).rollback
    assert not guard.choice.fitness.fits(BAD)


GROWN = Progress(3.0, 300, 60, 240, 240)  # answers 20 a second


@pytest.mark.parametrize(
    ("safe_per_s", "own_per_s", "is_known", "aborts"),
    [
        (100.0, 20.0, False, True),
        (24.0, 20.0, False, False),  # the safe ones would not do better
        (100.0, 90.0, True, False),  # it bears as much as they do: its queue grew in a burst
        (100.0, 50.0, True, True),
        (100.0, 90.0, False, True),  # what is only believed of it does not count
    ],
)
def test_a_growing_queue_is_a_runaway_only_where_what_is_safe_bears_clearly_more(
    safe_per_s: float, own_per_s: float, is_known: bool, aborts: bool
) -> None:
    capacities_per_s = {START: 50.0, GOOD: safe_per_s, BAD: own_per_s}
    guard, told = guarded(capacities_per_s=capacities_per_s)
    if is_known:
        tell(guard, BAD, 90.0)
    told.capacities[START] = 10.0
    guard.admit(BAD)
    assert bool(guard.watch(GROWN)) is aborts


def test_while_nothing_could_be_answered_yet_a_queue_is_no_runaway() -> None:
    """Silence, then 100 requests at once, of which those that there was time for were answered."""
    guard, _ = guarded(capacities_per_s={START: 100.0, GOOD: 100.0})
    guard.admit(BAD)
    for look in (Progress(0.3, 0, 0, 0, 0), Progress(0.9, 0, 0, 0, 0), Progress(1.0, 100, 9, 91, 91)):
        assert guard.watch(look) == ""
    assert guard.watch(Progress(2.1, 400, 20, 380, 380))  # 10 a second


def test_a_burst_after_a_silence_tells_what_is_answered_since_it_began() -> None:
    guard, _ = guarded(capacities_per_s={START: 100.0, GOOD: 100.0})
    guard.admit(BAD)
    for look in (Progress(4.0, 21, 21, 0, 0), Progress(5.0, 300, 110, 190, 190)):
        assert guard.watch(look) == ""  # 89 in a second, though only 22 a second in all
    assert guard.watch(Progress(15.0, 900, 150, 750, 750)) == ""
    guard.admit(BAD)
    assert guard.watch(Progress(5.0, 300, 110, 190, 190))


def test_an_aborted_interval_is_rolled_back_to_what_is_expected_to_be_best() -> None:
    guard, told = guarded()
    told.costs_ms[BAD] = 900.0
    assert tell(guard, BAD, 900.0, **ABORTED).rollback
    assert guard.admit(None)[:2] == (GOOD, "rollback")


def test_an_aborted_interval_is_not_held_against_what_is_expected_to_be_best_all_the_same() -> None:
    """A burst is nobody's fault: what is expected after it says whether anything known is better."""
    guard, told = guarded()
    told.costs_ms[BAD] = 15.0
    judgement = tell(guard, BAD, 900.0, **ABORTED, **BURST)
    assert not judgement.rollback
    assert guard.choice.fitness.fits(BAD)
    assert guard.admit(BAD)[:2] == (BAD, "agent")
    assert guard.best == BAD
    told.costs_ms[BAD] = 900.0
    assert tell(guard, BAD, 900.0, **ABORTED, **BURST).rollback
    assert not guard.choice.fitness.fits(BAD)


@pytest.mark.parametrize(("good_ms", "number"), [(20.0, GOOD), (900.0, BAD)])
def test_a_target_that_was_lost_once_does_not_bring_back_what_is_worse(good_ms: float, number: int) -> None:
    guard, told = guarded(bad_ms=80.0)
    told.costs_ms[GOOD] = good_ms
    assert not tell(guard, BAD, 80.0, gap="the server restarted").learn
    assert guard.admit(None).number == number
    assert all(not measurement.gap for _, measurement in told.learned)
    tell(guard, BAD, 80.0, gap="the server restarted")
    assert guard.admit(None)[:2] == (guard.best, "rollback")
    assert guard.best != BAD


def test_the_best_is_what_is_expected_to_cost_least_whatever_minute_it_met() -> None:
    guard, told = guarded(good_ms=40.0, bad_ms=30.0)
    tell(guard, BAD, 300.0)  # in a burst
    assert guard.best == BAD
    told.sd = 0.4
    guard.expected.learn(BAD, measured(30.0))
    assert guard.best == BAD  # as unsure as the other one
    told.costs_ms[GOOD] = 25.0
    guard.expected.learn(BAD, measured(30.0))
    assert guard.best == GOOD
    tell(guard, GOOD, 25.0, failures=100)
    assert guard.best == BAD


def test_it_trusts_what_nothing_measured_is_expected_to_beat() -> None:
    guard, told = guarded(good_ms=40.0, bad_ms=30.0, sd=0.3)
    tell(guard, BAD, 300.0)
    assert guard.choice.trusts(GOOD)
    told.sd = 0.05
    guard.expected.learn(BAD, measured(30.0))
    assert not guard.choice.trusts(GOOD)
    assert guard.choice.trusts(BAD)


def test_worse_is_what_is_expected_to_be_beyond_doubt() -> None:
    guard, _ = guarded(good_ms=105.0, bad_ms=200.0)
    tell(guard, BAD, 90.0)
    assert guard.choice.is_worse(BAD)
    assert not guard.choice.is_worse(GOOD)


@pytest.mark.parametrize(
    ("good_ms", "start_per_s", "kept", "words"),
    [
        (
            20.0,
            100.0,
            GOOD,
            "5.00x lower cost than the start (95% interval 4.11x to 6.08x), expected of both",
        ),
        (90.0, 100.0, START, "nothing is better beyond noise: the best is expected to have 1.11x lower cost"),
        (90.0, 30.0, GOOD, "expected of both; the start cannot bear the load"),
        (150.0, 100.0, START, "nothing else is expected to be better"),
    ],
)
def test_what_is_kept_is_what_is_expected_to_be_better_beyond_doubt(
    good_ms: float, start_per_s: float, kept: int, words: str
) -> None:
    guard, _ = guarded(good_ms=good_ms, capacities_per_s={START: start_per_s})
    number, reason = guard.keeping()
    assert number == kept
    assert words in reason
    assert guard.choice.is_proven(GOOD) == (good_ms == 20.0)


def test_what_came_lately_decides_what_is_kept_and_not_what_is_put_back() -> None:
    """As long as the start is as good now: what would have been far worse a while ago may be so again."""
    guard, told = guarded(good_ms=102.0)
    tell(guard, GOOD, 102.0)
    assert guard.to_keep() == START
    told.kept_ms |= {START: 900.0, GOOD: 150.0}
    guard.expected.learn(GOOD, measured(102.0))
    number, reason = guard.keeping()
    assert number == GOOD
    assert "6.00x lower cost than the start" in reason
    assert guard.choice.is_proven(GOOD)
    assert not guard.choice.trusts(START)
    assert guard.best == START  # by what is expected now


def test_of_several_that_are_as_good_now_the_one_that_bears_what_came_is_kept() -> None:
    guard, told = guarded(good_ms=40.0, bad_ms=50.0)
    tell(guard, BAD, 50.0)
    assert guard.best == guard.to_keep() == guard.choice.best_to_keep == GOOD
    told.kept_ms |= {START: 900.0, GOOD: 600.0, BAD: 100.0}
    guard.expected.learn(BAD, measured(50.0))
    assert guard.best == GOOD
    assert guard.to_keep() == guard.choice.best_to_keep == BAD
    assert guard.choice.is_better(BAD, GOOD)
    assert not guard.choice.is_better(GOOD, BAD)
    assert not guard.choice.is_worse(BAD)


def test_of_what_is_better_beyond_doubt_the_one_that_bears_what_came_is_kept() -> None:
    """Where it is in doubt whether the best is better than the start."""
    guard, told = guarded(good_ms=40.0, bad_ms=50.0)
    tell(guard, BAD, 50.0)
    told.kept_ms |= {OTHER: 30.0, GOOD: 60.0, BAD: 45.0}
    told.costs_ms[OTHER] = 30.0
    tell(guard, OTHER, 30.0)
    told.sds |= {OTHER: 2.0}
    guard.expected.learn(OTHER, measured(30.0))
    assert guard.choice.best_to_keep == OTHER
    assert not guard.choice.is_proven(OTHER)
    assert guard.to_keep() == BAD


def test_where_requests_fail_under_the_start_the_one_that_bears_what_came_is_kept() -> None:
    guard, told = guarded(good_ms=40.0, bad_ms=50.0)
    for _ in range(2):
        tell(guard, BAD, 50.0)
        tell(guard, START, 100.0, failures=40)
    assert guard.choice.start_harms
    told.kept_ms |= {GOOD: 600.0, BAD: 100.0}
    guard.expected.learn(BAD, measured(50.0))
    assert guard.to_keep() == BAD


def test_what_would_be_kept_is_not_aborted() -> None:
    guard, told = guarded(good_ms=40.0, bad_ms=50.0, capacities_per_s={START: 1000.0})
    tell(guard, BAD, 50.0)
    told.kept_ms |= {START: 900.0, GOOD: 600.0, BAD: 100.0}
    guard.expected.learn(BAD, measured(50.0))
    guard.enter(BAD)
    assert {BAD, GOOD, START} <= set(guard._in_force.safe)


def test_time_without_requests_is_told() -> None:
    guard, told = guarded()
    before = told.passed_s
    guard.admit(GOOD)
    guard.judge(GOOD, float("nan"), Measurement(7.0, 0, 0, 0))
    assert told.passed_s == before + 7.0


def test_turns_may_show_what_was_in_doubt_or_that_it_is_no_better() -> None:
    guard, told = guarded(good_ms=90.0)
    for _ in range(15):
        tell(guard, GOOD, 90.0)
    assert guard.to_keep({GOOD: [60.0, 61.0], START: [101.0, 99.0]}) == GOOD
    assert guard.to_keep({GOOD: [90.0], START: [101.0]}) == START
    told.costs_ms[GOOD] = 20.0
    turn(guard, GOOD, 20.0)
    assert guard.to_keep({GOOD: [90.0], START: [101.0]}) == GOOD  # the turns taught what is expected, too
    assert guard.to_keep({GOOD: [200.0, 200.0], START: [20.0, 20.0]}) == START


def in_doubt_beside_proven() -> tuple[Guard, ToldCosts]:
    """GOOD is expected to be the best, and that is in doubt. BAD is better than the start beyond doubt."""
    guard, told = guarded(good_ms=50.0, bad_ms=60.0)
    told.sds |= {GOOD: 0.6, BAD: 0.05}
    tell(guard, BAD, 60.0)
    assert guard.choice.best_to_keep == GOOD
    assert not guard.choice.is_proven(GOOD)
    assert guard.choice.is_proven(BAD)
    return guard, told


def test_where_the_best_fails_in_its_turns_another_that_is_proven_is_kept() -> None:
    guard, told = in_doubt_beside_proven()
    guard.enter(GOOD)
    guard.judge(GOOD, 50.0, measured(50.0, failures=40), "validation")
    number, reason = guard.keeping({GOOD: [], START: []})
    assert number == BAD
    assert reason.startswith("1.67x lower cost than the start")
    assert reason.endswith("; the best known failed, was aborted or broke the limit in its turns")
    told.sds[BAD] = 0.6
    guard.expected.learn(BAD, measured(60.0))
    assert guard.keeping({GOOD: [], START: []}) == (
        START,
        "the best known failed, was aborted or broke the limit in its turns",
    )
    told.capacities[START] = 45.0  # nothing to spare
    assert guard.to_keep({GOOD: [], START: []}) == BAD


def test_where_turns_show_the_best_to_be_worse_another_that_is_proven_is_kept() -> None:
    guard, told = in_doubt_beside_proven()
    for _ in range(2):
        turn(guard, GOOD, 300.0)
        turn(guard, START, 100.0)
    costs = {GOOD: [300.0, 300.0], START: [100.0, 100.0]}
    number, reason = guard.keeping(costs)
    assert number == BAD
    assert "; in turns the best had 3.00x higher cost than the start" in reason
    told.sds |= {GOOD: 0.05, BAD: 0.6}  # what the turns have shown to be worse is not expected to be better
    guard.expected.learn(BAD, measured(60.0))
    assert guard.to_keep(costs) == START


@pytest.mark.parametrize(("start_per_s", "overloaded"), [(30.0, True), (45.0, True), (55.0, False)])
def test_a_start_without_something_to_spare_is_overloaded(start_per_s: float, overloaded: bool) -> None:
    guard, _ = guarded(capacities_per_s={START: start_per_s})
    assert guard.choice.start_is_overloaded is overloaded


def test_until_anything_is_known_what_was_measured_is_compared() -> None:
    guard, told = guarded()
    told.known = False
    assert not tell(guard, BAD, 290.0).rollback
    assert tell(guard, BAD, 310.0).rollback
    assert guard.best == GOOD
    assert guard.to_keep() == GOOD
