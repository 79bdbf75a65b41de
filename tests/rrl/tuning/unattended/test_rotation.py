"""The journal of a run that watches stays within bounds, and a run resumed from it knows what it knew."""

from __future__ import annotations

import csv
import errno
import os
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from rrl.belief.belief import Belief
from rrl.guarding.guard import Guard
from rrl.journal import read
from rrl.measurement import Measurement
from rrl.objective import MeanLatency
from rrl.records import NO_END, Record
from rrl.tuning import change_log
from rrl.tuning.change_limits import HOUR_S, ChangeLimits
from rrl.tuning.change_log import ChangeLog, times_since
from rrl.tuning.listener import Change, Listener
from rrl.tuning.settings import TuningSettings
from rrl.tuning.unattended import history
from rrl.tuning.unattended.rotation import ROTATION, RotationSettings, kept_of_old
from rrl.views.same_arrivals import StartBesideRun
from rrl.views.summary import reference_table_of, summarise
from tests.support import CHECKOUT
from tests.support.runs.simulated_runs import tuned
from tests.support.runs.tuned_runs import SPACE, LooseTuning, StopAfter, header, run, simulated, tuning

SMALL = RotationSettings(newest=60, each=3, old=20, slack=15)
SETTINGS = TuningSettings(NO_END, baseline=2, validation=0, watches=True)
BEGAN_S = 1_763_780_400.0
INTERVALS = 160


class All(Listener):
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.rotations = 0
        self.notices: list[str] = []

    def measured(self, record: Record) -> None:
        self.records.append(record)

    def rotated(self, kept: object) -> None:
        self.rotations += 1

    def notice(self, text: str) -> None:
        self.notices.append(text)


class Hours:
    """A quarter of an hour passes with each look."""

    def __init__(self) -> None:
        self.now_s = BEGAN_S

    def __call__(self) -> float:
        self.now_s += HOUR_S / 4
        return self.now_s


def watching(folder: Path, intervals: int, resume: bool = False) -> tuple[LooseTuning, All, StartBesideRun]:
    env = simulated()
    belief = Belief(SPACE, MeanLatency(), env.cores)
    guard = Guard(env.start, expectation=belief)
    beside, heard, stop = StartBesideRun(header(env), guard, belief), All(), StopAfter(intervals)
    t = tuning(
        folder,
        env,
        resume=resume,
        guard=guard,
        settings=SETTINGS,
        listeners=[beside, heard, stop],
        stop=stop,
        clock=Hours(),
        rotation=SMALL,
    )
    return t, heard, beside


@pytest.fixture(scope="module")
def rotated(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, LooseTuning, All, StartBesideRun]:
    folder = tmp_path_factory.mktemp("watch")
    t, heard, beside = watching(folder, INTERVALS)
    run(t)
    return folder, t, heard, beside


Rotated = tuple[Path, LooseTuning, All, StartBesideRun]


def test_the_journal_and_all_memories_stay_within_bounds(rotated: Rotated) -> None:
    folder, t, heard, beside = rotated
    head, records = read(folder)
    assert heard.rotations > 3
    assert len(heard.records) == INTERVALS
    assert len(records) <= SMALL.most
    assert [r.wall_time_s for r in records] == [r.wall_time_s for r in t.journal.records]
    assert len(t.guard.memory.all) <= SMALL.most + SMALL.each * len(SPACE)
    assert len(beside.at_end().records) == len(t.journal.records)
    newest = [r.wall_time_s for r in heard.records[-SMALL.newest :]]
    assert [r.wall_time_s for r in records[-SMALL.newest :]] == newest
    assert records[0].kind == "baseline"  # what the run compares with is never forgotten
    assert head.earlier is not None


def test_nothing_is_lost_from_the_counts(rotated: Rotated) -> None:
    folder, t, heard, _ = rotated
    head, records = read(folder)
    assert head.earlier is not None
    counted = Counter(r.kind for r in records if r.counted) + Counter(head.earlier["dropped"])
    assert counted == Counter(r.kind for r in heard.records if r.counted)
    assert t.finished("tune") == counted["tune"]


def test_the_hours_that_left_the_journal_are_summed_up(rotated: Rotated) -> None:
    folder, _, heard, _ = rotated
    head, records = read(folder)
    assert head.earlier is not None
    with (folder / history.FILE_NAME).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    left = len(heard.records) - (len(records) - head.earlier["kept"])
    assert sum(int(row["intervals"]) for row in rows) == left
    gone = heard.records[:left]
    assert sum(int(row["requests"]) for row in rows) == sum(r.measurement.arrivals for r in gone)
    assert sum(int(row["rollbacks"]) for row in rows) == sum(r.decision == "rollback" for r in gone)
    assert float(rows[-1]["until_unix_s"]) == gone[-1].wall_time_s
    assert rows[0]["hour"] == "2025-11-22T03:00Z"
    means = [float(row["latency_mean_ms"]) for row in rows if row["latency_mean_ms"]]
    assert all(mean > 0 for mean in means)
    assert means


