from __future__ import annotations

import errno
import json
import logging
import math
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrl.agent import Transition, observe
from rrl.folder_sync import sync_folder
from rrl.journal import FILE_NAME, Journal, read, read_ending
from rrl.measurement import NOT_TOLD, ArrivalSummary, LatencySummary, Measurement, ServiceTimes
from rrl.records import Ending, Header, Record
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 4, 8])


def header(**changes: Any) -> Header:
    values = Header(
        space=SPACE,
        objective="latency",
        slo_p95_ms=None,
        agent="guided",
        seed=1,
        target="localhost:8500",
        model="minilm",
        found={"instances": 1, "max_batch_size": 1, "intra_op_threads": 2},
        start={"instances": 1, "max_batch_size": 1},
        interval_s=5.0,
        started_at="2026-01-01T00:00:00+00:00",
    )
    return replace(values, **changes)


def record(number: int = 4, cost: float = 12.5, **changes: Any) -> Record:
    measurement = Measurement(
        duration_s=4.0,
        arrivals=160,
        completions=158,
        failures=0,
        latency=LatencySummary(12.5, 11.0, 20.0, 31.0),
        telemetry=(ServiceTimes(1, 4, 40, 0.5),),
    )
    seen = observe(measurement, SPACE, number)
    values = Record(
        kind="tune",
        number=number,
        configuration=SPACE.configuration(number),
        transition=Transition(np.zeros_like(seen), SPACE.action(number), cost, seen, measurement),
        decision="agent",
        reason="",
        verdict="",
        rollback=False,
        learned=True,
        wall_time_s=1.75e9,
        decision_ms=1.5,
    )
    return replace(values, **changes)


def same(a: Record, b: Record) -> bool:
    return json.dumps(a.to_json()) == json.dumps(b.to_json())


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, header())
    written = [
        record(changed_at_s=(1.7e9, 1.7e9 + 0.25), not_taken=True, settling=record().measurement),
        record(2, math.nan, learned=False, verdict="nothing was completed", left_to_others=True),
    ]
    for r in written:
        journal.append(r)
    journal.close()
    read_header, records = read(tmp_path)
    assert read_header == header()
    assert all(same(a, b) for a, b in zip(written, records, strict=True))
    np.testing.assert_array_equal(
        records[0].transition.next_observation, written[0].transition.next_observation
    )
    assert records[0].measurement.telemetry == written[0].measurement.telemetry
    assert math.isnan(records[1].cost)
    assert [r.changed_at_s for r in records] == [r.changed_at_s for r in written]
    assert [r.not_taken for r in records] == [True, False]
    assert [r.left_to_others for r in records] == [False, True]
    assert records[0].settling is not None
    assert records[0].settling.latency == record().measurement.latency
    assert records[1].settling is None


def test_a_journal_from_before_changes_were_counted_is_read(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, header())
    journal.append(record())
    journal.close()
    path = tmp_path / FILE_NAME
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for name in ("validation", "limits"):
        del lines[0][name]
    for name in ("changed_at_s", "not_taken", "settling", "left_to_others"):
        del lines[1][name]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read_header, (only,) = read(tmp_path)
    assert (read_header.validation, read_header.limits, only.changed_at_s) == (2, None, ())


def test_arrivals_and_the_mean_number_of_busy_instances_are_read_back(tmp_path: Path) -> None:
    telemetry = (ServiceTimes(1, 4, 40, 0.5, 1.75), ServiceTimes(2, 4, 40, 0.5))
    summary = ArrivalSummary((0.0, 0.0125, 3.5), (1, 2, 1), (1, 9, 4))
    told = Measurement(4.0, 4, 4, 0, telemetry=telemetry, arrival_summary=lambda: summary, dispersion=3.25)
    written = record()
    written = replace(written, transition=replace(written.transition, measurement=told))
    journal = Journal.create(tmp_path, header())
    journal.append(written)
    journal.close()
    ((only,), measurement) = (read(tmp_path)[1], read(tmp_path)[1][0].measurement)
    assert same(only, written)
    assert measurement == told
    assert (measurement.arrival_summary, measurement.dispersion) == (summary, 3.25)


