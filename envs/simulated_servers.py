"""The servers of `SimulatedServingVector`: their state in arrays, run by one compiled loop."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from envs.simulated import SimulatedServing
from rrl.measurement import ServiceTimes
from rrl.queueing.kernels import ServerArrivals, ServerResults, ServerRules, Servers, run_servers
from rrl.queueing.machine import Machine


class SimulatedServers:
    """Simulated servers of the same arguments: what waits and is in service, and what the last run measured.

    The arrays' first axis is the servers'.
    """

    def __init__(self, one: SimulatedServing, count: int, factors: np.ndarray) -> None:
        """`factors` (count, draws) are the service-time factors until each server is emptied."""
        self._one = one
        self._knobs = _Knobs(one)
        self._factors = factors
        self._slow = np.zeros(count, bool)
        self._started = np.zeros(count, np.int64)
        self._counts = np.zeros((count, 3), np.int64)  # waiting, in service, batches in service
        self._waiting, self._serving, self._running = (np.empty((count, n, 2)) for n in (2, 3, 5))
        self._telemetry = np.zeros((count, self._knobs.telemetry_rows, 5))
        self._rows = np.zeros(count, np.int64)  # how many rows of telemetry each filled
        self.now_s = np.zeros(count)
        self.totals = np.zeros((count, 3))  # completions, batches, thread-seconds in service
        self.summaries = np.zeros((count, 3, 4))  # latency, queue, service: mean and percentiles in ms

    @property
    def backlog(self) -> np.ndarray:
        """(count,) requests that wait or are in service."""
        return self._counts[:, 0] + self._counts[:, 1]

    def empty(self, e: int, factors: np.ndarray) -> None:
        """Server e starts anew at time 0, at its usual speed."""
        self._factors[e] = factors
        self._counts[e] = self._started[e] = self.now_s[e] = 0
        self._slow[e] = False

    def slow_down(self, which: np.ndarray) -> None:
        """These servers run on the slower machine from now on."""
        self._slow[which] = True

    def run(
        self,
        which: np.ndarray,
        numbers: np.ndarray,
        end_s: np.ndarray,
        arrivals_s: np.ndarray,
        first: np.ndarray,
        last: np.ndarray,
        work: np.ndarray,
    ) -> None:
        """Runs each of these servers until its end.

        Its arrivals are those from `first` to `last` in its row of `arrivals_s`.
        """
        one, knobs = self._one, self._knobs
        self._reserve(int(np.max((self.backlog * one.carry_backlog + last - first)[which])))
        run_servers(
            which,
            self._rules(numbers),
            knobs.tables_s,
            ServerArrivals(self.now_s.copy(), end_s, arrivals_s, first, last, work),
            Servers(self._factors, self._started, self._counts, self._waiting, self._serving, self._running),
            ServerResults(self.totals, self.summaries, self._telemetry, self._rows),
        )
        self.now_s[which] = end_s[which]

    def service_times(self, which: np.ndarray) -> Iterator[tuple[ServiceTimes, ...]]:
        """The telemetry of each of these servers."""
        rows = self._rows[which]
        told = np.arange(self._telemetry.shape[1]) < rows[:, None]
        table = self._telemetry[which][told]  # (all rows, 5)
        counted = table[:, :3].astype(np.int64).T.tolist()
        flat = list(map(ServiceTimes, *counted, *table[:, 3:].T.tolist()))
        ends = np.cumsum(rows).tolist()
        return (tuple(flat[end - count : end]) for end, count in zip(ends, rows.tolist(), strict=True))

    def _rules(self, numbers: np.ndarray) -> ServerRules:
        """How each server serves under the configuration of this number."""
        one, knobs = self._one, self._knobs
        return ServerRules(
            one.discipline == "ps",
            one.padded_batches,
            one.carry_backlog,
            knobs.delay_s[numbers],
            knobs.threads[numbers],
            knobs.instances[numbers],
            knobs.full_size[numbers],
            knobs.table[numbers] + self._slow * knobs.tables,
        )

    def _reserve(self, requests: int) -> None:
        """Makes room in every server for so many requests."""
        if requests > self._waiting.shape[2]:
            self._waiting = _with_room(self._waiting, 2 * requests)
            self._serving = _with_room(self._serving, 2 * requests)
            self._running = _with_room(self._running, 2 * requests)


def _with_room(old: np.ndarray, requests: int) -> np.ndarray:
    new = np.empty((*old.shape[:2], requests))
    new[:, :, : old.shape[2]] = old
    return new


class _Knobs:
    """What the knobs of every configuration of a space mean to the simulator."""

    def __init__(self, one: SimulatedServing) -> None:
        columns = dict(zip(one.space.names, one.space.values.T, strict=True))
        ones = np.ones(len(one.space), np.int64)
        inter, intra = columns.get("inter_op_threads", ones), columns.get("intra_op_threads", ones)
        nodes = columns.get("nodes_per_unit", ones)
        self.instances = columns.get("instances", ones).astype(np.int64)
        self.full_size = columns.get("max_batch_size", ones).astype(np.int64)
        self.delay_s = 1e-6 * columns.get("max_queue_delay_us", 0 * ones)
        self.threads = (inter * intra * nodes).astype(float)
        tuples, self.table = np.unique(np.stack([inter, intra, nodes], axis=1), axis=0, return_inverse=True)
        self.tables = len(tuples)
        machines = [one.machine] if one.slower_machine is None else [one.machine, one.slower_machine]
        self.tables_s = np.stack([self._table(machine, *each) for machine in machines for each in tuples])
        self.telemetry_rows = self.tables_s.shape[1] * self.tables_s.shape[2]

    def _table(self, machine: Machine, inter: int, intra: int, nodes: int) -> np.ndarray:
        return machine.table(
            {
                "inter_op_threads": int(inter),
                "intra_op_threads": int(intra),
                "nodes_per_unit": int(nodes),
                "instances": int(self.instances.max()),
                "max_batch_size": int(self.full_size.max()),
            }
        )
