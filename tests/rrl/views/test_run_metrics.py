"""What a run tells Prometheus of itself: by parsing its page, beside its journal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rrl.journal import read
from rrl.records import Header, Record
from rrl.tuning.decision_words import who_decided
from rrl.tuning.listener import Change
from rrl.tuning.settings import TuningSettings
from rrl.views.run_metrics import RunMetrics
from tests.support.runs.simulated_runs import measured, tuned
from tests.support.runs.tuned_runs import SPACE, header, metrics_of, run, simulated, tuning

Page = dict[tuple[str, tuple[str, ...]], float]


def page(metrics: RunMetrics) -> Page:
    registry = CollectorRegistry()
    registry.register(metrics)
    return dict(_samples(generate_latest(registry).decode()))


def _samples(text: str) -> Iterator[tuple[tuple[str, tuple[str, ...]], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield (sample.name.removeprefix("rrl_tune_"), tuple(sample.labels.values())), sample.value


def test_the_page_of_a_run_is_what_its_journal_holds(tmp_path: Path) -> None:
    env = simulated()
    metrics = metrics_of(header(env), SPACE.configuration(env.start))
    metrics.start_ms = lambda: [100.0]
    t = tuning(tmp_path, env, listeners=[metrics], settings=TuningSettings(12, baseline=2, validation=0))
    kept = run(t)
    records, told = read(tmp_path)[1], page(metrics)
    for kind, count in Counter(r.kind for r in records).items():
        assert told["intervals_total", (kind,)] == count
    for who, count in Counter(who_decided(r.decision) for r in records).items():
        assert told["decisions_total", (who,)] == count
    for knob, value in SPACE.configuration(kept.number).items():
        assert told["knob_in_force", (knob,)] == value
    last = records[-1].measurement
    assert told["arrivals_per_second", ()] == pytest.approx(last.arrival_rate_per_s)
    assert told["latency_mean_seconds", ()] == pytest.approx(last.latency.mean_ms / 1e3)
    assert told["latency_p95_seconds", ()] == pytest.approx(last.latency.p95_ms / 1e3)
    assert told["latency_p99_seconds", ()] == pytest.approx(last.latency.p99_ms / 1e3)
    assert told["queue_mean_seconds", ()] == pytest.approx(last.queue.mean_ms / 1e3)
    assert told["backlog_requests", ()] == last.backlog
    assert told["cost_seconds", ()] == pytest.approx(records[-1].cost / 1e3)
    assert told["rollbacks_total", ()] == sum(r.decision == "rollback" for r in records) > 0
    assert told["aborted_intervals_total", ()] == sum(bool(r.measurement.aborted) for r in records)
    assert told["decision_seconds_total", ()] == pytest.approx(
        sum(r.decision_ms for r in records if math.isfinite(r.decision_ms)) / 1e3
    )
    beyond_s = sum(
        max(0.0, (r.measurement.latency.mean_ms - 100.0) * r.measurement.completions / 1e3)
        for r in records
        if r.kind == "tune" and math.isfinite(r.measurement.latency.mean_ms)
    )
    assert told["exploration_cost_request_seconds_total", ()] == pytest.approx(beyond_s)
    assert told["target_up", ()] == 1
    assert told["silence_seconds", ()] == 0
    assert ("latency_limit_seconds", ()) not in told


def test_the_guards_changes_count_and_those_never_made_do_not() -> None:
    env = simulated()
    metrics = metrics_of(header(env), SPACE.configuration(env.start))
    found, other = SPACE.configuration(0), SPACE.configuration(1)
    told = (
        (found, other, "agent"),
        (other, found, "refused"),
        (found, other, "agent"),
        (other, found, "undone"),
    )
    for before, after, decision in told:
        metrics.changed(Change(datetime.now(UTC), before, after, decision, "why"))
    counted = {labels: value for (name, labels), value in page(metrics).items() if name == "changes_total"}
    assert counted == {("agent",): 2, ("refused",): 1}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    return tuned(tmp_path_factory.mktemp("run"), intervals=3)[1]


def test_a_target_that_is_away_and_silence_are_told(records: list[Record]) -> None:
    moment = [100.0]
    metrics = metrics_of(header(simulated()), {}, clock=lambda: moment[0])
    silent = measured(records[1], arrivals=0, completions=0, backlog=0, duration_s=4.0)
    for record in (records[0], silent, silent):
        metrics.measured(record)
    assert page(metrics)["silence_seconds", ()] == 8
    assert page(metrics)["silent_intervals_total", ()] == 2
    metrics.measured(records[2])
    assert page(metrics)["silence_seconds", ()] == 0
    moment[0] += 7
    assert metrics.quiet_s == 7
    metrics.away("it does not answer")
    assert metrics.quiet_s == 0
    assert page(metrics)["target_up", ()] == 0
    metrics.measured(measured(records[1], gap="the server restarted"))
    assert page(metrics)["target_up", ()] == 0
    assert ("latency_mean_seconds", ()) not in page(metrics)
    metrics.measured(records[2])
    assert page(metrics)["target_up", ()] == 1


def test_a_limit_and_threads_have_their_units(records: list[Record]) -> None:
    least = replace(header(simulated()), objective="least-resources", slo_p95_ms=50.0)
    metrics = metrics_of(least, {})
    metrics.measured(records[0])
    told = page(metrics)
    assert told["latency_limit_seconds", ()] == 0.05
    assert told["cost_threads", ()] == records[0].cost
    assert ("cost_seconds", ()) not in told


def test_every_series_names_its_unit_or_counts(records: list[Record]) -> None:
    metrics = metrics_of(limited(), {"instances": 2})
    metrics.measured(records[0])
    ends = ("_total", "_seconds", "_per_second", "_info", "_in_force", "_up", "_threads", "_requests")
    assert all(name.endswith(ends) for name, _ in page(metrics))


def limited() -> Header:
    return replace(header(simulated()), slo_p95_ms=50.0)


def test_before_the_target_has_answered_a_run_tells_that_alone() -> None:
    moment = [0.0]
    metrics = RunMetrics(clock=lambda: moment[0])
    told = page(metrics)
    assert told["target_up", ()] == 0
    assert told["silent_intervals_total", ()] == 0
    assert not {name for name, _ in told} & {"run_info", "knob_in_force"}
    moment[0] = 5.0
    metrics.reached()
    assert page(metrics)["target_up", ()] == 1
    assert metrics.quiet_s == 0


def test_nothing_is_told_of_intervals_before_the_first() -> None:
    told = page(metrics_of(header(simulated()), {"instances": 2}))
    assert told["knob_in_force", ("instances",)] == 2
    assert ("arrivals_per_second", ()) not in told
    assert told["silent_intervals_total", ()] == 0