def test_a_run_resumed_from_it_knows_what_it_knew(rotated: Rotated, tmp_path: Path) -> None:
    folder, t, heard, _ = rotated
    copy = tmp_path / "journal.jsonl"
    copy.write_bytes((folder / "journal.jsonl").read_bytes())
    again, _, _ = watching(tmp_path, 0, resume=True)
    run(again)
    assert again.finished("tune") == t.finished("tune")
    assert again.guard.memory.numbers == t.guard.memory.numbers
    assert not again.guard.choice.is_better(t.guard.best, again.guard.best)
    assert not t.guard.choice.is_better(again.guard.best, t.guard.best)
    full = reference_table_of(t.journal.header, heard.records)
    assert reference_table_of(*read(folder)).levels.keys() == full.levels.keys()
    for taught, record in zip(again.agent.taught, [r for r in read(folder)[1] if r.counted], strict=True):
        np.testing.assert_array_equal(taught.action, SPACE.action(record.number))


def test_its_summary_can_be_made(rotated: Rotated) -> None:
    folder, t, _, _ = rotated
    summary = summarise(*read(folder))
    assert summary.start.configuration == SPACE.configuration(t.env.start)
    assert summary.start.intervals > 0


def test_a_second_rotation_goes_on_after_a_resume(rotated: Rotated, tmp_path: Path) -> None:
    folder, _, _, _ = rotated
    for name in ("journal.jsonl", history.FILE_NAME):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    again, heard, _ = watching(tmp_path, 40, resume=True)
    again.clock.now_s += 1000 * HOUR_S  # type: ignore[attr-defined]
    run(again)
    assert heard.rotations > 0
    head, records = read(tmp_path)
    assert head.earlier is not None
    assert len(records) <= SMALL.most
    dropped = Counter(head.earlier["dropped"]).total()
    total = dropped + sum(r.counted for r in records)
    before = read(folder)
    was = Counter((before[0].earlier or {})["dropped"]).total() + sum(r.counted for r in before[1])
    assert total == was + sum(r.counted for r in heard.records)


def test_where_it_cannot_be_shortened_the_run_goes_on_with_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    t, heard, _ = watching(tmp_path, SMALL.most + 5)
    monkeypatch.setattr("rrl.journal.os.replace", full)
    run(t)
    assert heard.rotations == 0
    assert len(read(tmp_path)[1]) == SMALL.most + 5
    assert [text for text in heard.notices if "could not be shortened" in text]
    assert not (tmp_path / "journal.jsonl.new").exists()


def test_of_each_configuration_and_load_the_newest_are_kept(tmp_path: Path) -> None:
    records = tuned(tmp_path, intervals=40)[1]
    kept = kept_of_old(records, RotationSettings(each=2))
    assert kept == sorted(set(kept))
    tune = Counter(records[i].number for i in kept if records[i].kind != "baseline")
    assert tune.keys() == {r.number for r in records if r.learned}
    last = max(i for i, r in enumerate(records) if r.learned)
    assert last in kept
    assert len(kept_of_old(records, RotationSettings(each=2, old=5))) == 5


def test_hours_are_told_once_and_silence_is_counted(tmp_path: Path) -> None:
    records = tuned(tmp_path, intervals=4)[1]
    silent = replace(
        records[0],
        transition=replace(records[0].transition, measurement=Measurement(4.0, 0, 0, 0)),
        wall_time_s=records[-1].wall_time_s + 4,
    )
    history.summed_up(tmp_path, records)
    history.summed_up(tmp_path, [*records, silent])
    with (tmp_path / history.FILE_NAME).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["intervals"]) for row in rows] == [len(records), 1]
    assert [int(row["silent_intervals"]) for row in rows] == [0, 1]
    assert rows[1]["latency_mean_ms"] == ""


@pytest.mark.parametrize("set_by_s", [-7200.0, -3e8, 3e8])
def test_hours_are_told_whatever_the_clock_is_set_to(set_by_s: float, tmp_path: Path) -> None:
    records = tuned(tmp_path, intervals=4)[1]
    later = [replace(record, wall_time_s=record.wall_time_s + set_by_s) for record in records]
    history.summed_up(tmp_path, records)
    history.summed_up(tmp_path, later)
    history.summed_up(tmp_path, [*later, records[0]])  # as before a kill, and one more
    with (tmp_path / history.FILE_NAME).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["intervals"]) for row in rows) == 2 * len(records) + 1


def test_the_log_of_changes_goes_on_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "MAX_BYTES", 200)
    log = ChangeLog(tmp_path)
    for minute in range(20):
        at = datetime(2026, 11, 26, 12, minute)
        log.changed(Change(at, {"instances": 1}, {"instances": 2}, "agent", "so it was"))
    sizes = [(tmp_path / name).stat().st_size for name in ("changes.log", "changes.1.log")]
    assert max(sizes) < 400
    told = times_since(tmp_path, datetime(2026, 11, 26, 12, 18).timestamp())
    assert len(told) == 2


def test_limits_forget_what_no_hour_asks_for_any_more() -> None:
    limits = ChangeLimits(per_hour=2)
    for k in range(5000):
        limits.changed(60.0 * k)
    assert len(limits._changed_at_s) < 1500
    assert limits.next_s(60.0 * 4999) == 60.0 * 4998 + HOUR_S


def test_the_bounds_are_those_that_the_guide_states() -> None:
    guide = CHECKOUT / "docs" / "how-to" / "leave-it-running.md"
    text = guide.read_text(encoding="utf-8")
    assert f"{ROTATION.most:,} intervals" in text
    assert f"{ROTATION.newest:,} newest" in text
    assert f"{history.MAX_LINES:,} lines" in text
