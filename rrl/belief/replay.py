"""What arrivals would have cost under each configuration: they are replayed through the queueing model.

All configurations see the same arrivals (common random numbers), in the compiled simulator
(`rrl.queueing.kernels`). Where there are many, SERF's M/D_interf/c model (`rrl.queueing.interference`) finds
the promising ones first, if arrivals are about Poisson and requests are not batched, which it does not know.

| symbol | here | meaning |
|---|---|---|
| c, B, d | `instances`, `max_batch_size`, `delay_s` | of each configuration |
| S | `_times_s` | service times expected |
| max b·c/S[c, b] | `capacity_per_s` | the rate from which a configuration is unstable; 0 where not allowed |
| | `scale` | (K,) what each configuration's service times are multiplied by |
| f | `unit_load` | of a cluster: the rate of a serving unit over that of a node (`queueing.serving_units`) |
| | `in_closed_loop` | the same where the number of clients is fixed, and not when their requests come |

The arrivals are those of a node. A unit gets them f times as fast. That is the queue whose times are f times
as long under the arrivals of a node, in a time that runs f times as fast. So this is what is replayed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rrl.belief.service_time_table import ServiceTimeTable
from rrl.belief.telemetry import busy_instances
from rrl.queueing import interference
from rrl.queueing.closed_loop import closed_loop_ms
from rrl.queueing.kernels import Candidates, replayed_ms
from rrl.queueing.serving_units import unit_loads, units_fit
from rrl.queueing.windows import Windows, as_windows, shortened, stretches_of
from rrl.space import ConfigurationSpace

SCREENING_REQUESTS = 200
# Of a stretch with more, a shorter one is screened by.
MAX_SCREENING_REQUESTS = 10_000
# Answers of a closed loop that are simulated, at least, and for each of its clients.
LEAST_ANSWERS, ANSWERS_A_CLIENT = 200, 4
_VARIATION_DRAWS = 1021  # service-time factors, used in turn
# Think times of clients, likewise: exponential, and evenly spread however few are used (golden ratio).
_TURNS = -np.log(1 - (np.arange(1, 1010) * (math.sqrt(5) - 1) / 2) % 1)


class Latencies(NamedTuple):
    """Of K configurations in each of some stretches of arrivals; infinite where nothing was answered."""

    mean_ms: np.ndarray  # (K, windows)
    p95_ms: np.ndarray  # (K, windows)
    completions: np.ndarray  # (K, windows) items
    answered_per_s: np.ndarray  # (K, windows) items: no more than is borne, however long the rest waits


class Replay:
    """Replays arrivals for a space's configurations, given by their numbers."""

    def __init__(
        self,
        space: ConfigurationSpace,
        table: ServiceTimeTable,
        rng: np.random.Generator,
        excluded: frozenset[int] = frozenset(),
        nodes: int | None = None,
    ) -> None:
        """`nodes`: of a cluster whose serving units have a queue each; None: one queue serves all."""
        self.allowed = ~np.isin(np.arange(len(space)), list(excluded)) & units_fit(space, nodes)
        knob = {name: space.values[:, k] for k, name in enumerate(space.names)}
        ones = np.ones(len(space), dtype=int)
        inter, intra = knob.get("inter_op_threads", ones), knob.get("intra_op_threads", ones)
        self.instances = knob.get("instances", ones)
        self.max_batch_size = knob.get("max_batch_size", ones)
        self.delay_s = 1e-6 * knob.get("max_queue_delay_us", 0 * ones).astype(float)
        self.unit_load = unit_loads(space, nodes)
        self._entries = table
        self._positions = (
            np.where(self.max_batch_size == 1, table.shape[0] - 1, 0),  # o, where it is an axis
            np.searchsorted(table.nodes, knob.get("nodes_per_unit", ones)),
            np.searchsorted(table.inter, inter),
            np.searchsorted(table.intra, intra),
            np.searchsorted(table.instances, self.instances),
        )
        self._table = np.ravel_multi_index(self._positions, table.shape[:-2])
        self._times_s = np.empty((0, 0, 0))  # (tables, N, B), from the first `refresh` on
        self.capacity_per_s = np.zeros(len(space))  # likewise
        self._batches = np.arange(1, table.batch[-1] + 1)
        self._unit_variation = rng.standard_normal(_VARIATION_DRAWS)
        self.variation = 0.0
        """σ of a batch's lognormal service time."""

    def refresh(self, times_s: np.ndarray) -> None:
        """Takes these service times (tables, N, batch sizes of the table)."""
        self._times_s = self._between_batch_sizes(times_s)
        rates = self.instances[:, None] * self._batches / self._times_s[self._table, self.instances - 1]
        rates = np.where(self._batches <= self.max_batch_size[:, None], rates, 0.0)
        self.capacity_per_s = np.where(self.allowed, rates.max(axis=1) / self.unit_load, 0.0)

    def disallow(self, numbers: np.ndarray) -> None:
        """These are not to be proposed from the next `refresh` on."""
        self.allowed[numbers] = False

    def typical_entries(
        self, numbers: np.ndarray, rate_per_s: float, as_estimated: bool = False
    ) -> np.ndarray:
        """(K,) the service time that each needs most at the mean load: with as many busy as that needs.

        `as_estimated`: with as many as `telemetry` estimates on average where a target does not tell, as
        about that entry most is learned.
        """
        instances = self.instances[numbers]
        alone_s = self._times_s[self._table[numbers], instances - 1, 0]
        unit_rate_per_s = rate_per_s * self.unit_load[numbers]
        in_service = unit_rate_per_s * alone_s
        busy = busy_instances(in_service, instances) if as_estimated else np.clip(in_service, 1, instances)
        wait_s = self.delay_s[numbers] + alone_s / instances
        batch = np.clip(unit_rate_per_s * wait_s, 1, self.max_batch_size[numbers])
        return self._nearest(numbers, busy, batch)

    def deciding_entries(self, numbers: np.ndarray, windows: Windows) -> np.ndarray:
        """(K,) the service time that most of the latency of each depends on, under these arrivals.

        It is that of as many busy instances, and of as large a batch, as there are on average by latency.
        Under bursts that is a full batch beside others, where the mean load would need few. What processors
        share is left out: it moves the entry by little, and would have to be replayed for.
        """
        mean_ms, _, finished, busy, batch = self._simulated(
            numbers, np.ones(len(numbers)), _typical(windows), sharing=False, by_latency=True
        )
        weights = np.nan_to_num(finished * mean_ms)
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
        busy, batch = (np.maximum((weights * np.nan_to_num(each)).sum(axis=1), 1.0) for each in (busy, batch))
        return self._nearest(numbers, busy, batch)

    def first_and_last_entries(self, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(size,), (size,) what the entries of all configurations are with one, and with most instances busy.

        As many instances as any configuration has, with the threads and the batch size of each entry.
        """
        *threads, _ = self._positions
        batch = np.searchsorted(self._entries.batch, self._entries.points[entries, 4])
        last = np.full(len(entries), len(self._entries.instances) - 1)
        busy = np.full(len(entries), int(self._entries.instances[-1]) - 1)
        at = self._entries.at
        return at(*threads, last, 0 * busy, batch), at(*threads, last, busy, batch)

    def screened(
        self, numbers: np.ndarray, scale: np.ndarray, windows: Windows, rate_per_s: float, poisson: bool
    ) -> Latencies:
        """(K, 1) of a typical window, roughly; where a queue grows for ever, the more the less is borne."""
        if len(self._batches) == 1 and poisson:
            times_s = scale[:, None] * self._times_s[self._table[numbers], :, 0]
            rates_per_s = rate_per_s * self.unit_load[numbers]
            queue = interference.predict(times_s, self.instances[numbers], rates_per_s)
            mean_ms, p95_ms = 1e3 * queue.mean_latency_s, 1e3 * queue.p95_latency_s
        else:
            found = self.replayed(numbers, scale, _typical(windows))
            mean_ms, p95_ms = (_of_all(each, found.completions) for each in (found.mean_ms, found.p95_ms))
        borne_per_s = self.capacity_per_s[numbers] / np.maximum(scale, 1e-9)
        unstable_ms = 1e9 * scale / np.maximum(self.capacity_per_s[numbers], 1e-9)
        mean_ms, p95_ms = (np.where(np.isfinite(each), each, unstable_ms) for each in (mean_ms, p95_ms))
        requests = np.full(len(numbers), float(np.diff(windows.bounds).mean()))
        each = (mean_ms, p95_ms, requests, np.minimum(rate_per_s, borne_per_s))
        return Latencies(*(column[:, None] for column in each))

    def replayed(
        self, numbers: np.ndarray, scale: np.ndarray, windows: Windows, sharing: bool = False
    ) -> Latencies:
        """(K, windows) of these arrivals; of a unit, by node."""
        mean_ms, p95_ms, finished = self._simulated(numbers, scale, windows, sharing)[:3]
        load = self.unit_load[numbers][:, None]
        mean_ms, p95_ms = (np.where(np.isnan(each), np.inf, each) / load for each in (mean_ms, p95_ms))
        borne_per_s = self.capacity_per_s[numbers] / np.maximum(scale, 1e-9)
        offered_per_s = finished / np.maximum(np.diff(windows.edge_s), 1e-9)
        answered_per_s = np.minimum(offered_per_s, borne_per_s[:, None] / windows.slowness)
        return Latencies(mean_ms, p95_ms, finished, answered_per_s)

    def _simulated(
        self,
        numbers: np.ndarray,
        scale: np.ndarray,
        windows: Windows,
        sharing: bool,
        by_latency: bool = False,
    ) -> np.ndarray:
        """(5, K, windows) as `replayed_ms` tells; of a unit, in its own time."""
        load = self.unit_load[numbers]
        candidates = Candidates(
            self.instances[numbers],
            self.max_batch_size[numbers],
            load * self.delay_s[numbers],
            self._table[numbers],
            load * np.asarray(scale, dtype=float),
        )
        factors = np.exp(self.variation * self._unit_variation - self.variation**2 / 2)
        found = replayed_ms(candidates, self._times_s, factors, windows, sharing, by_latency)
        return np.moveaxis(found, -1, 0)

    def _nearest(self, numbers: np.ndarray, busy: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """(K,) the entries of each with about so many busy instances and so large a batch."""
        nearest = np.argmin(np.abs(np.log(batch[:, None] / self._entries.batch)), axis=1)
        positions = (axis[numbers] for axis in self._positions)
        return self._entries.at(*positions, np.round(busy).astype(int) - 1, nearest)

    def in_closed_loop(
        self, numbers: np.ndarray, scale: np.ndarray, windows: Windows, clients: int, think_s: float
    ) -> Latencies:
        """(K, windows) with so many clients, who send again `think_s` after an answer on average.

        Of the windows the slowness counts.
        """
        factors = np.exp(self.variation * self._unit_variation - self.variation**2 / 2)
        found = closed_loop_ms(
            self.instances[numbers],
            self.max_batch_size[numbers],
            self.delay_s[numbers],
            self._table[numbers],
            np.asarray(scale, dtype=float),
            self._times_s,
            factors,
            np.asarray(windows.slowness, dtype=float),
            clients,
            max(LEAST_ANSWERS, ANSWERS_A_CLIENT * clients),
            think_s,
            _TURNS,
        )
        mean_ms, p95_ms, answered_per_s = np.moveaxis(found, -1, 0)
        return Latencies(mean_ms, p95_ms, answered_per_s * np.diff(windows.edge_s), answered_per_s)

    def _between_batch_sizes(self, times_s: np.ndarray) -> np.ndarray:
        """(tables, N, B) for every batch size 1..B: ln S is linear in ln b between those of the table."""
        grid = self._entries.batch
        if len(grid) == len(self._batches):
            return times_s
        position = np.interp(np.log(self._batches), np.log(grid), np.arange(len(grid)))
        low = np.floor(position).astype(int)
        high = np.minimum(low + 1, len(grid) - 1)
        weight = position - low
        return np.asarray(times_s[..., low] ** (1 - weight) * times_s[..., high] ** weight)


def _of_all(latency_ms: np.ndarray, completions: np.ndarray) -> np.ndarray:
    """(K,) the mean of (K, windows) by the requests answered in each; infinite where none was."""
    sums_ms = (np.where(completions > 0, latency_ms, 0.0) * completions).sum(axis=1)
    answered = completions.sum(axis=1)
    return np.where(answered > 0, sums_ms / np.maximum(answered, 1e-9), np.inf)


def _typical(windows: Windows) -> Windows:
    """Those in which typical requests come, by the load, with about `SCREENING_REQUESTS` requests.

    There is at least one of those that go together, with at most `MAX_SCREENING_REQUESTS` in each stretch.
    """
    firsts = np.arange(0, len(windows.edge_s) - 1, windows.together)
    ends = np.minimum(firsts + windows.together, len(windows.edge_s) - 1)
    requests = windows.bounds[ends] - windows.bounds[firsts]
    rates_per_s = requests / (windows.edge_s[ends] - windows.edge_s[firsts])
    by_load = np.argsort(rates_per_s, kind="stable")
    count = max(1, round(SCREENING_REQUESTS / max(float(requests.mean()), 1.0)))
    below = np.cumsum(requests[by_load]) / max(int(requests.sum()), 1)
    middles = (np.arange(count) + 0.5) / count
    groups = np.unique(by_load[np.minimum(np.searchsorted(below, middles), len(by_load) - 1)])
    kept = np.concatenate([np.arange(firsts[k], ends[k]) for k in groups])
    stretches = [shortened(*each, MAX_SCREENING_REQUESTS) for each in stretches_of(windows, kept)]
    return as_windows(stretches, windows.together, windows.slowness[kept])
