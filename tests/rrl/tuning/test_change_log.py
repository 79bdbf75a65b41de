from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from rrl.records import Decision, Kind
from rrl.tuning.change_log import FILE_NAME, ChangeLog, times_since
from rrl.tuning.decision_words import reason_in_words
from rrl.tuning.listener import Change

AT = datetime(2026, 11, 22, 14, 3, 5)
BEFORE = {"instances": 1, "intra_op_threads": 2, "max_batch_size": 1, "max_queue_delay_us": 0}


def test_a_change_is_one_line_that_a_person_understands() -> None:
    after = BEFORE | {"instances": 2, "max_batch_size": 4, "max_queue_delay_us": 1500}
    change = Change(AT, BEFORE, after, "agent", "the agent: expects 23 ms instead of 41 ms")
    assert str(change) == (
        "2026-11-22 14:03:05  instances 1 -> 2, batch 1 -> 4, delay 0 -> 1.5 ms  "
        "the agent: expects 23 ms instead of 41 ms"
    )


def test_the_log_is_appended_to(tmp_path: Path) -> None:
    for instances in (2, 3):
        log = ChangeLog(tmp_path)  # a resumed run opens it anew
        log.changed(Change(AT, {"instances": 1}, {"instances": instances}, "agent", "the agent explores it"))
    lines = (tmp_path / FILE_NAME).read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["instances 1 -> 2", "instances 1 -> 3"]


def test_the_changes_after_a_moment_are_read_from_the_log(tmp_path: Path) -> None:
    assert times_since(tmp_path, 0.0) == []
    for second in (5, 15, 25):
        ChangeLog(tmp_path).changed(Change(AT.replace(second=second), BEFORE, BEFORE, "leave", "interrupted"))
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write("2026-11-22 14:0")  # torn
    moments = [AT.replace(second=second).timestamp() for second in (5, 15, 25)]
    assert times_since(tmp_path, 0.0) == moments
    assert times_since(tmp_path, moments[1] + 0.7) == moments[1:]  # it may have been made at 15.9 s
    assert times_since(tmp_path, moments[1] + 1.0) == moments[2:]


@pytest.mark.parametrize("torn", ["2026-11-22 14:0", "2026-11-22 14:03:04  the server refused 2 inst. ·"])
def test_a_line_torn_by_a_full_disk_hides_no_change_after_it(torn: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(torn.encode()[:-1])  # within its last character, if that has several
    ChangeLog(tmp_path).changed(
        Change(AT, BEFORE, BEFORE | {"instances": 2}, "agent", "the agent explores it")
    )
    assert times_since(tmp_path, AT.timestamp()) == [AT.timestamp()]
    assert (tmp_path / FILE_NAME).read_bytes().splitlines()[1].startswith(b"2026-11-22 14:03:05  instances 1")


def test_a_reason_that_no_file_can_hold_stops_no_change(tmp_path: Path) -> None:
    """A server's JSON may hold half of a pair of surrogates."""
    ChangeLog(tmp_path).changed(Change(AT, BEFORE, BEFORE | {"instances": 2}, "undone", "no memory \ud83d"))
    assert (tmp_path / FILE_NAME).read_text(encoding="utf-8").endswith("no memory ?\n")


def test_a_change_in_the_hour_that_comes_twice_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Berlin 02:30 was twice on 25 October 2026."""
    with monkeypatch.context() as in_berlin:
        in_berlin.setenv("TZ", "Europe/Berlin")
        time.tzset()
        twice = datetime(2026, 10, 25, 2, 30)
        for fold in (0, 1):
            ChangeLog(tmp_path).changed(Change(twice.replace(fold=fold), BEFORE, BEFORE, "agent", "why"))
        second_s = twice.replace(fold=1).timestamp()
        assert second_s - twice.timestamp() == 3600
        assert times_since(tmp_path, second_s - 60)[-1] == second_s
    time.tzset()


@pytest.mark.parametrize(
    ("kind", "decision", "reason", "words"),
    [
        ("tune", "agent", "the agent: expects 23 ms", "the agent: expects 23 ms"),
        ("tune", "agent", "", "the agent proposes it"),
        (
            "tune",
            "rollback",
            "p95 of 120 ms broke the limit of 50 ms",
            "the guard rolled back: p95 of 120 ms broke the limit of 50 ms",
        ),
        ("wait", "rollback", "the server restarted", "the guard rolled back: the server restarted"),
        ("tune", "refused", "it failed lately", "the guard refused the agent's proposal: it failed lately"),
        ("validation", "schedule", "", "validation: measures the best and the start in turns"),
        ("baseline", "schedule", "", "measures the start"),
        (
            "wait",
            "wait",
            "outside the change window: the next at 22:00:00",
            "the best known to be safe, while no change is allowed: "
            "outside the change window: the next at 22:00:00",
        ),
    ],
)  # fmt: skip
def test_every_change_has_its_reason(kind: Kind, decision: Decision, reason: str, words: str) -> None:
    assert reason_in_words(kind, decision, reason) == words
