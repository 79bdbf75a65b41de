"""How the tuner measures the winner again, in turns with the start."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envs.simulated import SimulatedServing
from rrl.guarding.gain import UNKNOWN, Gain
from rrl.guarding.guard import Guard
from rrl.interval import Watch
from rrl.journal import read
from rrl.measurement import NODES_CHANGED, Measurement
from rrl.space import Configuration
from rrl.tuning.ending import Kept
from rrl.tuning.giving_up import GivenUp
from rrl.views.summary import summarise
from tests.support.runs.told_costs import ToldCosts
from tests.support.runs.tuned_runs import (
    SETTINGS,
    SPACE,
    LooseTuning,
    Refusing,
    StopAfter,
    kinds,
    run,
    simulated,
    tuning,
)


def test_a_run_is_baseline_then_tuning_then_validation_in_turns(tmp_path: Path) -> None:
    t = tuning(tmp_path)
    t.guard.turns.are_over = lambda costs: len(costs[t.env.start]) == 2
    kept = run(t)
    records = read(tmp_path)[1]
    assert kinds(records) == ["baseline"] * 2 + ["tune"] * 12 + ["validation"] * 4
    best, start, *again = [r.number for r in records if r.kind == "validation"]
    assert start == t.env.start != best
    assert again == [start, best]
    assert {r.number for r in records if r.kind == "baseline"} == {t.env.start}
    assert kept == Kept(best, stopped=False)


@pytest.mark.parametrize(
    ("gain", "turns"),
    [
        (Gain(1.1, 1.2, 1.3), 1),
        (Gain(0.7, 0.8, 0.9), 1),
        (Gain(0.9, 1.2, 1.5), 4),
        (Gain(0.8, 0.9, 1.2), 2),
        (UNKNOWN, 2),
    ],
)
def test_turns_that_leave_the_question_open_are_followed_by_as_many_again(
    tmp_path: Path, gain: Gain, turns: int
) -> None:
    t = tuning(tmp_path)
    t.guard.turns.gain = lambda costs: gain
    run(t)
    assert kinds(read(tmp_path)[1]).count("validation") == 2 * turns
    assert summarise(*read(tmp_path)).validated == (turns >= SETTINGS.validation)


def test_no_turns_follow_that_time_or_limits_forbid(tmp_path: Path) -> None:
    t = tuning(tmp_path)
    assert t.validation.may_go_on()
    t.pacing.end_s = t.monotonic() + 1.9 * t.journal.header.interval_s
    assert not t.validation.may_go_on()
    t.pacing.end_s = math.inf
    t.pacing.pause = lambda changes=1: "only 1 change is left" if changes > 1 else ""
    assert not t.validation.may_go_on()
    t.journal.close()


class FarWorseAtFirst(SimulatedServing):
    """Takes ten times as long in the configuration found."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shares: list[float] = []
        self.asked: list[bool] = []  # whether the interval may end once it has told enough

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        self.shares.append(watch.share)
        self.asked.append(watch.enough is not None)
        m = super()._measurement(number, watch)
        slower = m.latency._replace(mean_ms=10 * m.latency.mean_ms)
        return replace(m, latency=slower) if number == self.start else m


def test_a_start_that_must_excuse_the_best_is_measured_for_a_whole_turn(tmp_path: Path) -> None:
    """Where the best broke the limit in its turn, whether the start breaks it, too, decides."""
    t = tuning(tmp_path, simulated(FarWorseAtFirst))
    t.guard.fitness.fits = lambda number: False
    run(t)
    assert set(t.env.shares) == {1.0}
    assert not any(t.env.asked)


def test_a_start_that_one_turn_shows_to_be_worse_is_put_in_force_once_more_only(tmp_path: Path) -> None:
    t = tuning(tmp_path, simulated(FarWorseAtFirst))
    kept = run(t)
    header, records = read(tmp_path)
    in_turns = [r.number for r in records if r.kind == "validation"]
    assert in_turns == [kept.number, t.env.start]
    assert set(t.env.shares) == {1.0}
    assert [i for i, asked in enumerate(t.env.asked) if asked] == [len(records) - 1]
    summary = summarise(header, records)
    assert summary.validated
    assert (summary.best.intervals, summary.start.intervals) == (1, 1)
    best, start = (r.cost for r in records if r.kind == "validation")
    assert summary.gain == pytest.approx(start / best)


def test_turns_that_were_broken_off_validate_nothing(tmp_path: Path) -> None:
    run(tuning(tmp_path, simulated(FarWorseAtFirst)))
    header, records = read(tmp_path)
    assert summarise(header, records).validated
    assert not summarise(header, records[:-1]).validated


class OverloadedAtFirst(SimulatedServing):
    """A queue grows in the configuration found."""

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        m = super()._measurement(number, watch)
        return replace(m, backlog=m.arrivals, backlog_growth=m.arrivals) if number == self.start else m


