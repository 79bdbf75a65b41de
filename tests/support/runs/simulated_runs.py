"""Journals of many kinds for the tests of what a run exports, made by the tuner over a simulated server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from envs.simulated import SimulatedServing
from rrl.agent import Agent
from rrl.guarding.guard import Guard
from rrl.journal import Journal, read
from rrl.measurement import LatencySummary
from rrl.queueing.machine import Machine
from rrl.records import Header, Record
from rrl.space import ConfigurationSpace, Knob
from rrl.tuning.loop import Tuning
from rrl.tuning.settings import TuningSettings
from rrl.views.summary import RunSummary

SPACE = ConfigurationSpace.of(instances=[1, 2, 4], max_batch_size=[1, 8])
ONE_INSTANCE = {"instances": 1, "max_batch_size": 1}
BEGUN_S = 1_763_780_400.0
INTERVAL_S = 4.0
FOUND = """name: "minilm"
max_batch_size: 1
instance_group {
  count: 1
  kind: KIND_CPU
}
dynamic_batching {
}
backend: "python"
"""

Run = tuple[Header, list[Record]]


class Sweeper(Agent):
    """Proposes every configuration in turn, and says so."""

    def __init__(self, space: ConfigurationSpace = SPACE) -> None:
        self._space = space
        self._next = 0

    def act(self, observation: np.ndarray) -> np.ndarray:
        self._next += 1
        return self._space.action(self._next % len(self._space))

    def update(self, transition: object) -> None:
        pass

    def explain(self) -> str:
        return f"it is the turn of {self._next % len(self._space)}"


def tuned(
    folder: Path,
    intervals: int = 12,
    rate_per_s: float = 45.0,
    start: dict[str, int] | None = None,
    space: ConfigurationSpace = SPACE,
    **header_values: Any,
) -> Run:
    """A finished run: one instance just bears 45 requests a second, two or four do better."""
    one = np.array([1])
    times_s = np.array([[[[20, 40], [25, 50], [60, 90]]]]) / 1e3
    machine = Machine(one, one, np.array([1, 2, 4]), np.array([1, 8]), times_s)
    start = start or ONE_INSTANCE
    env = SimulatedServing(machine, space, arrivals=rate_per_s, interval_s=INTERVAL_S, start=start)
    env.np_random = np.random.default_rng(3)
    header = Header(
        space=space, objective="latency", slo_p95_ms=None, agent="sweep", seed=7, target="localhost:8001",
        model="minilm", found=start, start=start, interval_s=INTERVAL_S, intervals=intervals,
        started_at="2025-11-22T03:00:00+00:00", found_config_pbtxt=FOUND,
    )  # fmt: skip
    header = replace(header, **header_values)
    journal = Journal.create(folder, header, synced=False)
    settings = TuningSettings(intervals=intervals, baseline=3, validation=header.validation)
    Tuning(env, Sweeper(space), Guard(env.start), journal, settings).run()
    journal.close()
    header, records = read(folder)
    return header, punctual(records)


def punctual(records: Sequence[Record]) -> list[Record]:
    """The same intervals, one behind the other in real time."""
    return [
        replace(r, wall_time_s=BEGUN_S + INTERVAL_S * (i + 1), changed_at_s=(), apply_ms=120.0)
        for i, r in enumerate(records)
    ]


def written(folder: Path, run: Run) -> Path:
    """The journal of a run, in a folder of its own."""
    header, records = run
    (folder / "journal.jsonl").unlink(missing_ok=True)
    journal = Journal.create(folder, header, synced=False)
    for record in records:
        journal.append(record)
    journal.close()
    return folder


def measured(record: Record, **values: Any) -> Record:
    """The record with another measurement."""
    measurement = replace(record.measurement, **values)
    return replace(record, transition=replace(record.transition, measurement=measurement))


def without_percentiles(run: Run) -> Run:
    """As a stock Triton tells it."""

    def mean_of(summary: LatencySummary) -> LatencySummary:
        return LatencySummary(mean_ms=summary.mean_ms)

    header, records = run
    return header, [
        measured(
            r,
            latency=mean_of(r.measurement.latency),
            queue=mean_of(r.measurement.queue),
            service=mean_of(r.measurement.service),
        )
        for r in records
    ]


def troubled(run: Run) -> Run:
    """The target was away for two intervals, one was aborted, requests failed, a proposal was refused."""
    header, records = run
    changes: dict[int, Callable[[Record], Record]] = {
        5: lambda r: _away(r, "the server was restarted"),
        6: lambda r: _away(r, "the server does not answer (connection refused)"),
        7: lambda r: replace(r, decision="rollback", reason="the server does not answer"),
        8: lambda r: measured(r, aborted="the queue is running away: 90 more requests waiting after 1.2 s"),
        9: lambda r: replace(r, decision="rollback", reason="the queue is running away"),
        10: lambda r: measured(r, failures=4),
        11: lambda r: replace(r, decision="refused", reason="it was aborted or failed lately"),
    }
    return header, [changes.get(i, lambda r: r)(r) for i, r in enumerate(records)]


def unanswered(run: Run) -> Run:
    """One interval of the start, in which requests came and none was answered."""
    header, (first, *_) = run
    nothing = LatencySummary()
    first = measured(first, arrivals=10, completions=0, latency=nothing, queue=nothing, service=nothing)
    transition = replace(first.transition, cost=float("nan"))
    return header, [replace(first, learned=False, verdict="nothing was completed", transition=transition)]


def _away(record: Record, why: str) -> Record:
    nothing = LatencySummary()
    record = measured(
        record, gap=why, arrivals=0, completions=0, latency=nothing, queue=nothing, service=nothing
    )
    transition = replace(record.transition, cost=float("nan"))
    return replace(record, learned=False, rollback=True, verdict=why, transition=transition)


def with_ten_more_knobs(run: Run) -> Run:
    """The same of a target that has ten more, of long names and large values, that stay as they are."""
    header, records = run
    more = tuple(Knob(f"group_timeout_{k}_us", (1000, 100_000)) for k in range(10))
    space = ConfigurationSpace((*header.space.knobs, *more))
    own = {knob.name: 100_000 for knob in more}
    header = replace(header, space=space, start=header.start | own, found=header.found | own)
    wider = []
    for record in records:
        number = space.number(configuration := record.configuration | own)
        transition = replace(record.transition, action=space.action(number))
        wider.append(replace(record, number=number, configuration=configuration, transition=transition))
    return header, wider


def at_usual_start(summary: RunSummary, run: Run) -> RunSummary:
    """The summary with the start's mean latency for every interval of this run."""
    return replace(summary, start_ms=[[summary.start.mean_ms] * len(r.with_settling) for r in run[1]])


def repeated(run: Run, count: int) -> Run:
    """So many intervals: the tuning intervals of a run again and again."""
    header, records = run
    tune = [r for r in records if r.kind == "tune"]
    many = [*records[:3], *(tune[i % len(tune)] for i in range(count - 3))]
    return replace(header, intervals=count - 3), punctual(many)