def test_a_journal_from_before_arrivals_were_told_is_read(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, header())
    journal.append(record())
    journal.close()
    path = tmp_path / FILE_NAME
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for name in ("arrival_summary", "dispersion"):
        del lines[1]["measurement"][name]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((only,)) = read(tmp_path)[1]
    assert only.measurement.arrival_summary == NOT_TOLD
    assert math.isnan(only.measurement.dispersion)
    assert math.isnan(only.measurement.telemetry[0].mean_busy)


def ended(folder: Path) -> Ending:
    """A journal of two intervals whose run left one instance in force."""
    journal = Journal.create(folder, header())
    journal.append(record(0))
    journal.append(record(1))
    ending = Ending({"instances": 1, "max_batch_size": 4}, "it was better")
    journal.end(ending)
    journal.close()
    return ending


def test_the_ending_is_read_back_and_is_no_interval(tmp_path: Path) -> None:
    ending = ended(tmp_path)
    assert read_ending(tmp_path) == ending
    assert [r.number for r in read(tmp_path)[1]] == [0, 1]


def test_a_journal_that_goes_on_has_no_ending_any_more(tmp_path: Path) -> None:
    ended(tmp_path)
    journal = Journal.open_to_resume(tmp_path, header())
    assert read_ending(tmp_path) is None
    journal.append(record(2))
    journal.close()
    assert [r.number for r in read(tmp_path)[1]] == [0, 1, 2]


def test_a_journal_that_goes_on_has_the_intervals_of_the_run_that_goes_on(tmp_path: Path) -> None:
    ended(tmp_path)
    now = header(interval_s=20.0, settle_s=3.0, intervals=100, duration_s=7200.0)
    journal = Journal.open_to_resume(tmp_path, now)
    with pytest.raises(ValueError, match="held by another rrl-tune"):
        Journal.open_to_resume(tmp_path, now)
    journal.append(record(2))
    journal.close()
    of_file, records = read(tmp_path)
    assert journal.header == of_file == now
    assert [r.number for r in records] == [r.number for r in journal.records] == [0, 1, 2]


def test_a_torn_ending_is_none(tmp_path: Path) -> None:
    ended(tmp_path)
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-5])
    assert read_ending(tmp_path) is None
    assert len(read(tmp_path)[1]) == 2


def test_an_ending_off_the_grid_is_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended(tmp_path)
    path = tmp_path / FILE_NAME
    head, _, last = path.read_text().rstrip().rpartition("\n")
    path.write_text(f"{head}\n{last.replace('1', '77')}\n")
    assert read_ending(tmp_path) is None
    assert "damaged at line" in caplog.text


def test_every_line_is_plain_json(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, header())
    journal.append(record(cost=math.inf))
    journal.close()
    for line in (tmp_path / FILE_NAME).read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


@pytest.mark.parametrize("cut_bytes", [1, 2, 50, 500])
def test_a_torn_last_line_is_dropped_with_a_warning_and_the_journal_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut_bytes: int
) -> None:
    journal = Journal.create(tmp_path, header())
    for number in range(3):
        journal.append(record(number))
    journal.close()
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    with caplog.at_level(logging.WARNING):
        journal = Journal.open_to_resume(tmp_path, header())
    assert "dropped its last line" in caplog.text
    assert [r.number for r in journal.records] == [0, 1]
    journal.append(record(5))
    journal.close()
    assert [r.number for r in read(tmp_path)[1]] == [0, 1, 5]


