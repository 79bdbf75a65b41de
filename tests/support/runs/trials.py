"""Runs of a comparison on a stock Triton, and what their clients saw, told by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rrl.agent import Transition, observe
from rrl.measurement import LatencySummary, Measurement
from rrl.records import Header, Record
from rrl.space import ConfigurationSpace
from scripts.benchmarks.triton.head_to_head_report import FIXED, Trial, WorkloadCase
from scripts.benchmarks.triton.head_to_head_trials import TrialPlan
from scripts.figures.head_to_head import run_row
from scripts.serving.served_agents import TunedRun, cheapest
from tests.support.client_requests import requests

SPACE = ConfigurationSpace.of(instances=[1, 2, 3, 4])
START, BEST, NEARLY, BAD = range(4)
INTERVAL_S = 10.0
TRUE_MS = {START: 40.0, BEST: 10.0, NEARLY: 10.4, BAD: 100.0}


def record(
    number: int, k: int = 0, kind: str = "tune", cost: float | None = None, aborted: str = ""
) -> Record:
    """The interval k of a run, measured from its second second to its end."""
    cost = TRUE_MS[number] if cost is None else cost
    measurement = Measurement(8.0, 8, 8, 0, LatencySummary(mean_ms=cost), aborted=aborted)
    seen = observe(measurement, SPACE, number)
    return Record(
        kind=kind,  # type: ignore[arg-type]
        number=number,
        configuration=SPACE.configuration(number),
        transition=Transition(seen, SPACE.action(number), cost, seen, measurement),
        decision="agent",
        reason="",
        verdict="",
        rollback=False,
        learned=True,
        wall_time_s=(k + 1) * INTERVAL_S,
    )


def trial(name: str, numbers: Sequence[int], left: int, baseline: int = 1) -> Trial:
    """A run that had these configurations in force, and what its clients saw of them."""
    records = [record(n, k, "baseline" if k < baseline else "tune") for k, n in enumerate(numbers)]
    header = Header(SPACE, "latency", None, name, 0, "host:1", "m", {}, {}, INTERVAL_S, "")
    latencies_ms = [TRUE_MS[n] for n in numbers for _ in range(int(INTERVAL_S))]
    choices = tuple(cheapest(records[: k + 1]) for k in range(len(records)))
    return Trial(name, TunedRun(header, records, left, choices), left, requests(latencies_ms))


def case(*trials: Trial, finals: Sequence[int] = (START, BEST, NEARLY, BAD)) -> WorkloadCase:
    fixed = Trial(FIXED, None, START, requests([TRUE_MS[START]] * 60))
    measured = {n: [requests([TRUE_MS[n]] * 20), requests([TRUE_MS[n]] * 20)] for n in finals}
    by_name = {t.name: t for t in (*trials, fixed)}
    return WorkloadCase("minilm", "poisson", 0, 1.0, SPACE, START, 60.0, by_name, measured)


def kept_row(of: WorkloadCase) -> dict[str, Any]:
    return run_row(
        of.to_json(), TrialPlan(4, INTERVAL_S).setting() | {"asked_rate_per_s": None, "commit": "12ab"}
    )
