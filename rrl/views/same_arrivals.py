"""What the start would have cost in each interval of a run: at the same arrivals and the same machine speed.

It is asked of a belief that learns the records of the journal in their order. Where nothing is known yet, the
mean latency measured at the start stands for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rrl.belief.belief import Belief
from rrl.guarding.expectation import gain_of_logs
from rrl.guarding.gain import UNKNOWN, Gain
from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.journal import Header, Record
from rrl.measurement import Measurement
from rrl.objective import MeanLatency, make_objective
from rrl.views.exploration_cost import StartLatencies, part_of


class StartBeside(NamedTuple):
    """The start in an interval of another configuration."""

    log_cost: float  # expected; NaN where it is not known
    sd: float  # of that
    latencies_ms: tuple[float, ...]  # mean latency while the change settled, if there was one, and then


@dataclass(frozen=True)
class SameArrivals:
    """A run as it is known at its end."""

    guard: Guard  # has seen all of it
    records: Sequence[Record]
    beside: Sequence[StartBeside]  # by record

    @property
    def start_ms(self) -> StartLatencies:
        return [each.latencies_ms for each in self.beside]

    def start_latency_ms(self, among: Sequence[Record]) -> float:
        """The start's mean latency at the arrivals of these intervals; NaN where it is not known."""
        told = [(r.measurement.completions, each.latencies_ms[-1]) for r, each in self._of(among)]
        told = [(weight, ms) for weight, ms in told if weight and math.isfinite(ms)]
        total = sum(weight for weight, _ in told)
        return sum(weight * ms for weight, ms in told) / total if total else math.nan

    def gain(self, among: Sequence[Record]) -> Gain:
        """How many times less these intervals cost than they would have with the start."""
        told = [
            (r.measurement.completions, math.exp(each.log_cost), r.cost, each.sd)
            for r, each in self._of(among)
            if math.isfinite(each.log_cost) and r.cost > 0
        ]
        if not told:
            return UNKNOWN
        weights, of_start, own, sds = np.array(told).T
        return gain_of_logs(math.log((weights @ of_start) / (weights @ own)), float(np.average(sds)))

    def _of(self, among: Sequence[Record]) -> list[tuple[Record, StartBeside]]:
        ids = set(map(id, among))
        pairs = zip(self.records, self.beside, strict=True)
        return [(record, each) for record, each in pairs if id(record) in ids]


def at_same_arrivals(
    header: Header, records: Sequence[Record], settings: GuardSettings | None = None
) -> SameArrivals:
    """Replays a journal's records."""
    objective = make_objective(header.objective, header.slo_p95_ms)
    belief = Belief(header.space, objective, header.cores)
    latencies = belief
    if objective != MeanLatency():
        latencies = Belief(header.space, MeanLatency(), header.cores)
    is_latency = objective.unit == "ms"
    settings = settings or GuardSettings(slo_p95_ms=header.slo_p95_ms, cost_is_latency=is_latency)
    guard = Guard(header.space.number(header.start), settings, expectation=belief)
    beside: list[StartBeside] = []
    before = guard.start
    for record in records:
        guard.replay(record)
        if latencies is not belief and record.counted:
            latencies.learn(record.number, record.measurement)
        told = _beside(record, guard, belief, latencies)
        if before == guard.start != record.number and record.settling is not None:
            settled_ms = _left_waiting(record.settling, told.latencies_ms[0])
            told = told._replace(latencies_ms=(settled_ms, *told.latencies_ms[1:]))
        beside.append(told)
        before = record.number
    return SameArrivals(guard, records, beside)


def _beside(record: Record, guard: Guard, belief: Belief, latencies: Belief) -> StartBeside:
    seen, start = record.with_settling, np.array([guard.start])
    if record.number == guard.start:
        return StartBeside(math.nan, math.nan, tuple(each.latency.mean_ms for each in seen))
    if part_of(record) is None or not belief.known:
        return StartBeside(math.nan, math.nan, (guard.memory.start_latency_ms,) * len(seen))
    costs, sds = belief.log_costs(start, _fresh(record.measurement))
    logs = [latencies.log_costs(start, _fresh(each))[0] for each in seen]
    return StartBeside(float(costs[0]), float(sds[0]), tuple(math.exp(float(log[0])) for log in logs))


def _left_waiting(settling: Measurement, start_ms: float) -> float:
    """The start's mean latency while a change away from it settled: what had waited already was its own."""
    waited = settling.backlog - settling.backlog_growth
    share = min(1.0, max(0, waited) / max(1, settling.completions))
    return share * max(settling.latency.mean_ms, start_ms) + (1 - share) * start_ms


def _fresh(measurement: Measurement) -> Measurement:
    """Without what waited when it began: what was tried had left that behind."""
    return replace(measurement, backlog=max(0, measurement.backlog_growth))
