"""What the start would have cost in each interval of a run: at the same arrivals and the same machine speed.

It is asked of what the guard believes, once it has judged the interval: while the run goes on, or in a replay
of its journal. What a run cost its users is counted against the start living through all of it: what a burst
leaves waiting waits in the next interval. Where nothing is known, the mean latency measured at the start
stands for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rrl.belief.belief import Belief
from rrl.belief.load.forecast import MAX_REQUESTS_OF_ONE
from rrl.belief.several_models.joint import JointBelief, belief_of
from rrl.guarding.expectation import gain_of_logs
from rrl.guarding.gain import UNKNOWN, Gain
from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.measurement import Measurement
from rrl.objective import MeanLatency, Objective, make_objective
from rrl.queueing.windows import shortened
from rrl.records import Header, Record
from rrl.tuning.listener import Listener
from rrl.views.exploration_cost import StartLatencies, part_of
from rrl.views.slowness_by_interval import slowness_of_each

LEAST_S = 1e-3  # of a stretch, so that it has a length


class StartBeside(NamedTuple):
    """The start in an interval of another configuration."""

    log_cost: float  # expected; NaN where it is not known
    sd: float  # of that
    latency_ms: float  # mean, of an interval that begins with an empty queue
    lived_ms: tuple[float, ...]  # mean, in force all the time: while the change settled, if any, and then


@dataclass(frozen=True)
class SameArrivals:
    """A run as it is known at its end."""

    guard: Guard  # has seen all of it
    records: Sequence[Record]
    beside: Sequence[StartBeside]  # by record
    belief: Belief | JointBelief  # what the guard expects by

    @property
    def start_ms(self) -> StartLatencies:
        return [each.lived_ms for each in self.beside]

    def start_latency_ms(self, among: Sequence[Record]) -> float:
        """The start's mean latency at the arrivals of these intervals; NaN where it is not known."""
        told = [(r.measurement.completions, each.latency_ms) for r, each in self._of(among)]
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


class StartBesideRun(Listener):
    """Grows with a run: told of each record once the guard has judged it, it asks the guard's own belief."""

    def __init__(self, header: Header, guard: Guard, belief: Belief | JointBelief) -> None:
        """`belief` is what the guard expects by."""
        objective = make_objective(header.objective, header.slo_p95_ms)
        self._guard, self._belief, self._latencies = guard, belief, belief
        if objective != MeanLatency():
            self._latencies = _belief(header, MeanLatency())
        self._records: list[Record] = []
        self._beside: list[StartBeside] = []
        self._slowness = slowness_of_each(self._latencies, guard.start)

    def measured(self, record: Record) -> None:
        if self._latencies is not self._belief and record.counted:
            self._latencies.learn(record.number, record.measurement)
        self._records.append(record)
        for each in self._slowness:
            each.take_in(len(record.with_settling))
        self._beside.append(_beside(record, self._guard, self._belief, self._latencies))

    def replayed(self, record: Record) -> None:
        self.measured(record)

    def rotated(self, kept: Sequence[int]) -> None:
        ends = np.cumsum([0, *(len(record.with_settling) for record in self._records)])
        positions = [position for i in kept for position in range(ends[i], ends[i + 1])]
        for each in self._slowness:
            each.keep(positions)
        self._records = [self._records[i] for i in kept]
        self._beside = [self._beside[i] for i in kept]

    def last_ms(self) -> list[float]:
        """The start's mean latency beside the last record: while its change settled, if any, and then."""
        last = self._beside[-1]
        return [*last.lived_ms[:-1], last.latency_ms]

    def at_end(self) -> SameArrivals:
        beside = self._beside
        if self._latencies.known:
            slowness = np.stack([each.at_end() for each in self._slowness], axis=1)
            beside = _with_lived(self._records, self._guard.start, beside, self._latencies, slowness)
        return SameArrivals(self._guard, tuple(self._records), tuple(beside), self._belief)


def at_same_arrivals(
    header: Header, records: Sequence[Record], settings: GuardSettings | None = None
) -> SameArrivals:
    """Replays a journal's records."""
    objective = make_objective(header.objective, header.slo_p95_ms)
    belief = _belief(header, objective)
    settings = settings or GuardSettings(
        slo_p95_ms=header.slo_p95_ms,
        cost_is_latency=objective.unit == "ms",
        closed_loop=header.concurrency is not None,
    )
    guard = Guard(header.space.number(header.start), settings, expectation=belief)
    run = StartBesideRun(header, guard, belief)
    for record in records:
        guard.replay(record)
        run.replayed(record)
    return run.at_end()


def _belief(header: Header, objective: Objective) -> Belief | JointBelief:
    """One that knows nothing yet of the run."""
    return belief_of(header.space, objective, header.cores, header.found, concurrency=header.concurrency)