def test_a_start_that_cannot_bear_the_load_is_measured_once(tmp_path: Path) -> None:
    stop = StopAfter(4)
    run(tuning(tmp_path, simulated(OverloadedAtFirst), listeners=[stop], stop=stop))
    kept = run(tuning(tmp_path, simulated(OverloadedAtFirst), resume=True))
    of_run = kinds(read(tmp_path)[1])
    assert of_run[:7] == ["baseline"] + ["tune"] * 3 + ["baseline"] + ["tune"] * 2
    assert "validation" not in of_run
    assert "the start could not bear the load, so it was not put in force again" in kept.reason


def test_a_better_one_than_an_agent_recommends_is_not_left_unvalidated(tmp_path: Path) -> None:
    t = tuning(tmp_path)
    t.agent.recommended = lambda: t.env.start
    t.guard.choice.trusts = lambda number: True
    kept = run(t)
    assert kept.number != t.env.start
    assert {r.number for r in read(tmp_path)[1] if r.kind == "validation"} == {kept.number, t.env.start}


@pytest.mark.parametrize(("what", "turns"), [("the best known", 1), ("the start", 2)])
def test_what_is_refused_in_the_validation_ends_it(what: str, turns: int, tmp_path: Path) -> None:
    """As requests hold several items by then, say; the run must not ask for it for ever."""
    t = tuning(tmp_path, simulated(Refusing))
    refused = 5 if what == "the best known" else t.env.start
    t.env.refused = -1

    def best() -> int:
        t.env.refused = refused
        return 5

    t.validation.best = best
    kept = run(t)
    assert kept.number == t.env.start
    assert kept.reason == f"{what} cannot be measured again: no memory"
    assert kinds(read(tmp_path)[1]).count("validation") == turns


def with_found(
    folder: Path, server: type[SimulatedServing], found: Configuration
) -> tuple[list[int], list[bool], LooseTuning]:
    """A run that found this, what it puts in force in the end, and whether it leaves all as it is."""
    put: list[int] = []
    left: list[bool] = []
    stop = StopAfter(5)
    t = tuning(
        folder,
        simulated(server),
        found=found,
        put_in_force=put.append,
        leave=lambda: left.append(True),
        listeners=[stop],
        stop=stop,
    )
    return put, left, t


@pytest.mark.parametrize("is_on_grid", [True, False])
def test_a_start_that_is_refused_from_the_first_ends_the_run_and_what_was_found_stays(
    is_on_grid: bool, tmp_path: Path
) -> None:
    """A pinned value that requests of several items do not fit into, say."""
    found = {"instances": 1 if is_on_grid else 3, "intra_op_threads": 1}
    put, left, t = with_found(tmp_path, Refusing, found)
    t.env.refused = t.env.start
    if is_on_grid:
        kept = run(t)
        assert SPACE.configuration(kept.number) == found
        assert kept.reason == "the start cannot be measured: no memory"
    else:
        with pytest.raises(GivenUp, match="the start cannot be measured: no memory; what was found stays"):
            run(t)
        assert (put, left) == ([], [True])
    assert kinds(read(tmp_path)[1]) == ["baseline"]


class Dying(SimulatedServing):
    """Is lost whenever one configuration is asked for, and comes back."""

    deadly = -1

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        gap = "the target is lost (connection refused)" if number == self.deadly else ""
        return replace(super()._measurement(number, watch), gap=gap)


@pytest.mark.parametrize(("what", "turns"), [("the best known", 2), ("the start", 3)])
def test_what_brings_the_target_down_twice_in_the_validation_ends_it(
    what: str, turns: int, tmp_path: Path
) -> None:
    """A run without an end would bring it down for ever."""
    t = tuning(tmp_path, simulated(Dying))
    deadly = 5 if what == "the best known" else t.env.start

    def best() -> int:
        t.env.deadly = deadly
        return 5

    t.validation.best = best
    kept = run(t)
    assert kept.number == t.env.start
    assert kept.reason == f"{what} cannot be measured again: the target is lost (connection refused)"
    assert kinds(read(tmp_path)[1]).count("validation") == turns


@pytest.mark.parametrize("is_on_grid", [True, False])
def test_a_start_that_brings_the_target_down_twice_is_not_put_in_force_again(
    is_on_grid: bool, tmp_path: Path
) -> None:
    """A pinned value that needs more memory than there is, say."""
    found = {"instances": 1 if is_on_grid else 3, "intra_op_threads": 1}
    put, left, t = with_found(tmp_path, Dying, found)
    t.env.deadly = t.env.start
    if is_on_grid:
        kept = run(t)
        assert SPACE.configuration(kept.number) == found
        assert "the start cannot be measured: the target is lost" in kept.reason
    else:  # The next start puts it back.
        with pytest.raises(GivenUp, match="the start cannot be measured: the target is lost"):
            run(t)
        assert (put, left) == ([], [])
    assert kinds(read(tmp_path)[1]) == ["baseline"] * 2


def test_a_start_that_was_found_is_waited_for_however_often_the_target_is_lost(tmp_path: Path) -> None:
    stop = StopAfter(5)
    t = tuning(tmp_path, simulated(Dying), listeners=[stop], stop=stop)
    t.env.deadly = t.env.start
    assert run(t).stopped
    assert kinds(read(tmp_path)[1]) == ["baseline"] * 5


