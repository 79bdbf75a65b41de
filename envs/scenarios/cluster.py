"""A cluster in simulation: the same server on every node; nodes are unequal, drift, fail and come back.

| symbol | here | meaning |
|---|---|---|
| N | `nodes` | nodes of the cluster, of which U are up in an interval |
| v_i | `speeds` | speed of node i: its batches take 1/v_i of the table's times |
| λ_all | N·`rate_per_s` | Poisson arrivals of the whole cluster |
| λ_i | λ_all·v_i/Σv | those of node i: the dispatcher splits them by the speeds of the interval before |
| λ | λ_all/U | what an agent is told: the rate of a serving unit (SERF, SC 2016, section IV-C, C_inter = 1) |

One configuration is in force on all nodes. A measurement is that of the mean node: counts of requests and of
batches divided by U, latencies of all. The percentiles of service times are scaled by the speeds of the
interval before: nodes that differ would look like one whose service times vary.

**Expected costs are exact.** Node i is the reference server in a time of its own, which runs v_i times as
fast. So its mean latency at λ_i is that of the reference server at λ_all/Σv, divided by v_i. Over the cluster
that is U/Σv times the reference server's. The best configuration hangs on λ_all/Σv alone.

| simplified | how |
|---|---|
| failures | nodes fail and come back between intervals; what one held runs again elsewhere, its wait anew |
| drift | a node's speed is the same throughout an interval |
| knobs | no `max_queue_delay_us`, as a delay does not run faster on a faster node |
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from envs.serving import ServingEnv
from rrl.arrival_summary import dispersion_of_times
from rrl.interval import MeasuredInterval, Watch
from rrl.measurement import LatencySummary, Measurement, ServiceTimes
from rrl.objective import MeanLatency
from rrl.queueing.kernels import service_times, summaries_ms
from rrl.queueing.machine import Machine
from rrl.queueing.simulator import Simulation
from rrl.space import ConfigurationSpace


@dataclass(frozen=True)
class ClusterNature:
    """How the nodes of a cluster are; times in intervals."""

    nodes: int = 10
    speed_sd: float = 0.25  # of ln v among the nodes
    drift_sd: float = 0.1  # of ln v in time: of each node by itself, and again of all together
    drift_time: float = 50.0  # in which drift is forgotten to 1/e
    up_time: float = 500.0  # mean, until a node fails
    down_time: float = 20.0  # mean, until it is back
    requests_per_node: int = 100  # in an interval, on average
    gap_share: float = 0.05  # an interval before which more of the capacity came or went teaches nothing

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.requests_per_node < 1:
            raise ValueError(f"nodes and requests_per_node must be at least 1, got {self}")
        if min(self.drift_time, self.up_time, self.down_time) <= 0:
            raise ValueError(f"times must be positive, got {self}")


class SimulatedCluster(ServingEnv):
    """
    ## Description

    A `ServingEnv` whose server is a cluster of simulated nodes, as the module says. An interval lasts as long
    as a node's `requests_per_node` take to arrive. What waits is carried into the next one.

    ## Arguments

    | Parameter    | Type                 | Description                                        |
    |--------------|----------------------|----------------------------------------------------|
    | `machine`    | `Machine`            | of a node of speed 1                               |
    | `space`      | `ConfigurationSpace` | of each node's configuration, without delays       |
    | `rate_per_s` | float                | arrivals by node, while all are up                 |
    | `cores`      | int                  | of a node                                          |
    | `nature`     | `ClusterNature`      | how many nodes, how unequal, how they fail         |

    All else is as `ServingEnv` has it.
    """

    def __init__(
        self,
        machine: Machine,
        space: ConfigurationSpace,
        rate_per_s: float,
        cores: int = 10,
        nature: ClusterNature | None = None,
    ) -> None:
        if "max_queue_delay_us" in space.names:
            raise ValueError("max_queue_delay_us cannot be simulated on a cluster: leave it out of the space")
        default = {"instances": 1, "intra_op_threads": cores}
        start = space.nearest({name: default.get(name, 1) for name in space.names})
        super().__init__(space, MeanLatency(), start)
        self.machine, self.rate_per_s, self.cores = machine, rate_per_s, cores
        self.nature = nature or ClusterNature()
        self.merge_s = 0.0  # CPU time that it took to merge the last interval's telemetry of all nodes
        n = self.nature.nodes
        self.up = np.ones(n, bool)
        self.speeds = np.ones(n)
        self._base, self._drift, self._known = np.zeros(n), np.zeros(n + 1), np.ones(n)
        self._simulations: list[Simulation] = []  # each in its node's own time
        self._rng = np.random.default_rng(0)

    @property
    def effective_rate_per_s(self) -> float:
        """λ_all/Σv of the last interval: the rate at which the reference server is as busy as the cluster."""
        return self.nature.nodes * self.rate_per_s / float(self.speeds[self.up].sum())

    @property
    def slowness(self) -> float:
        """U/Σv of the last interval: what multiplies the reference server's mean latency."""
        return float(self.up.sum() / self.speeds[self.up].sum())

    def _begin(self, number: int) -> None:
        nature, n = self.nature, self.nature.nodes
        self._rng = np.random.default_rng(self.np_random.integers(2**63))
        self._base = nature.speed_sd * self._rng.standard_normal(n) - nature.speed_sd**2 / 2
        self._drift = nature.drift_sd * self._rng.standard_normal(n + 1)  # the last is that of all nodes
        self.up = np.ones(n, bool)
        self.speeds = self._present_speeds()
        self._simulations = [Simulation(self.machine) for _ in range(n)]

    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        self._known = self.speeds
        moved = self._age()
        duration_s = self.nature.requests_per_node / self.rate_per_s
        offsets_s = self._offsets_s(duration_s)
        held, lost = self._backlogs(), 0
        for node in np.flatnonzero(~self.up).tolist():
            lost += self._simulations[node].backlog
            self._simulations[node].drop_backlog()
        to_serve_s = np.concatenate([np.zeros(lost), offsets_s])
        share = np.where(self.up, self._known, 0.0)
        node_of = self._rng.choice(len(share), size=len(to_serve_s), p=share / share.sum())
        ends = np.cumsum(np.bincount(node_of, minlength=len(share)))
        by_node = np.split(to_serve_s[np.argsort(node_of, kind="stable")], ends)
        columns, reports, busy_thread_s = [], [], 0.0
        configuration = self.space.configuration(number)
        for node in np.flatnonzero(self.up).tolist():
            simulation, speed = self._simulations[node], self.speeds[node]
            end = simulation.now_s + speed * duration_s
            arrivals = np.minimum(simulation.now_s + speed * by_node[node], np.nextafter(end, 0.0))
            outcome = simulation.run(arrivals, None, configuration, end)
            times_s = np.stack([outcome.arrival_s, outcome.start_s, outcome.finish_s]) / speed
            alike_s = (times_s[2] - times_s[1]) * self._known[node] / self._known[self.up].mean()
            columns.append(np.vstack([times_s, alike_s]))
            batches = outcome.batch_busy, outcome.batch_size, outcome.batch_start_s, outcome.batch_finish_s
            reports.append(_report(service_times(*batches), speed))
            busy_thread_s += outcome.busy_thread_s / speed
        return MeasuredInterval(
            self._measurement(np.hstack(columns), reports, offsets_s, duration_s, held, busy_thread_s, moved)
        )

    def _measurement(
        self,
        served_s: np.ndarray,
        reports: list[tuple[ServiceTimes, ...]],
        offsets_s: np.ndarray,
        duration_s: float,
        held: int,
        busy_thread_s: float,
        moved: float,
    ) -> Measurement:
        """Of the mean node; `served_s` is (4, requests), of what was answered.

        The rows are arrivals, starts, ends, and service times had all nodes been alike.
        """
        units = int(self.up.sum())
        began_s = time.process_time()
        telemetry = of_mean_node(reports, units)
        self.merge_s = time.process_time() - began_s
        *times_s, alike_s = served_s
        none_s = np.zeros(len(alike_s))
        latency, queue = (LatencySummary(*row) for row in summaries_ms(*times_s)[:2].tolist())
        service = LatencySummary(*summaries_ms(none_s, none_s, alike_s)[2].tolist())
        batches = sum(row.count for row in telemetry)
        requests = sum(row.count * row.batch_size for row in telemetry)
        backlog = self._backlogs()
        return Measurement(
            duration_s=duration_s,
            arrivals=round(len(offsets_s) / units),
            completions=round(served_s.shape[1] / units),
            failures=0,
            latency=latency,
            queue=queue,
            service=service,
            mean_batch_size=requests / batches if batches else math.nan,
            backlog=round(backlog / units),
            backlog_growth=round((backlog - held) / units),
            cpu_utilisation=min(1.0, busy_thread_s / (self.cores * units * duration_s)),
            telemetry=telemetry,
            gap=f"{moved:.0%} of the capacity came or went" if moved > self.nature.gap_share else "",
            gap_by_others=moved > self.nature.gap_share,
            dispersion=1 + (dispersion_of_times(offsets_s, duration_s) - 1) / units,
        )

    def _age(self) -> float:
        """Drift, failures and returns before an interval; the share of the capacity that came or went."""
        nature, rng = self.nature, self._rng
        kept = math.exp(-1 / nature.drift_time)
        fresh = nature.drift_sd * math.sqrt(1 - kept**2)
        self._drift = kept * self._drift + fresh * rng.standard_normal(len(self._drift))
        self.speeds = self._present_speeds()
        mean_time = np.where(self.up, nature.up_time, nature.down_time)
        turned = rng.random(nature.nodes) < -np.expm1(-1 / mean_time)
        if not (self.up ^ turned).any():
            turned[:] = False  # The last node never fails: there would be nothing to measure.
        self.up = self.up ^ turned
        return float(self.speeds[turned].sum() / self.speeds.sum())

    def _present_speeds(self) -> np.ndarray:
        return np.exp(self._base + self._drift[:-1] + self._drift[-1])

    def _offsets_s(self, duration_s: float) -> np.ndarray:
        """The arrivals of the cluster, ascending, since the interval began."""
        mean = self.nature.nodes * self.rate_per_s * duration_s
        return np.sort(self._rng.uniform(0.0, duration_s, self._rng.poisson(mean)))

    def _backlogs(self) -> int:
        return sum(simulation.backlog for simulation in self._simulations)


def of_mean_node(reports: Iterable[Iterable[ServiceTimes]], units: int) -> tuple[ServiceTimes, ...]:
    """The telemetry of so many nodes as that of one, by (busy instances, batch size), ascending.

    Batches are counted in whole numbers: what only few nodes ran is left out. Those of all together would be
    more than one node has the time for.
    """
    sums: dict[tuple[int, int], list[float]] = {}
    for report in reports:
        for busy, size, count, total_s, mean_busy in report:
            found = sums.setdefault((busy, size), [0, 0.0, 0.0])
            found[0] += count
            found[1] += total_s
            found[2] += count * mean_busy
    return tuple(
        ServiceTimes(busy, size, of_one, total_s * of_one / count, weighted / count)
        for (busy, size), (count, total_s, weighted) in sorted(sums.items())
        if (of_one := round(count / units))
    )


def _report(rows: np.ndarray, speed: float) -> tuple[ServiceTimes, ...]:
    """A node's telemetry, from (rows, 5) in its own time."""
    return tuple(
        ServiceTimes(int(n), int(b), int(count), total / speed, busy)
        for n, b, count, total, busy in rows.tolist()
    )
