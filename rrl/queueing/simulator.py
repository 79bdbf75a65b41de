"""A discrete-event simulation of the queue, the batcher and the workers, compiled with numba.

| symbol | here | meaning |
|---|---|---|
| a_i | `arrival_s` | arrival time of request i; requests are served first come, first served |
| c | `instances` | batches that may be in service at once |
| B, d | `max_batch_size`, `max_queue_delay_us` | full with B requests, or due once its head waited d |
| s | `start_s` | dispatch of the batch headed by i: max(time an instance is free, min(a_[i+B-1], a_i + d)) |
| S[n, b] | `Machine.table` | service time of a batch of b requests with n in service, this one included |

The batch holds the requests that arrived by s, at most B. Its service time is fixed at its start: S[n, b] of
that moment, times the mean (where batches are padded, the largest) size of its requests, times a variation
factor.

Runs follow one another: what waits or is in service at the end of one is there at the start of the next, so a
run cut into slices is the same run. A run covers [now, until): an event at `until` belongs to the next.
A configuration holds for the batches that start under it. With fewer instances than batches in service none
starts until enough have finished; when an instance is free depends on the c latest finish times alone.

A server is one serving unit: of `nodes_per_unit` nodes, whose threads are all busy with a batch.

Under the discipline "ps" the batches in service share the processors instead: see `kernels`.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from rrl.queueing.kernels import B_SIZE, NOT_ASCENDING, Counts, Rules, run_tuples
from rrl.queueing.machine import Machine
from rrl.queueing.outcome import Outcome
from rrl.space import Configuration

Discipline = Literal["fcfs", "ps"]
"""How batches in service go together: a time fixed at the start, or limited processor sharing."""


class Simulation:
    """A server in simulation: a machine, the requests that wait and the batches in service."""

    def __init__(
        self,
        machine: Machine,
        *,
        discipline: Discipline = "fcfs",
        padded_batches: bool = False,
        service_factors: np.ndarray | None = None,
    ) -> None:
        """`padded_batches`: a batch takes the time of its largest request, not that of its mean one.

        `service_factors`: variation; batch number k takes `factors[k % len(factors)]` times as long.
        """
        factors = np.ones(1) if service_factors is None else np.array(service_factors, dtype=np.float64)
        if factors.ndim != 1 or factors.size == 0 or not np.all(np.isfinite(factors) & (factors > 0)):
            raise ValueError("service factors must be a non-empty one-dimensional array of positive numbers")
        if discipline not in get_args(Discipline):
            raise ValueError(f"unknown discipline {discipline!r}; known: {', '.join(get_args(Discipline))}")
        self.machine = machine  # may be changed between runs
        self.discipline = discipline
        self.now_s = 0.0
        self._padded_batches = padded_batches
        self._factors = factors
        self._waiting = np.empty((2, 0))
        self._serving = np.empty((3, 0))
        self._running = np.empty((5, 0))
        self._counts = Counts()

    @property
    def backlog(self) -> int:
        """Requests in the server: waiting or in service."""
        return self._counts.waiting + self._counts.serving

    def drop_backlog(self) -> None:
        """Empties the server: nothing waits and nothing is in service from now on."""
        self._counts = Counts(started=self._counts.started)

    def run(
        self,
        arrival_times_s: np.ndarray,
        sizes: np.ndarray | None,
        configuration: Configuration,
        until_s: float,
    ) -> Outcome:
        """Simulates [now, until) with these arrivals, ascending and inside it, and sizes (None: all 1).

        Knobs the configuration lacks: 1 instance, 1 thread, batches of 1, no delay, 1 node. `until_s` may be
        inf.
        """
        rules = self._rules(configuration)
        times_s = self._checked_arrivals(arrival_times_s, until_s)
        count = len(times_s)
        arrivals = times_s, _NONE if sizes is None else _checked_sizes(sizes, count)
        service = self._table(configuration), self._factors
        requests = self.backlog + count
        self._reserve(requests)
        done = np.empty((3, requests))
        batches = np.empty((4, self._counts.running + self._counts.waiting + count))
        free_s = np.empty(len(service[0]))
        counts, finished = run_tuples(
            (self.now_s, float(until_s)),
            tuple(rules),
            service,
            arrivals,
            (self._waiting, self._serving, self._running, free_s, done, batches),
            tuple(self._counts),
        )
        n_done, n_batches, busy_thread_s = finished
        if n_done == NOT_ASCENDING:
            raise ValueError("arrivals must be numbers in ascending order")
        self._counts = Counts(*counts)
        self.now_s = float(until_s)
        return Outcome(*done[:, :n_done], *batches[:, :n_batches], busy_thread_s)  # type: ignore[call-arg]

    def drain(self, configuration: Configuration) -> Outcome:
        """Serves what is in the server to its end, without arrivals; the clock is then put back."""
        now_s = self.now_s
        outcome = self.run(_NONE, None, configuration, np.inf)
        self.now_s = now_s
        return outcome

    def _rules(self, configuration: Configuration) -> Rules:
        value = configuration.get
        delay_s = 1e-6 * value("max_queue_delay_us", 0)
        if delay_s < 0:
            raise ValueError(f"max_queue_delay_us must not be negative, got {1e6 * delay_s:g}")
        threads = float(
            value("intra_op_threads", 1) * value("inter_op_threads", 1) * value("nodes_per_unit", 1)
        )
        instances, full_size = value("instances", 1), value("max_batch_size", 1)
        return Rules(self.discipline == "ps", self._padded_batches, delay_s, threads, instances, full_size)

    def _checked_arrivals(self, arrival_times_s: np.ndarray, until_s: float) -> np.ndarray:
        arrivals = np.ascontiguousarray(arrival_times_s, dtype=np.float64)
        if not until_s >= self.now_s:
            raise ValueError(f"the simulation is at {self.now_s:g} s already and cannot run to {until_s:g} s")
        if len(arrivals) and not (arrivals[0] >= self.now_s and arrivals[-1] < until_s):
            raise ValueError(
                f"arrivals must lie in [{self.now_s:g}, {until_s:g}) s, "
                f"got {arrivals[0]:g} to {arrivals[-1]:g} s"
            )
        return arrivals

    def _table(self, configuration: Configuration) -> np.ndarray:
        """The service times of the configuration; shared processors need those of what is in service too."""
        if self.discipline == "fcfs" or self._counts.running == 0:
            return self.machine.table(configuration)
        largest = int(self._running[B_SIZE, : self._counts.running].max())
        return self.machine.table(
            {
                **configuration,
                "instances": max(configuration.get("instances", 1), self._counts.running),
                "max_batch_size": max(configuration.get("max_batch_size", 1), largest),
            }
        )

    def _reserve(self, requests: int) -> None:
        """Makes room for so many requests to wait, or to be in service one by one."""
        if requests > self._waiting.shape[1]:
            self._waiting = _widened(self._waiting, 2 * requests)
            self._serving = _widened(self._serving, 2 * requests)
            self._running = _widened(self._running, 2 * requests)


_NONE = np.empty(0)


def _widened(rows: np.ndarray, columns: int) -> np.ndarray:
    wide = np.empty((len(rows), columns))
    wide[:, : rows.shape[1]] = rows
    return wide


def _checked_sizes(sizes: np.ndarray, count: int) -> np.ndarray:
    checked = np.ascontiguousarray(sizes, dtype=np.float64)
    if checked.shape != (count,) or not np.all(np.isfinite(checked) & (checked > 0)):
        raise ValueError(f"sizes must be {count} positive numbers, one for each arrival")
    return checked
