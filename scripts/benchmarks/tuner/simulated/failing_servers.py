"""Simulated servers of 2 cores under whose configurations requests fail, or which are lost under them.

| kind | what fails | when |
|---|---|---|
| `memory` | a share of the requests, with batches above a size | always |
| `spells` | the same | in spells of ten intervals on average, with as long between |
| `mended` | the same | in the first third of the run |
| `clients` | a share of the requests, whatever is in force | in spells of three, with twenty between |
| `crashes` | the server, with batches above a size: it restarts | in one to five intervals of ten |
| `restarts` | the server, whatever is in force | in three intervals of a hundred |

The size is drawn from 1, 2 and 4, and the share between 1 % and 100 %. The load is 0.3 to 0.8 of what bears
most among those that never fail. So what fails often looks better by the latency of what it answers.

Every repeat on every server has chance of its own: arrivals, failures and losses, and the agent's draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from envs.scenarios.small_machines import CORES, random_machine
from envs.simulated import SimulatedServing
from rrl.interval import MeasuredInterval, Watch
from rrl.measurement import NOTHING_OBSERVED, Measurement, Progress
from rrl.queueing.machine import Machine
from rrl.seeding import whole_seed
from rrl.space import ConfigurationSpace

Kind = Literal["memory", "spells", "mended", "clients", "crashes", "restarts"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SPACE = ConfigurationSpace.parse("instances=1:4,intra_op_threads=1:2,max_batch_size=1,2,4,8")
BATCH_SIZES = SPACE.values[:, SPACE.names.index("max_batch_size")]
REQUESTS_PER_INTERVAL = 200
SIZES = (1, 2, 4)  # batches above one of these fail
UTILISATION = (0.3, 0.8)
START_SPARE = 0.8  # the start bears the load with a fifth to spare
SHARE = (0.01, 1.0)
CRASHES, RESTARTS = (0.1, 0.5), 0.03  # of the intervals
SPELLS = {"spells": (10, 10), "clients": (3, 20)}  # mean intervals with failures, and without
ON_ALL: tuple[Kind, ...] = ("clients", "restarts")
_FAULTS, _CHANCE, _AGENT = range(1, 4)  # independent random streams of one server


@dataclass(frozen=True)
class DrawnFaults:
    """What fails on one server: under which configurations, how much, and in which intervals."""

    kind: Kind
    faulty: np.ndarray  # (size,) bool: under these it may
    share: float  # of the requests; of the intervals, where the server is lost
    happens: np.ndarray  # (intervals,) bool; the last one goes on

    def at(self, interval: int, number: int) -> float:
        """The share that fails there."""
        on = self.happens[min(interval, len(self.happens) - 1)]
        return self.share * float(on and self.faulty[number])

    @property
    def to_avoid(self) -> np.ndarray:
        """(size,) bool: a run that keeps one of these has failed."""
        return self.faulty & (self.kind not in (*ON_ALL, "mended"))


@dataclass(frozen=True)
class FailingServer:
    """One drawn server, its load and its start."""

    seed: int
    machine: Machine
    rate_per_s: float
    start: int
    faults: DrawnFaults

    @classmethod
    def drawn(cls, kind: Kind, seed: int, intervals: int) -> FailingServer:
        machine, _ = random_machine(seed)
        rng = np.random.default_rng([seed, KINDS.index(kind), _FAULTS])
        faulty = rng.choice(SIZES) < BATCH_SIZES
        capacity_per_s = np.array([machine.capacity_per_s(SPACE.configuration(k)) for k in range(len(SPACE))])
        rate_per_s = rng.uniform(*UTILISATION) * float(capacity_per_s[~faulty].max())
        start = int(rng.choice(np.flatnonzero(START_SPARE * capacity_per_s > rate_per_s)))
        share = math.exp(rng.uniform(*np.log(SHARE)))
        if kind in ("crashes", "restarts"):
            share = rng.uniform(*CRASHES) if kind == "crashes" else RESTARTS
        if kind in ON_ALL:
            faulty = np.ones_like(faulty)
        faults = DrawnFaults(kind, faulty, share, _happens(kind, intervals, rng))
        return cls(seed, machine, rate_per_s, start, faults)

    def agent_seed(self, repeat: int) -> int:
        return whole_seed([self.seed, repeat, _AGENT])

    def environment(self, repeat: int) -> FailingServing:
        env = FailingServing(
            self.machine,
            SPACE,
            arrivals=self.rate_per_s,
            requests_per_interval=REQUESTS_PER_INTERVAL,
            start=SPACE.configuration(self.start),
            cores=CORES,
        )
        env.faults = self.faults
        env.np_random = np.random.default_rng([self.seed, repeat, _CHANCE])
        return env


class FailingServing(SimulatedServing):
    """A simulated server with faults."""

    faults: DrawnFaults

    def _begin(self, number: int) -> None:
        super()._begin(number)
        (self._faults_rng,) = self.np_random.spawn(1)
        self._intervals = 0

    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        rng, share = self._faults_rng, self.faults.at(self._intervals, number)
        self._intervals += 1
        if self.faults.kind not in ("crashes", "restarts"):
            answers = _Answers(rng, share)
            measurement = self._measurement(number, answers.seen_by(watch))
            return MeasuredInterval(_failing(measurement, answers.failures_of(measurement.completions)))
        measurement = self._measurement(number, watch)
        if rng.random() >= share:
            return MeasuredInterval(measurement)
        self._simulation.drop_backlog()
        lost = Measurement(measurement.duration_s, 0, 0, 0, gap="the server restarted")
        return MeasuredInterval(lost)


class _Answers:
    """Draws which of an interval's answers are errors, as they are looked at."""

    def __init__(self, rng: np.random.Generator, share: float) -> None:
        self._rng, self._share = rng, share
        self._looked_at = self._failures = 0

    def failures_of(self, answers: int) -> int:
        """Of the first so many answers of the interval, at least as many as at the last look."""
        self._failures += int(self._rng.binomial(answers - self._looked_at, self._share))
        self._looked_at = answers
        return self._failures

    def seen_by(self, watch: Watch) -> Watch:
        """The watch, which is told of the failures so far."""
        interrupt = watch.interrupt
        if interrupt is None:
            return watch

        def told(progress: Progress) -> str:
            failures = self.failures_of(progress.completions)
            completions = progress.completions - failures
            return interrupt(progress._replace(completions=completions, failures=failures))

        return replace(watch, interrupt=told)


def _failing(measurement: Measurement, failures: int) -> Measurement:
    """So many of the answers were errors."""
    completions = measurement.completions - failures
    found = replace(measurement, completions=completions, failures=failures)
    if completions or not failures:
        return found
    times = replace(found, latency=NOTHING_OBSERVED, queue=NOTHING_OBSERVED, service=NOTHING_OBSERVED)
    return replace(times, telemetry=(), mean_batch_size=math.nan)


def _happens(kind: Kind, intervals: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "mended":
        return np.arange(intervals) < intervals / 3
    if kind not in SPELLS:
        return np.ones(intervals, bool)
    on, off = SPELLS[kind]
    found: list[bool] = []
    is_on = bool(rng.random() < on / (on + off))
    while len(found) < intervals:
        found += [is_on] * int(rng.geometric(1 / (on if is_on else off)))
        is_on = not is_on
    return np.array(found[:intervals])
