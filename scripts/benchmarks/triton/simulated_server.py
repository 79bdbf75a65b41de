"""The simulated stock Triton of `triton-simulated`: what it tells, how it drifts, what a change of it costs.

Its machines are as measured, or random ones (`envs.scenarios.small_machines`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, repeat
from typing import Any

import numpy as np

from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.scenario import Scenario
from envs.scenarios.small_machines import CORES, random_machine, small_machine
from envs.settling import RELOAD_SETTLE_FACTOR
from envs.simulated import SimulatedServing
from rrl.interval import Watch
from rrl.measurement import NOT_TOLD, LatencySummary, Measurement, ServiceTimes
from rrl.objective import MeanLatency
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace
from serving_adapter.load.arrivals import stepwise_poisson

SPACE = ConfigurationSpace.parse(
    "instances=1:4,intra_op_threads=1,2,max_batch_size=1,4,8,max_queue_delay_us=0"
)
IN_PLACE = frozenset({"instances"})
TAKES_ONE_BY_ONE = SPACE.values[:, SPACE.names.index("max_batch_size")] == 1  # (size,)
INTERVAL_S = 4.0

# What was measured of a stock Triton on 2 cores.
VARIATION = 0.2  # σ of the service times of an interval
DRIFT_SD, DRIFT_CORRELATION, SCATTER_SD = 0.07, 0.8, 0.04  # of ln of all service times
HICCUP_SHARE, HICCUP_MEAN = 0.07, 0.25
SPELL_SHARE, SPELL_INTERVALS, SPELL_LOG_FACTORS = 0.015, (2, 3, 4), (0.25, 0.6)
PROCESS_S, BESIDE_PROCESSES, SETTLE_S = 1.8, 1.8, 1.0
# Standard deviations of ln of latency over what the queue says, by number of instances and by configuration:
# of those measured in three intervals or more of the runs of `triton-head-to-head`, their means had 0.1.
UNMODELLED_SD = (0.08, 0.05)
LARGEST_MS = 10_000.0  # stands for the latency of a queue that grows for ever

# ms of a batch of one with 1 .. 4 busy instances, by intra-op threads; how many times as long larger take
MEASURED = {
    "minilm": (
        {1: [7.2, 9.8, 14.0, 18.5], 2: [8.6, 14.5, 21.0, 28.0]},
        {1: 1.0, 2: 1.4, 4: 2.35, 8: 4.4},
    ),
    "efficientnet_lite0": (
        {1: [17.5, 22.0, 31.0, 41.0], 2: [19.5, 27.0, 37.0, 50.0]},
        {1: 1.0, 2: 1.75, 4: 3.2, 8: 6.2},
    ),
    "threads help": (
        {1: [14.0, 16.0, 24.0, 33.0], 2: [8.0, 15.5, 23.0, 31.0]},
        {1: 1.0, 2: 1.5, 4: 2.5, 8: 4.6},
    ),
}


@dataclass(frozen=True)
class Steps:
    """Poisson arrivals whose rate steps; the last one stays."""

    steps: tuple[tuple[float, float], ...]  # length in s, rate per s

    @property
    def mean_rate_per_s(self) -> float:
        return self.steps[-1][1]

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        return stepwise_poisson(rng, chain(self.steps, repeat(self.steps[-1])))


class SimulatedTriton(SimulatedServing):
    """Tells what a stock Triton tells, on a machine that drifts and hiccups like the measured one."""

    latency_s = 0.0  # of all requests since the episode began

    def __init__(self, *args: Any, unmodelled: np.ndarray, one_by_one: float = 1.0, **kwargs: Any) -> None:
        """`unmodelled` (size,): latency over what the queue says; the rest as of `SimulatedServing`.

        `one_by_one`: how many times as long everything takes where the largest batch is one.
        """
        super().__init__(*args, **kwargs)
        self._unmodelled, self._one_by_one = unmodelled, np.where(TAKES_ONE_BY_ONE, one_by_one, 1.0)

    @property
    def now_s(self) -> float:
        return float(self._simulation.now_s)

    def _begin(self, number: int) -> None:
        super()._begin(number)
        (self._slowness_rng,) = self.np_random.spawn(1)
        self._log_drift, self._in_force, self.latency_s = 0.0, number, 0.0
        self._spell: list[float] = []

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        slowness = self._slowness()
        if number != self._in_force:
            self._serve(PROCESS_S * processes_started(self._in_force, number), BESIDE_PROCESSES * slowness)
            reload = is_reload(self._in_force, number)
            self._in_force = number
            self._serve(SETTLE_S * (RELOAD_SETTLE_FACTOR if reload else 1.0), slowness)
        self._slow_down(slowness)
        measurement = super()._measurement(number, watch)
        mean_ms = self._felt_ms(measurement.latency.mean_ms)
        self._count(measurement.completions, mean_ms)
        return as_told(replace(measurement, latency=LatencySummary(mean_ms=mean_ms)))

    def _serve(self, duration_s: float, slowness: float) -> None:
        """Requests that nobody measures."""
        simulation, until_s = self._simulation, self.now_s + duration_s
        self._slow_down(slowness)
        times_s = self._stream.take_before(until_s)
        configuration = self.space.configuration(self._in_force)
        outcome = simulation.run(times_s, self._work(len(times_s)), configuration, until_s)
        self._count(len(outcome.finish_s), self._felt_ms(outcome.summaries()[0].mean_ms))

    def _slow_down(self, slowness: float) -> None:
        """Everything takes so many times as long from now on."""
        self._simulation.machine = self.machine.slower(slowness * float(self._one_by_one[self._in_force]))

    def drained_s(self) -> float:
        """Latency of what waits now, served to its end."""
        found = self._simulation.drain(self.space.configuration(self._in_force))
        return float((found.finish_s - found.arrival_s).sum()) * float(self._unmodelled[self._in_force])

    def _felt_ms(self, mean_ms: float) -> float:
        return mean_ms * float(self._unmodelled[self._in_force])

    def _count(self, completions: int, mean_ms: float) -> None:
        if completions:
            self.latency_s += 1e-3 * completions * mean_ms

    def _slowness(self) -> float:
        """How many times as long everything takes in the interval that begins."""
        rng = self._slowness_rng
        fresh = DRIFT_SD * math.sqrt(1 - DRIFT_CORRELATION**2) * rng.standard_normal()
        self._log_drift = DRIFT_CORRELATION * self._log_drift + fresh
        hiccup = rng.exponential(HICCUP_MEAN) if rng.random() < HICCUP_SHARE else 0.0
        return math.exp(self._log_drift + SCATTER_SD * rng.standard_normal() + hiccup + self._log_spell())

    def _log_spell(self) -> float:
        """ln of how many times as long, by a spell of slow intervals."""
        rng = self._slowness_rng
        if not self._spell and rng.random() < SPELL_SHARE:
            self._spell = [rng.uniform(*SPELL_LOG_FACTORS)] * int(rng.choice(SPELL_INTERVALS))
        return self._spell.pop() if self._spell else 0.0


def as_told(measurement: Measurement) -> Measurement:
    """What a stock Triton tells of it: means, and service times by batch size only."""
    totals: dict[int, tuple[int, float]] = {}
    for row in measurement.telemetry:
        count, total_s = totals.get(row.batch_size, (0, 0.0))
        totals[row.batch_size] = count + row.count, total_s + row.total_s
    rows = tuple(ServiceTimes(0, size, count, total_s) for size, (count, total_s) in sorted(totals.items()))
    latency, queue, service = (
        LatencySummary(mean_ms=each.mean_ms)
        for each in (measurement.latency, measurement.queue, measurement.service)
    )
    told = replace(measurement, telemetry=rows, latency=latency, queue=queue, service=service)
    return replace(told, arrival_summary=NOT_TOLD, dispersion=math.nan)


def machine_of(name: str | int) -> Machine:
    return random_machine(name)[0] if isinstance(name, int) else measured_machine(name)


def measured_machine(name: str) -> Machine:
    of_one_ms, times_as_long = MEASURED[name]
    table_s = 1e-3 * np.array(list(of_one_ms.values()))[:, :, None] * np.array(list(times_as_long.values()))
    return small_machine(list(times_as_long), table_s)


@cache
def true_costs_ms(machine: str | int, rate_per_s: float, one_by_one: float = 1.0) -> np.ndarray:
    """(size,) mean latency without drift; `LARGEST_MS` where the queue grows for ever."""
    usual = machine_of(machine)
    if one_by_one == 1.0:
        return _costs_ms(usual, str(machine), rate_per_s)
    slower_ms = _costs_ms(usual.slower(one_by_one), f"{machine}-slower", rate_per_s)
    return np.where(TAKES_ONE_BY_ONE, slower_ms, _costs_ms(usual, str(machine), rate_per_s))


def _costs_ms(machine: Machine, name: str, rate_per_s: float) -> np.ndarray:
    scenario = Scenario(machine, name, service_variation=VARIATION, carry_backlog=True, cores=CORES)
    bears = [scenario.machine.capacity_per_s(SPACE.configuration(k)) > rate_per_s for k in range(len(SPACE))]
    costs_ms = ExpectedCosts(scenario, SPACE, MeanLatency()).costs(rate_per_s)
    return np.where(bears, costs_ms, LARGEST_MS)


def is_reload(before: int, after: int) -> bool:
    """True where a knob changes that does not change in place."""
    a, b = SPACE.configuration(before), SPACE.configuration(after)
    return any(a[name] != b[name] for name in SPACE.names if name not in IN_PLACE)


def processes_started(before: int, after: int) -> int:
    """Beside the load, by a change: those of all instances, or in place of those to come."""
    a, b = SPACE.configuration(before)["instances"], SPACE.configuration(after)["instances"]
    return b if is_reload(before, after) else max(0, b - a)