def _with_lived(
    records: Sequence[Record],
    start: int,
    beside: Sequence[StartBeside],
    belief: Belief | JointBelief,
    log_slowness: np.ndarray,
) -> list[StartBeside]:
    """Tells what the start would have cost where another was explored, had it been in force all the time."""
    lived_ms = iter(_lived_ms(records, start, belief, log_slowness))
    before, found = start, []
    for record, each in zip(records, beside, strict=True):
        ms = [next(lived_ms) for _ in record.with_settling]
        if before == start and record.settling is not None:
            ms[0] = _left_waiting(record.settling, ms[0])
        explored = record.number != start and part_of(record) is not None
        found.append(each._replace(lived_ms=tuple(ms)) if explored else each)
        before = record.number
    return found


def _left_waiting(settling: Measurement, start_ms: float) -> float:
    """The start's mean latency while a change away from it settled: what had waited already was its own."""
    waited = settling.backlog - settling.backlog_growth
    share = min(1.0, max(0, waited) / max(1, settling.completions))
    return share * max(settling.latency.mean_ms, start_ms) + (1 - share) * start_ms


def _lived_ms(
    records: Sequence[Record], start: int, belief: Belief | JointBelief, log_slowness: np.ndarray
) -> list[float]:
    """The start's mean latency in each change and interval. What is measured stands for what is not known.

    `log_slowness` (T, M) is that of the machine, by model.
    """
    seen = [each for record in records for each in record.with_settling]
    if isinstance(belief, JointBelief):
        return _all_lived_ms(seen, start, belief, log_slowness)
    return _model_lived_ms(seen, start, belief, log_slowness[:, 0])


def _all_lived_ms(
    seen: Sequence[Measurement], start: int, belief: JointBelief, log_slowness: np.ndarray
) -> list[float]:
    """The same of the requests of all models, (T, M) whose batches were so slow, or of their whole."""
    parts = belief.joint.parts(np.array([start]))
    log_slowness = log_slowness + belief.log_slower(parts)
    counts = np.array([each.completions for each in seen], dtype=float)
    more = np.zeros(len(seen))  # request-milliseconds, than were measured
    for k, model in enumerate(belief.joint.models):
        own = [each.models.get(model, each) for each in seen]
        lived_ms = _model_lived_ms(own, int(parts[0, k]), belief.members[k], log_slowness[:, k])
        completions = np.array([each.completions for each in own], dtype=float)
        measured_ms = np.array([each.latency.mean_ms for each in own])
        more += completions * np.nan_to_num(np.array(lived_ms) - measured_ms)
    lived = np.array([each.latency.mean_ms for each in seen]) + more / np.maximum(counts, 1)
    return np.where(counts > 0, np.maximum(lived, 0.0), math.nan).tolist()


def _model_lived_ms(
    seen: Sequence[Measurement], start: int, belief: Belief, log_slowness: np.ndarray
) -> list[float]:
    """The same of one model."""
    rng = np.random.default_rng(0)
    none = np.empty(0)
    stretches = [
        shortened(
            belief.forecast.offsets_s(each, rng) if each.arrivals else none,
            max(each.duration_s, LEAST_S),
            MAX_REQUESTS_OF_ONE,
        )
        for each in seen
    ]
    lived_ms = belief.lived_through_ms(start, stretches, log_slowness)
    return np.where(np.isfinite(lived_ms), lived_ms, [each.latency.mean_ms for each in seen]).tolist()


def _beside(
    record: Record, guard: Guard, belief: Belief | JointBelief, latencies: Belief | JointBelief
) -> StartBeside:
    seen, start = record.with_settling, np.array([guard.start])
    own_ms = tuple(each.latency.mean_ms for each in seen)
    if record.number == guard.start:
        return StartBeside(math.nan, math.nan, own_ms[-1], own_ms)
    usual_ms = guard.memory.start_latency_ms
    if part_of(record) is None or not belief.known:
        return StartBeside(math.nan, math.nan, usual_ms, (usual_ms,) * len(seen))
    fresh = _fresh(record.measurement)
    costs, sds = belief.log_costs(start, fresh)
    logs = costs if latencies is belief else latencies.log_costs(start, fresh)[0]
    return StartBeside(float(costs[0]), float(sds[0]), math.exp(float(logs[0])), (usual_ms,) * len(seen))


def _fresh(measurement: Measurement) -> Measurement:
    """Without what waited when it began: what was tried had left that behind."""
    models = {name: _fresh(each) for name, each in measurement.models.items()}
    return replace(measurement, backlog=max(0, measurement.backlog_growth), models=models)
