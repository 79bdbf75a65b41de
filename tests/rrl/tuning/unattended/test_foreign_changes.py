"""What a run does where somebody changes the server by hand: it fights over no change twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envs.simulated import SimulatedServing
from rrl.interval import MeasuredInterval, Watch
from rrl.journal import read, read_ending
from rrl.measurement import Measurement
from rrl.records import NO_END
from rrl.space import Configuration
from rrl.tuning.ending import Kept
from rrl.tuning.set_by_others import SetByOthers
from rrl.tuning.settings import TuningSettings
from rrl.tuning.unattended.foreign_changes import STANDS_BACK
from tests.support.runs.tuned_runs import SPACE, Changes, LooseTuning, StopAfter, run, simulated, tuning

THEIRS = {"instances": 8, "intra_op_threads": 1}
OFF_GRID = {"instances": 5, "intra_op_threads": 1}


class ByHand(SimulatedServing):
    """Somebody sets these configurations within these intervals, in a change at their begin, or before it."""

    within: Mapping[int, Configuration] = {}
    amid: Mapping[int, Configuration] = {}  # in the middle of the change itself
    before: Mapping[int, Configuration] = {}
    asked = -1
    in_force: Configuration = {}  # noqa: RUF012
    looked: Configuration = {}  # noqa: RUF012

    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        self.asked += 1
        own = self.space.configuration(number)
        self.in_force = dict(self.before.get(self.asked, self.in_force))
        by_others = Measurement(5.0, 0, 0, 0, gap="another client changed it", gap_by_others=True)
        if watch.hands_off:
            self.looked = self.in_force = dict(self.within.get(self.asked, self.in_force))
            return MeasuredInterval(by_others, set_by_others=self.in_force)
        if watch.gives_way and self.looked and self.in_force != self.looked:
            self.looked = self.in_force
            return MeasuredInterval(by_others, set_by_others=self.in_force, gave_way=True)
        if self.asked in self.amid:
            replaced, self.looked = self.in_force, self.amid[self.asked]
            self.in_force = self.looked
            return MeasuredInterval(
                by_others, changed=True, replaced=replaced, set_by_others=self.looked, gave_way=True
            )
        replaced, self.in_force = self.in_force, own
        measured = MeasuredInterval(
            self._measurement(number, watch), changed=bool(replaced) and replaced != own, replaced=replaced
        )
        self.looked = self.in_force = dict(self.within.get(self.asked, own))
        if self.in_force != own:
            return MeasuredInterval(by_others, measured.changed, set_by_others=self.in_force)
        return measured


def by_hand(
    folder: Path,
    policy: str,
    within: Mapping[int, Configuration] | None = None,
    before: Mapping[int, Configuration] | None = None,
    proposals: tuple[int, ...] = (),
    listeners: tuple[Any, ...] = (),
    **settings: Any,
) -> tuple[LooseTuning, list[int], list[bool]]:
    """A run whose agent stays in the start, but for these proposals by decision; what it puts, and leaves."""
    env = simulated(ByHand)
    env.within, env.before = within or {}, before or {}
    put: list[int] = []
    left: list[bool] = []
    values: dict[str, Any] = {
        "intervals": 8,
        "baseline": 1,
        "validation": 0,
        "on_foreign_change": policy,
    } | settings
    t = tuning(
        folder,
        env,
        settings=TuningSettings(**values),
        put_in_force=put.append,
        leave=lambda: left.append(True),
        listeners=list(listeners),
    )
    asked = iter([*proposals, *[env.start] * 1000])
    t.agent.act = lambda observation: SPACE.action(next(asked))
    return t, put, left


def test_what_somebody_sets_is_gone_on_from_and_left_at_the_end(tmp_path: Path) -> None:
    changes = Changes()
    number = SPACE.number(THEIRS)
    t, put, _ = by_hand(tmp_path, "adopt", within={3: THEIRS}, proposals=(4,) * 3 + (number,) * 9)
    t.telling.listeners = [changes]
    kept = run(t)
    (taken,) = [change for change in changes.seen if change.decision == "adopt"]
    assert taken.after == THEIRS
    assert "another client set it: the run goes on from it" in str(taken)
    records = read(tmp_path)[1]
    assert [r.number for r in records[4:]] == [number] * (len(records) - 4)
    assert not any(r.learned for r in records[3:4])
    assert (kept.number, put) == (number, [number])
    ending = read_ending(tmp_path)
    assert ending is not None
    assert ending.kept == THEIRS


def test_after_it_the_run_may_move_on_but_leaves_it_unless_something_is_better_beyond_doubt(
    tmp_path: Path,
) -> None:
    number, worse = SPACE.number(THEIRS), SPACE.number({"instances": 4, "intra_op_threads": 1})
    t, put, _ = by_hand(tmp_path, "adopt", within={2: THEIRS}, proposals=(4, worse, worse, worse))
    assert run(t).number == number
    assert put == [number]


@pytest.mark.parametrize("phase", [0, 9])
def test_in_the_baseline_and_in_the_validation_it_is_taken_over_as_well(phase: int, tmp_path: Path) -> None:
    number = SPACE.number(THEIRS)
    settings: dict[str, Any] = {"validation": 2} if phase else {}
    best = SPACE.number({"instances": 8, "intra_op_threads": 2})
    proposals = (best,) * 8 if phase else (number,) * 8
    t, put, _ = by_hand(tmp_path, "adopt", within={phase: THEIRS}, proposals=proposals, **settings)
    assert run(t).number == number
    assert put == [number]
    records = read(tmp_path)[1]
    assert all(r.number == number for r in records[phase + 1 :])
    assert sum(r.kind == "tune" and r.counted for r in records) == 8


def test_what_is_set_right_before_a_change_is_not_replaced_by_it(tmp_path: Path) -> None:
    changes = Changes()
    t, _, _ = by_hand(tmp_path, "adopt", before={4: THEIRS}, proposals=(4, 4, 4, 5) + (6,) * 20)
    t.telling.listeners = [changes]
    run(t)
    records = read(tmp_path)[1]
    assert records[4].measurement.gap_by_others
    assert [r.number for r in records if r.left_to_others] == [records[4].number]
    made_s = [at_s for record in records for at_s in record.changed_at_s]
    assert (records[4].changed_at_s, t.limits._changed_at_s) == ((), made_s), "it is no change of the hour"
    assert records[5].number == SPACE.number(THEIRS)
    told = [(change.decision, change.after) for change in changes.seen]
    assert ("adopt", THEIRS) in told
    at = told.index(("adopt", THEIRS))
    assert changes.seen[at - 1].decision == "undone"
    assert "not made" in changes.seen[at - 1].reason


def test_what_is_set_in_the_middle_of_a_change_is_gone_on_from_and_the_change_counts(tmp_path: Path) -> None:
    changes = Changes()
    t, _, _ = by_hand(tmp_path, "adopt", proposals=(4, 4, 4, 5) + (6,) * 20)
    t.env.amid = {4: THEIRS}
    t.telling.listeners = [changes]
    run(t)
    records = read(tmp_path)[1]
    assert [r.number for r in records if r.left_to_others] == [records[4].number]
    assert not any(r.not_taken for r in records)
    assert len(records[4].changed_at_s) == 1
    assert records[5].number == SPACE.number(THEIRS)
    told = [(change.decision, change.after) for change in changes.seen]
    at = told.index(("adopt", THEIRS))
    assert changes.seen[at - 1].decision == "undone"
    assert changes.seen[at - 1].reason == "another client changed it"


def test_what_is_set_in_the_middle_of_putting_back_is_taken_over_if_it_was_put_back_before(
    tmp_path: Path,
) -> None:
    changes = Changes()
    number = SPACE.number(THEIRS)
    t, put, _ = by_hand(tmp_path, "restore", within={3: THEIRS}, proposals=(4,) * 4 + (number,) * 20)
    t.env.amid = {4: THEIRS}
    t.telling.listeners = [changes]
    assert run(t).number == number
    assert [change.decision for change in changes.seen].count("again") == 0
    assert put == [number]


def test_what_is_set_again_after_the_run_had_moved_on_is_left_alone(tmp_path: Path) -> None:
    within = {2: THEIRS, 5: THEIRS}
    t, put, left = by_hand(tmp_path, "adopt", within=within, proposals=(4, 4, 5, 5, 5))
    kept = run(t)
    assert len(read(tmp_path)[1]) == 6
    assert kept == Kept(SPACE.number(THEIRS), stopped=True)
    assert (put, left) == ([], [True])
    assert "set again" in kept.reason


def test_it_is_put_back_once_and_taken_over_when_it_is_set_again(tmp_path: Path) -> None:
    changes = Changes()
    number = SPACE.number(THEIRS)
    within = {3: THEIRS, 6: THEIRS}
    proposals = (4,) * 5 + (number,) * 20
    t, put, _ = by_hand(tmp_path, "restore", within=within, proposals=proposals)
    t.telling.listeners = [changes]
    assert run(t).number == number
    told = [change.decision for change in changes.seen]
    assert told.index("again") < told.index("adopt")
    assert told.count("again") == 1
    assert "set it again after it was put back" in changes.seen[told.index("adopt")].reason
    assert put == [number]


def test_a_run_that_is_to_stop_leaves_what_was_set(tmp_path: Path) -> None:
    t, put, left = by_hand(tmp_path, "stop", within={3: THEIRS})
    kept = run(t)
    assert kept == Kept(SPACE.number(THEIRS), stopped=True)
    assert (put, left) == ([], [True])
    assert len(read(tmp_path)[1]) == 4


def test_what_is_not_on_the_grid_ends_a_run_and_stays(tmp_path: Path) -> None:
    t, put, left = by_hand(tmp_path, "adopt", within={3: OFF_GRID})
    kept = run(t)
    assert not kept.known
    assert "not on the run's grid" in kept.reason
    assert (put, left) == ([], [True])
    assert read_ending(tmp_path) is None


def test_a_watch_stands_back_until_somebody_sets_what_it_can_go_on_from(tmp_path: Path) -> None:
    changes, stop = Changes(), StopAfter(14)
    number = SPACE.number(THEIRS)
    t, put, _ = by_hand(
        tmp_path,
        "adopt",
        within={3: OFF_GRID, 8: THEIRS},
        proposals=(4, 4) + (number,) * 50,
        listeners=(changes, stop),
        watches=True,
        intervals=NO_END,
    )
    t.stop = stop
    run(t)
    records = read(tmp_path)[1]
    assert [r.reason for r in records[4:9]] == [STANDS_BACK] * 5
    assert [r.left_to_others for r in records] == [i in range(4, 9) for i in range(len(records))]
    assert all(r.measurement.gap_by_others for r in records[3:9])
    assert [r.number for r in records[9:]] == [number] * (len(records) - 9)
    assert [change.after for change in changes.seen if change.decision == "adopt"] == [OFF_GRID, THEIRS]
    assert put == [number]


def test_a_watch_that_is_stopped_while_it_stands_back_changes_nothing(tmp_path: Path) -> None:
    stop = StopAfter(6)
    t, put, left = by_hand(
        tmp_path, "adopt", within={3: OFF_GRID}, listeners=(stop,), watches=True, intervals=NO_END
    )
    t.stop = stop
    kept = run(t)
    assert (put, left) == ([], [True])
    assert not kept.known


@pytest.mark.parametrize("policy", ["adopt", "restore"])
def test_what_was_set_since_the_last_look_is_not_replaced_at_the_end(policy: str, tmp_path: Path) -> None:
    t, _, left = by_hand(tmp_path, policy)

    def put(number: int) -> None:
        raise SetByOthers(THEIRS)

    t.end._put = put
    kept = run(t)
    assert kept.number == SPACE.number(THEIRS)
    assert left == [True]
    ending = read_ending(tmp_path)
    assert ending is not None
    assert ending.kept == THEIRS