@pytest.mark.parametrize("damaged", ["\0\0\0", "{}", "[]", '{"left":{}}', "[" * 100_000])
def test_what_is_before_a_damaged_line_is_used_and_what_is_behind_it_is_kept_beside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    journal = Journal.create(tmp_path, header())
    for number in range(4):
        journal.append(record(number))
    journal.close()
    path = tmp_path / FILE_NAME
    lines = path.read_text().splitlines()
    lines[3] = damaged
    path.write_text("\n".join(lines) + "\n")
    whole = path.read_bytes()
    assert [r.number for r in read(tmp_path)[1]] == [0, 1]
    assert "is damaged at line 4" in caplog.text
    assert read_ending(tmp_path) is None
    journal = Journal.open_to_resume(tmp_path, header())
    journal.append(record(5))
    journal.close()
    assert [r.number for r in read(tmp_path)[1]] == [0, 1, 5]
    assert (tmp_path / "journal.damaged-1.jsonl").read_bytes() == whole


LATENCY = {"mean_ms": "slow", "p50_ms": 1, "p95_ms": 1, "p99_ms": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 999},
        {"number": -1},
        {"number": "4"},
        {"number": 3},  # not that of its configuration
        {"configuration": {"instances": 77, "max_batch_size": 4}},
        {"configuration": {"instances": 2}},
        {"action": [9, 9]},
        {"observation": [1.0]},
        {"wall_time_s": 1e300},
        {"wall_time_s": -1e12},
        {"changed_at_s": ["noon"]},
        {"rollback": "no"},
        {"measurement": {"completions": "many"}},
        {"measurement": {"latency": LATENCY}},
        {"measurement": {"telemetry": [[1, 2, "three", 4.0]]}},
        {"settling": {"gap": 5}},
    ],
)
def test_a_line_of_values_that_no_run_writes_is_damage(wrong: dict[str, Any], tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, header())
    for _ in range(2):
        journal.append(record(settling=record().measurement))
    journal.close()
    first, *others, last = journal.path.read_text().splitlines()
    values = json.loads(last)
    for name, value in wrong.items():
        values[name] = values[name] | value if name in ("measurement", "settling") else value
    journal.path.write_text("\n".join([first, *others, json.dumps(values)]) + "\n")
    assert len(read(tmp_path)[1]) == 1


@pytest.mark.parametrize("left", ["", '{"journal":"rrl-tu'])
def test_a_run_that_was_killed_before_it_began_has_left_no_journal(tmp_path: Path, left: str) -> None:
    (tmp_path / FILE_NAME).write_text(left)
    with pytest.raises(ValueError, match="is empty"):
        Journal.open_to_resume(tmp_path)
    journal = Journal.create(tmp_path, header())
    journal.append(record())
    journal.close()
    assert len(read(tmp_path)[1]) == 1


def test_a_journal_that_is_being_written_is_held_before_it_is_read(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, header())
    (tmp_path / FILE_NAME).write_text("damage")
    with pytest.raises(ValueError, match="held by another"):
        Journal.open_to_resume(tmp_path)
    journal.close()


def test_no_journal_is_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("")
    (tmp_path / FILE_NAME).symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        Journal.create(tmp_path, header())
    assert precious.read_text() == ""


def test_a_journal_with_an_agents_former_name_is_continued_under_the_present_one(tmp_path: Path) -> None:
    Journal.create(tmp_path, header(agent="rrl")).close()
    Journal.open_to_resume(tmp_path, header(agent="guided")).close()
    assert read(tmp_path)[0].agent == "guided"


@pytest.mark.parametrize(
    ("changes", "both"),
    [
        (
            {"space": ConfigurationSpace.of(instances=[1, 2, 3])},
            ["another space", "instances=1,2,max_batch_size=1,4,8", "instances=1,2,3"],
        ),
        ({"objective": "strict-slo"}, ["another objective", "latency", "strict-slo"]),
        ({"slo_p95_ms": 100.0}, ["another p95 limit", "None", "100"]),
        ({"agent": "random"}, ["another agent", "guided", "random"]),
        ({"model": "resnet"}, ["another model", "minilm", "resnet"]),
        ({"target": "localhost:8501"}, ["another target", "localhost:8500", "localhost:8501"]),
        ({"target": "embedded"}, ["another target", "localhost:8500", "embedded"]),
    ],
)
def test_a_journal_of_something_else_is_refused_saying_both(
    tmp_path: Path, changes: dict[str, object], both: list[str]
) -> None:
    Journal.create(tmp_path, header()).close()
    with pytest.raises(ValueError, match="journal") as error:
        Journal.open_to_resume(tmp_path, header(**changes))
    assert all(words in str(error.value) for words in both)
    assert "\n" not in str(error.value)


