"""A cluster in simulation: the same server on every unit; nodes are unequal, drift, fail and come back.

| symbol | here | meaning |
|---|---|---|
| N | `nodes` | nodes of the cluster, of which M are up in an interval |
| C | `nodes_per_unit` | nodes of a serving unit, 1 unless it is a knob (SERF, SC 2016: C_inter) |
| U | | units: M/C in whole numbers; nodes that are left over serve nothing |
| v_i | `speeds` | speed of node i: its batches take 1/v_i of the table's times |
| v_j | `unit_speeds` | of unit j: that of its slowest node, for which the others wait |
| λ_all | N·`rate_per_s` | Poisson arrivals of the whole cluster |
| λ_j | λ_all·v_j/Σv | those of unit j: the dispatcher splits them by the speeds of the interval before |
| | λ_all/M | what an agent is told: the rate of a node; that of a unit is λ = λ_all/(N/C) (section IV-C) |

One configuration is in force on all nodes. A measurement is that of the mean node: counts of requests and of
batches divided by M, latencies of all. The percentiles of service times are scaled by the speeds of the
interval before: units that differ would look like one whose service times vary.

**Expected costs are exact.** Unit j is the reference server in a time of its own, which runs v_j times as
fast. So its mean latency at λ_j is that of the reference server at λ_all/Σv, divided by v_j. Over the cluster
that is U/Σv times the reference server's. For a given C the best configuration hangs on λ_all/Σv alone.

| simplified | how |
|---|---|
| failures | nodes fail and come back between intervals; what one held runs again elsewhere, its wait anew |
| units | consecutive nodes; a unit of which one comes or goes is replaced whole, and its requests run again |
| few nodes | where fewer are up than a unit has, they are one unit, no slower for it |
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
from envs.simulated import check_covered
from rrl.arrival_summary import dispersion_of_times
from rrl.interval import MeasuredInterval, Watch
from rrl.measurement import MOST_CHANGED_SHARE, LatencySummary, Measurement, ServiceTimes
from rrl.objective import MeanLatency
from rrl.queueing.kernels import service_times, summaries_ms
from rrl.queueing.machine import NODES, Machine
from rrl.queueing.serving_units import serving_units, units_fit
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
    gap_share: float = MOST_CHANGED_SHARE  # of the capacity; where more came or went, nothing is learned

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.requests_per_node < 1:
            raise ValueError(f"nodes and requests_per_node must be at least 1, got {self}")
        if min(self.drift_time, self.up_time, self.down_time) <= 0:
            raise ValueError(f"times must be positive, got {self}")


class SimulatedCluster(ServingEnv):
    """
    ## Description

    A `ServingEnv` whose server is a cluster of simulated nodes, as the module says. An interval lasts as long
    as a node's `requests_per_node` take to arrive. What waits is carried into the next one. Where
    `nodes_per_unit` is a knob, agents need the number of nodes in their task (`Task.nodes`).

    ## Arguments

    | Parameter    | Type                 | Description                                        |
    |--------------|----------------------|----------------------------------------------------|
    | `machine`    | `Machine`            | of nodes of speed 1; with an axis for the nodes of |
    |              |                      | a unit, if these are a knob                        |
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
        self.nature = nature or ClusterNature()
        check_covered(space, machine)
        if not units_fit(space, self.nature.nodes).all():
            largest = space.values[:, space.names.index(NODES)].max()
            raise ValueError(
                f"nodes_per_unit={largest} is more than the cluster has: "
                f"give at most {self.nature.nodes}, its nodes"
            )
        default = {"instances": 1, "intra_op_threads": cores}
        start = space.nearest({name: default.get(name, 1) for name in space.names})
        super().__init__(space, MeanLatency(), start)
        self.machine, self.rate_per_s, self.cores = machine, rate_per_s, cores
        self.merge_s = 0.0  # CPU time that it took to merge the last interval's telemetry of all nodes
        n = self.nature.nodes
        self.up = np.ones(n, bool)
        self.speeds = np.ones(n)
        self._base, self._drift, self._known = np.zeros(n), np.zeros(n + 1), np.ones(n)
        self._simulations: list[Simulation] = []  # of the unit that a node is first of, in a time of its own
        self._units: dict[int, tuple[int, ...]] = {}  # the nodes of every unit, by the first of them
        self._rng = np.random.default_rng(0)

    @property
    def effective_rate_per_s(self) -> float:
        """λ_all/Σv of the last interval: the rate at which the reference server is as busy as the cluster."""
        return self.nature.nodes * self.rate_per_s / float(self.unit_speeds.sum())

    @property
    def slowness(self) -> float:
        """U/Σv of the last interval: what multiplies the reference server's mean latency."""
        return float(len(self._units) / self.unit_speeds.sum())

    @property
    def unit_speeds(self) -> np.ndarray:
        """(U,) of the last interval's units: each is as fast as its slowest node."""
        return self._of_units(self.speeds)

    def _begin(self, number: int) -> None:
        nature, n = self.nature, self.nature.nodes
        self._rng = np.random.default_rng(self.np_random.integers(2**63))
        self._base = nature.speed_sd * self._rng.standard_normal(n) - nature.speed_sd**2 / 2
        self._drift = nature.drift_sd * self._rng.standard_normal(n + 1)  # the last is that of all nodes
        self.up = np.ones(n, bool)
        self.speeds = self._present_speeds()
        self._simulations = [Simulation(self.machine) for _ in range(n)]
        self._units = {}

    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        self._known = self.speeds
        moved = self._age()
        duration_s = self.nature.requests_per_node / self.rate_per_s
        offsets_s = self._offsets_s(duration_s)
        configuration = self.space.configuration(number)
        held, lost = self._backlogs(), self._form_units(configuration.get(NODES, 1))
        to_serve_s = np.concatenate([np.zeros(lost), offsets_s])
        known = self._of_units(self._known)
        share = np.zeros(len(self.up))
        share[list(self._units)] = known
        node_of = self._rng.choice(len(share), size=len(to_serve_s), p=share / share.sum())
        ends = np.cumsum(np.bincount(node_of, minlength=len(share)))
        by_node = np.split(to_serve_s[np.argsort(node_of, kind="stable")], ends)
        columns, reports, busy_thread_s = [], [], 0.0
        for node, speed, known_speed in zip(self._units, self.unit_speeds, known, strict=True):
            simulation = self._simulations[node]
            end = simulation.now_s + speed * duration_s
            arrivals = np.minimum(simulation.now_s + speed * by_node[node], np.nextafter(end, 0.0))
            outcome = simulation.run(arrivals, None, configuration, end)
            times_s = np.stack([outcome.arrival_s, outcome.start_s, outcome.finish_s]) / speed
            alike_s = (times_s[2] - times_s[1]) * known_speed / known.mean()
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
        nodes = int(self.up.sum())
        began_s = time.process_time()
        telemetry = of_mean_node(reports, nodes)
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
            arrivals=round(len(offsets_s) / nodes),
            completions=round(served_s.shape[1] / nodes),
            failures=0,
            latency=latency,
            queue=queue,
            service=service,
            mean_batch_size=requests / batches if batches else math.nan,
            backlog=round(backlog / nodes),
            backlog_growth=round((backlog - held) / nodes),
            cpu_utilisation=min(1.0, busy_thread_s / (self.cores * nodes * duration_s)),
            telemetry=telemetry,
            gap=f"{moved:.0%} of the capacity came or went" if moved > self.nature.gap_share else "",
            gap_by_others=moved > self.nature.gap_share,
            dispersion=1 + (dispersion_of_times(offsets_s, duration_s) - 1) / len(self._units),
        )

    def _form_units(self, nodes_per_unit: int) -> int:
        """Groups the nodes that are up, and drops what units held that are no more: how many requests."""
        up = np.flatnonzero(self.up)
        of_unit = min(nodes_per_unit, len(up))
        whole = up[: of_unit * int(serving_units(len(up), of_unit))]
        units = {nodes[0]: tuple(nodes) for nodes in whole.reshape(-1, of_unit).tolist()}
        lost = 0
        for node, simulation in enumerate(self._simulations):
            if units.get(node) != self._units.get(node):
                lost += simulation.backlog
                simulation.drop_backlog()
        self._units = units
        return lost

    def _of_units(self, speeds: np.ndarray) -> np.ndarray:
        """(U,) the least speed of each unit's nodes."""
        return np.array([speeds[list(nodes)].min() for nodes in self._units.values()])

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


def of_mean_node(reports: Iterable[Iterable[ServiceTimes]], nodes: int) -> tuple[ServiceTimes, ...]:
    """The telemetry of so many nodes, told by units, as that of one node.

    It is by (busy instances, batch size), ascending.

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
        if (of_one := round(count / nodes))
    )


def _report(rows: np.ndarray, speed: float) -> tuple[ServiceTimes, ...]:
    """A unit's telemetry, from (rows, 5) in its own time."""
    return tuple(
        ServiceTimes(int(n), int(b), int(count), total / speed, busy)
        for n, b, count, total, busy in rows.tolist()
    )
