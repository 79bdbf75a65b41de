"""What a run expects of loads and limits that it never had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rrl.objective import LeastResources, StrictSLO
from rrl.views import what_if
from rrl.views.summary import summarise
from rrl.views.what_if import Learned
from tests.support.runs import simulated_runs as runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return runs.tuned(tmp_path_factory.mktemp("run"))


def learned_from(run: runs.Run, **header_values: object) -> Learned:
    header, records = replace(run[0], **header_values), run[1]  # type: ignore[arg-type]
    summary = summarise(header, records)
    found = Learned.of(header, records, summary.belief, summary.kept)
    assert found is not None
    return found


@pytest.mark.parametrize("rate_per_s", [25.0, 70.0])
def test_what_is_expected_of_another_load_is_what_that_load_brings(
    run: runs.Run, tmp_path: Path, rate_per_s: float
) -> None:
    learned = learned_from(run)
    kept = learned.ask(load=rate_per_s).kept
    _, there = runs.tuned(tmp_path, intervals=1, rate_per_s=rate_per_s, start=kept.configuration)
    seen = [r.measurement.latency.p95_ms for r in there if r.configuration == kept.configuration]
    assert len(seen) >= 3
    assert kept.borne
    assert kept.p95_ms == pytest.approx(float(np.mean(seen)), rel=0.25)
    assert kept.p95_low_ms < kept.p95_ms < kept.p95_high_ms


def test_a_load_beyond_those_seen_is_said_to_be_one(run: runs.Run) -> None:
    learned = learned_from(run)
    low, high = learned.loads_seen
    assert not learned.ask(load=high).extrapolates
    for load in (low / 1.3, 1.3 * high):
        answer = learned.ask(load=load)
        assert answer.extrapolates
        assert "no such load was seen" in answer.doubts


def test_what_nothing_bears_is_said_to_be_so(run: runs.Run) -> None:
    answer = learned_from(run).ask(load=5000.0)
    assert not answer.best[0].borne
    assert answer.doubts[0] == "none is expected to bear it"


def test_higher_loads_and_tighter_limits_take_more_threads(run: runs.Run) -> None:
    learned = learned_from(run)
    wide, tight = (learned.ask(LeastResources(limit_ms)).best[0] for limit_ms in (2000.0, 120.0))
    assert wide.threads <= tight.threads
    calm, busy = (learned.ask(LeastResources(500.0), load).best[0] for load in (5.0, 250.0))
    assert calm.threads == 1 < busy.threads
    impossible = learned.ask(StrictSLO(1.0))
    assert not impossible.keeps_limit
    assert "none is expected to keep the limit" in impossible.doubts


def test_of_a_large_grid_the_best_of_each_number_of_threads_is_compared(
    run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = learned_from(run)
    monkeypatch.setattr(what_if, "COMPARED", 4)
    answer = learned.ask(LeastResources(2000.0), load=5.0, count=4)
    assert {outlook.threads for outlook in answer.best} == {1, 2, 4}


def test_asking_teaches_nothing(run: runs.Run) -> None:
    learned = learned_from(run)
    before = learned.ask(count=3)
    learned.ask(StrictSLO(50.0), load=100.0)
    assert learned.ask(count=3) == before
    assert learned.load == pytest.approx(45.0, rel=0.15)


def test_what_is_beyond_the_budget_or_was_refused_is_not_advised(run: runs.Run) -> None:
    header, records = run
    learned = learned_from((header, records), limits={"cores": 2})
    assert all(
        outlook.threads <= 2 or outlook.configuration == learned.kept
        for outlook in learned.ask(count=len(header.space)).best
    )
    best = learned_from(run).ask(load=25.0).best[0].configuration
    refused = [replace(r, not_taken=r.configuration == best) for r in records]
    asked = learned_from((header, refused))
    assert best == asked.kept or asked.ask(load=25.0).best[0].configuration != best


def test_of_a_closed_loop_the_load_is_requests_at_once(run: runs.Run) -> None:
    header, records = run
    closed = learned_from((header, records), load={"concurrency": 2, "bench": True}, objective="throughput")
    assert closed.load == 2
    few, many = closed.ask().best[0], closed.ask(load=8.0).best[0]
    assert many.cost < few.cost  # more answers per second
    assert closed.ask(load=8.0).extrapolates
    with pytest.raises(ValueError, match="at most 4096 requests at once"):
        closed.ask(load=1e6)


def test_knobs_are_ranked_by_what_the_run_believes(run: runs.Run) -> None:
    found = learned_from(run).importances()
    assert {knob.name for knob in found.knobs} == {"instances", "max_batch_size"}
    assert sum(knob.share for knob in found.knobs) + found.together == pytest.approx(1.0)
    assert found.knobs[0].share >= found.knobs[1].share


def test_a_run_that_learned_nothing_cannot_be_asked(run: runs.Run) -> None:
    header = run[0]
    summary = summarise(header, [])
    assert Learned.of(header, [], summary.belief, summary.kept) is None