def test_a_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    Journal.create(tmp_path, header(version=99)).close()
    with pytest.raises(ValueError, match="format 99, this rrl-tune reads format 1"):
        Journal.open_to_resume(tmp_path)


def test_a_journal_of_another_version_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps(header().to_json() | {"weather": "fair", "tide": 3}) + "\n")
    sentence = "another version of rrl-tune: this one does not know its tide, weather; resume with that one"
    for opened in (read, Journal.open_to_resume):
        with pytest.raises(ValueError, match=sentence):
            opened(tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "no journal at"),
        ("", "is empty"),
        ('{"a": 1}\n', "not a journal"),
        ("[1]\n", "not a journal"),
        ("a word\n", "not a journal"),
        ("a word\nanother\n", "not a journal"),
        ('{"journal":"rrl-tune","version":1}\n', "damaged .*space"),
    ],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, text: str | None, sentence: str) -> None:
    if text is not None:
        (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ValueError, match=sentence):
        Journal.open_to_resume(tmp_path)


def test_a_journal_is_never_overwritten_nor_shared(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, header())
    with pytest.raises(ValueError, match="--resume"):
        Journal.create(tmp_path, header())
    with pytest.raises(ValueError, match="held by another rrl-tune"):
        Journal.open_to_resume(tmp_path)
    journal.close()
    Journal.open_to_resume(tmp_path).close()


@pytest.mark.parametrize(
    "changes",
    [
        {"space": 3},
        {"interval_s": "5"},
        {"found": {"instances": "1"}},
        {"start": {"instances": 9}},
        {"seed": True},
    ],
)
def test_a_header_of_wrong_types_is_one_sentence(tmp_path: Path, changes: dict[str, object]) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps(header().to_json() | changes) + "\n")
    with pytest.raises(ValueError, match="damaged") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


def test_a_journal_goes_on_under_another_name_of_this_machine(tmp_path: Path) -> None:
    Journal.create(tmp_path, header()).close()
    Journal.open_to_resume(tmp_path, header(target="127.0.0.1:8500")).close()


def test_a_new_journal_outlasts_a_power_cut_where_the_file_system_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def fsync(descriptor: int) -> None:
        """As of a share of Windows', which has it for files only."""
        synced.append(os.fstat(descriptor).st_ino)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    folder = tmp_path / "run"
    journal = Journal.create(folder, header())
    journal.close()
    assert synced == [path.stat().st_ino for path in (journal.path, folder, tmp_path)]

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(folder)


@contextmanager
def no_file_grows_beyond(length_bytes: int) -> Iterator[None]:
    """As on a disk that is full then, in the middle of a line."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_follows_a_shortening_that_may_not_outlast_a_power_cut_is_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is left to open the folder with, say: the file is in its place by then."""

    def fails(folder: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    journal = Journal.create(tmp_path, header())
    for number in range(3):
        journal.append(record(number))
    monkeypatch.setattr("rrl.journal.sync_folder", fails)
    journal.keep([2], {"kept": 0})
    journal.append(record(1))
    journal.close()
    assert [r.number for r in read(tmp_path)[1]] == [2, 1]


def test_a_line_that_the_disk_has_no_room_for_is_not_there_at_all_and_the_error_names_the_journal(
    tmp_path: Path,
) -> None:
    journal = Journal.create(tmp_path, header())
    journal.append(record())
    whole = journal.path.read_bytes()
    with no_file_grows_beyond(len(whole) + 50):
        with pytest.raises(OSError, match=r"journal\.jsonl"):
            journal.append(record())
        journal.close()
    assert journal.path.read_bytes() == whole
    assert len(journal.records) == 1
