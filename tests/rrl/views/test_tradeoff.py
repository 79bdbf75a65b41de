"""What a run tells of latency, answers and threads together."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from rrl.views import tradeoff
from rrl.views.front_table import front_table
from rrl.views.tradeoff import Tradeoff, TradeoffPoint
from tests.support.runs import simulated_runs as runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return runs.tuned(tmp_path_factory.mktemp("run"))


def point(number: int, threads: int, latency_ms: float, answered_per_s: float = 10.0) -> TradeoffPoint:
    return TradeoffPoint(number, {"instances": number}, threads, latency_ms, answered_per_s, 1)


def test_the_front_is_what_no_other_one_beats() -> None:
    points = (
        point(0, 1, 90.0),
        point(1, 2, 40.0),
        point(2, 2, 60.0),  # as many threads, slower
        point(3, 4, 40.0),  # as fast, more threads
        point(4, 4, 70.0, 20.0),  # slower, but more answers
        point(5, 8, 30.0),
    )
    measured = Tradeoff(points, "p95", (9.0, 11.0))
    assert [each.number for each in measured.front] == [0, 1, 4, 5]
    alike = (point(0, 1, 50.0), point(1, 1, 50.0))
    assert Tradeoff(alike, "p95", (9.0, 11.0)).front == alike


def test_every_configuration_measured_is_on_the_front_or_beaten_by_one_that_is(run: runs.Run) -> None:
    header, records = run
    measured = Tradeoff.of(header, records)
    assert {each.number for each in measured.points} == {r.number for r in records if r.learned}
    assert measured.statistic == "p95"
    for each in measured.points:
        beaten = any(other.dominates(each) for other in measured.front)
        assert beaten is (each not in measured.front)
        assert each.threads == each.configuration["instances"]


def test_under_the_users_load_answers_tell_apart_only_what_does_not_bear_it(run: runs.Run) -> None:
    header, records = run
    borne = [runs.measured(r, completions=r.measurement.arrivals) for r in records]
    measured = Tradeoff.of(header, borne)
    assert not measured.answers_differ
    slow = measured.points[0].number
    left = [
        runs.measured(r, completions=r.measurement.arrivals // 2) if r.number == slow else r for r in borne
    ]
    few = {each.number: each.answered_per_s for each in Tradeoff.of(header, left).points}
    assert few.pop(slow) == pytest.approx(0.5 * next(iter(few.values())), rel=0.02)


def test_under_a_closed_loop_all_is_one_load_and_answers_count_as_they_came(run: runs.Run) -> None:
    header, records = run
    closed = replace(header, load={"concurrency": 4, "bench": True})
    fast = [runs.measured(r, arrivals=r.measurement.arrivals * (1 + 3 * r.number)) for r in records]
    assert len(Tradeoff.of(closed, fast).points) > len(Tradeoff.of(header, fast).points)
    assert Tradeoff.of(closed, fast).answers_differ


def test_a_target_without_percentiles_is_compared_by_the_mean(run: runs.Run) -> None:
    measured = Tradeoff.of(*runs.without_percentiles(run))
    assert measured.statistic == "mean"
    assert all(each.latency_ms > 0 for each in measured.points)


def test_a_run_that_measured_nothing_has_no_front(run: runs.Run) -> None:
    nothing = Tradeoff.of(run[0], [])
    assert nothing.front == ()
    assert front_table(nothing) is None


def test_the_file_names_configurations_as_model_analyzers_files_do(run: runs.Run, tmp_path: Path) -> None:
    header, records = replace(run[0], slo_p95_ms=100.0), run[1]
    measured = Tradeoff.of(header, records)
    tradeoff.write(tmp_path / "pareto.csv", header, measured)
    with (tmp_path / "pareto.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(measured.points)
    assert f"{header.model}_config_default" in {row["Model Config Path"] for row in rows}
    for row, each in zip(rows, measured.points, strict=True):
        assert int(row["threads"]) == each.threads
        assert int(row["max_batch_size"]) == each.configuration["max_batch_size"]
        assert float(row["p95_ms"]) == pytest.approx(each.latency_ms, abs=0.001)
        assert row["satisfies_limit"] == ("Yes" if each.latency_ms <= 100.0 else "No")
        assert row["on_front"] == ("Yes" if each in measured.front else "No")


def test_the_terminal_shows_a_front_of_two_or_more(run: runs.Run) -> None:
    measured = Tradeoff((point(0, 1, 90.0), point(1, 2, 40.0), point(2, 2, 60.0)), "p95", (9.0, 11.0))
    table = front_table(measured)
    assert table is not None
    assert table.row_count == 2
    assert front_table(replace(measured, points=measured.points[1:])) is None