class OnCluster(SimulatedServing):
    """Nodes go or come in so many of the next intervals."""

    to_change = 0

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        measurement = super()._measurement(number, watch)
        if self.to_change == 0:
            return measurement
        self.to_change -= 1
        return replace(measurement, gap=NODES_CHANGED, gap_by_others=True)


@pytest.mark.parametrize("was_lost_before", [False, True])
def test_nodes_that_go_and_come_in_the_validation_only_make_it_longer(
    was_lost_before: bool, tmp_path: Path
) -> None:
    t = tuning(tmp_path, simulated(OnCluster))
    t.guard.turns.are_over = lambda costs: len(costs[t.env.start]) == 1

    def best() -> int:
        t.env.to_change = 2
        if was_lost_before:
            t.guard.fitness.was_lost_again = lambda number: True
        return 5

    t.validation.best = best
    kept = run(t)
    assert "cannot be measured" not in kept.reason
    turns = [record for record in read(tmp_path)[1] if record.kind == "validation"]
    assert [record.number for record in turns] == [5, 5, 5, t.env.start]
    assert [record.counted for record in turns] == [False, False, True, True]


def told(costs_ms: dict[int, float], start_per_s: float = 100.0) -> tuple[Guard, ToldCosts]:
    """A guard that expects these costs; all others are expected to take a second."""
    env = simulated()
    expectation = ToldCosts(
        dict.fromkeys(range(len(env.space)), 1000.0) | costs_ms, capacities_per_s={env.start: start_per_s}
    )
    expectation.rate_per_s = 10.0
    return Guard(env.start, expectation=expectation), expectation


@pytest.mark.parametrize(
    ("best_ms", "start_per_s", "turns", "keeps_best"),
    [
        (50.0, 100.0, 0, True),  # without doubt
        (95.0, 11.0, 0, True),  # doubtful, but the start has nothing to spare
        (95.0, 9.0, 0, True),  # the start does not even bear the load
        (95.0, 100.0, 2, None),  # doubtful: what the turns show decides
    ],
)
def test_the_start_comes_back_into_force_only_where_doubt_is_left_and_it_bears_the_load(
    best_ms: float, start_per_s: float, turns: int, keeps_best: bool | None, tmp_path: Path
) -> None:
    start, best = simulated().start, 5
    guard, _ = told({start: 100.0, best: best_ms}, start_per_s)
    t = tuning(tmp_path, guard=guard)
    t.agent.act = lambda observation: t.env.space.action(best)
    kept = run(t)
    assert kinds(read(tmp_path)[1]).count("validation") >= turns
    assert (kinds(read(tmp_path)[1]).count("validation") == 0) == (turns == 0)
    if keeps_best is not None:
        assert kept.number == (best if keeps_best else start)


def test_turns_end_once_what_they_taught_leaves_no_doubt(tmp_path: Path) -> None:
    start, best = simulated().start, 5
    guard, expectation = told({start: 100.0, best: 95.0})
    guard.turns.gain = lambda costs: UNKNOWN  # type: ignore[method-assign]
    t = tuning(tmp_path, guard=guard)
    t.agent.act = lambda observation: t.env.space.action(best)
    taught, told_it = 0, expectation.learn

    def learn(number: int, measurement: Measurement) -> None:
        nonlocal taught
        taught += t.finished("tune") == SETTINGS.intervals
        told_it(number, measurement)
        if taught >= 3:
            expectation.costs_ms[best] = 50.0

    expectation.learn = learn  # type: ignore[method-assign]
    kept = run(t)
    assert kinds(read(tmp_path)[1]).count("validation") == 4
    assert kept.number == best
    assert "expected of both under the same load" in kept.reason


@pytest.mark.parametrize(("overloaded_in", "turns"), [(1, "A"), (2, "AB"), (3, "ABBAA")])
def test_a_start_that_the_load_outgrows_in_a_turn_has_no_other_turn(
    overloaded_in: int, turns: str, tmp_path: Path
) -> None:
    start, best = simulated().start, 5
    guard, expectation = told({start: 100.0, best: 95.0})
    guard.turns.gain = lambda costs: Gain(0.9, 1.2, 1.5)  # type: ignore[method-assign]
    t = tuning(tmp_path, guard=guard)
    t.agent.act = lambda observation: t.env.space.action(best)
    learned, told_it = 0, expectation.learn

    def learn(number: int, measurement: Measurement) -> None:
        nonlocal learned
        told_it(number, measurement)
        learned += t.finished("tune") == SETTINGS.intervals
        if learned == overloaded_in:
            expectation.rate_per_s = 95.0
            expectation.capacities[best] = 200.0

    expectation.learn = learn  # type: ignore[method-assign]
    kept = run(t)
    names = {best: "A", start: "B"}
    assert "".join(names[r.number] for r in read(tmp_path)[1] if r.kind == "validation") == turns
    assert kept.number == best
    assert "the start cannot bear the load with something to spare" in kept.reason
