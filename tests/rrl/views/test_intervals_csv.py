from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrl.views import intervals_csv
from tests.support.full_disk import files_of_at_most
from tests.support.runs import simulated_runs as runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return runs.tuned(tmp_path_factory.mktemp("run"))


def table(path: Path, run: runs.Run) -> list[dict[str, str]]:
    intervals_csv.write(path, *run)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_there_is_a_row_an_interval_with_what_the_journal_tells(run: runs.Run, tmp_path: Path) -> None:
    records = run[1]
    rows = table(tmp_path / "intervals.csv", run)
    assert [int(row["interval"]) for row in rows] == list(range(1, len(records) + 1))
    for row, record in zip(rows, records, strict=True):
        m = record.measurement
        assert (row["kind"], row["decision"]) == (record.kind, record.decision)
        assert {name: int(row[name]) for name in record.configuration} == record.configuration
        assert (int(row["arrivals"]), int(row["completions"])) == (m.arrivals, m.completions)
        for name, value in (
            ("arrivals_per_s", m.arrival_rate_per_s),
            ("mean_ms", m.latency.mean_ms),
            ("p99_ms", m.latency.p99_ms),
            ("queue_ms", m.queue.mean_ms),
            ("service_ms", m.service.mean_ms),
            ("cost", record.cost),
        ):
            assert float(row[name]) == pytest.approx(value)
        assert row["learned"] == str(record.learned).lower()
    assert [float(row["elapsed_s"]) for row in rows][:2] == [runs.INTERVAL_S, 2 * runs.INTERVAL_S]
    assert rows[0]["ended_at"] == "2025-11-22T03:00:04.000+00:00"


def test_it_tells_where_the_configuration_changed(run: runs.Run, tmp_path: Path) -> None:
    rows = table(tmp_path / "intervals.csv", run)
    numbers = [run[0].space.number(run[0].start), *(record.number for record in run[1])]
    changed = np.diff(numbers) != 0
    assert [row["changed"] == "true" for row in rows] == changed.tolist()
    assert changed.any()


@pytest.mark.parametrize("why", [{"not_taken": True}, {"left_to_others": True}])
def test_what_did_not_come_into_force_is_no_change(
    run: runs.Run, tmp_path: Path, why: dict[str, Any]
) -> None:
    header, records = run
    kept = [record for record in records if record.configuration == header.start][:2]
    other = next(record for record in records if record.configuration != header.start)
    rows = table(tmp_path / "intervals.csv", (header, [kept[0], replace(other, **why), kept[1]]))
    assert [row["changed"] for row in rows] == ["false"] * 3


def test_what_was_not_seen_is_empty_and_no_text_is_a_formula(run: runs.Run, tmp_path: Path) -> None:
    header, records = runs.troubled(runs.without_percentiles(run))
    records[0] = replace(
        records[0], reason="=HYPERLINK(1)", verdict='two\nlines, "quoted"', decision_ms=math.nan
    )
    rows = table(tmp_path / "intervals.csv", (header, records))
    assert len(rows) == len(records)
    assert rows[0]["p95_ms"] == rows[0]["decision_ms"] == rows[5]["mean_ms"] == rows[5]["cost"] == ""
    assert rows[0]["reason"] == "'=HYPERLINK(1)"
    assert rows[0]["verdict"] == 'two\nlines, "quoted"'
    assert rows[5]["gap"] == "the server was restarted"
    assert rows[5]["counted"] == "false"


def test_no_interval_leaves_the_names_of_the_columns(run: runs.Run, tmp_path: Path) -> None:
    assert table(tmp_path / "intervals.csv", (run[0], [])) == []
    names = (tmp_path / "intervals.csv").read_text().strip().split(",")
    assert {"interval", "instances", "max_batch_size", "p95_ms", "reason"} <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1+1", "\r=1+1", " =1+1", "\n@x"])
def test_no_text_is_a_formula_behind_blanks_either(text: str) -> None:
    assert intervals_csv._cell(text) == f"'{text}"


def test_half_a_surrogate_in_a_reason_ends_no_table(run: runs.Run, tmp_path: Path) -> None:
    header, records = run
    told = [replace(record, reason="no file \udcff") for record in records]
    rows = table(tmp_path / "intervals.csv", (header, told))
    assert {row["reason"] for row in rows} == {"no file ?"}


def test_a_full_disk_leaves_the_earlier_table_as_it_was(run: runs.Run, tmp_path: Path) -> None:
    path = tmp_path / "intervals.csv"
    before = table(path, run)
    with files_of_at_most(100), pytest.raises(OSError, match="too large"):
        intervals_csv.write(path, *run)
    with path.open(encoding="utf-8", newline="") as file:
        assert list(csv.DictReader(file)) == before
    assert list(tmp_path.iterdir()) == [path]
