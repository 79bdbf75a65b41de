"""`rrl/SimulatedServing-v0` many times over: simulated servers that step together, compiled as one loop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.simulated import SimulatedServing, lognormal_factors
from rrl.agent import OBSERVATION_LIMIT
from rrl.measurement import LatencySummary, Measurement, ServiceTimes
from rrl.queueing.kernels import (
    Length,
    ServerArrivals,
    ServerResults,
    ServerRules,
    Servers,
    Stream,
    interval_ends_s,
    run_servers,
)
from rrl.queueing.machine import Machine

_NO_CHUNKS: Iterator[np.ndarray] = iter(())


class SimulatedServingVector(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """
    ## Description

    `num_envs` independent `SimulatedServing` environments of the same arguments: with the same seeds each
    gives what the single environment gives. `gymnasium.make_vec("rrl/SimulatedServing-v0", num_envs=64)`
    makes one. There is no `interrupt`.

    ## Action Space

    `(num_envs, knobs)`: an action of `SimulatedServing` each.

    ## Observation Space

    `(num_envs, 8 + knobs)`, float32: an observation of `SimulatedServing` each.

    ## Rewards

    `(num_envs,)`: minus the cost; 0 where there is none, and for a step that only resets.

    ## Starting State

    As `SimulatedServing`. An int as seed gives environment k the seed + k; a list gives each its own.
    `options` may hold `configuration` and `reset_mask`, `(num_envs,)` bool: which environments to reset.

    ## Episode End

    As `SimulatedServing`. The step after an environment's last resets it, whatever its action
    (`AutoresetMode.NEXT_STEP`).

    ## Arguments

    `num_envs`, and those of `SimulatedServing`.

    `info` holds arrays, the first axis the environments': `measurement` (of objects), `number`, `cost` and
    `configuration`, a dictionary with an array a knob; each has its mask, of the same name after `_`.

    ## Version History

    * v0: initial version
    """

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        """ValueError for arguments that `SimulatedServing` refuses, and for fewer than 1 environment."""
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self._one = one = SimulatedServing(**arguments)
        self.num_envs = num_envs
        self.metadata = {**one.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_action_space, self.single_observation_space = one.action_space, one.observation_space
        self.action_space = batch_space(one.action_space, num_envs)
        self.observation_space = batch_space(one.observation_space, num_envs)
        self._knobs = _Knobs(one)
        self._rngs: list[np.random.Generator | None] = [None] * num_envs
        self._reset_once = np.zeros(num_envs, bool)
        self._ended = np.zeros(num_envs, bool)
        self._observations = np.zeros(self.observation_space.shape or (), np.float32)
        self._arrivals = _ArrivalStreams(num_envs)
        self._size_rngs = [np.random.default_rng(0)] * num_envs  # placeholders until `reset`
        self._factors = np.ones((num_envs, len(lognormal_factors(one.service_variation, self._size_rngs[0]))))
        self._decision = np.full(num_envs, -1)
        self._slow = np.zeros(num_envs, bool)
        self._now_s = np.zeros(num_envs)
        self._started = np.zeros(num_envs, np.int64)
        self._counts = np.zeros((num_envs, 3), np.int64)  # waiting, in service, batches in service
        self._reserve(1)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        chosen = dict(options or {})
        mask = np.asarray(chosen.get("reset_mask", np.ones(self.num_envs, bool)))
        if mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
            raise ValueError(f"reset_mask must be {self.num_envs} booleans, at least one of them true")
        asked = chosen.get("configuration")
        number = self._one.start if asked is None else self._one.space.number(asked)
        seeds = [seed + k for k in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None and len(seeds) != self.num_envs:
            raise ValueError(f"give one seed for each of the {self.num_envs} environments, got {len(seeds)}")
        which = np.flatnonzero(mask)
        for e in which.tolist():
            self._begin(e, None if seeds is None else seeds[e])
        _, info = self._intervals(which, np.full(self.num_envs, number))
        return self._observations.copy(), info

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if not self._reset_once.all():
            raise gym.error.ResetNeeded("call reset() before step(): no configuration is in force yet")
        numbers = np.ravel_multi_index(tuple(np.asarray(actions).T), self._one.space.shape)
        begins = self._ended.copy()
        for e in np.flatnonzero(begins).tolist():
            self._begin(e, None)
        numbers = np.where(begins, self._one.start, numbers)
        rewards, info = self._intervals(np.arange(self.num_envs), numbers)
        rewards[begins] = 0.0
        truncations = self._ended & ~begins
        return self._observations.copy(), rewards, np.zeros(self.num_envs, bool), truncations, info

    def _begin(self, e: int, seed: int | None) -> None:
        """Begins an episode of environment e, up to its first interval."""
        one = self._one
        rng = self._rngs[e]
        if rng is None or seed is not None:
            rng = self._rngs[e] = seeding.np_random(seed)[0]
        arrivals_rng, self._size_rngs[e], variation_rng = rng.spawn(3)
        self._arrivals.begin(e, one.arrivals.times_s(arrivals_rng))
        if self._arrivals.ended(e):
            raise ValueError("the arrival process yields no arrivals; give one with at least one request")
        self._factors[e] = lognormal_factors(one.service_variation, variation_rng)
        self._counts[e] = self._started[e] = self._now_s[e] = 0
        self._decision[e] = -1
        self._slow[e] = self._ended[e] = False
        self._reset_once[e] = True

    def _intervals(self, which: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """One interval of these environments, each under its configuration: rewards and info."""
        one, knobs, arrivals = self._one, self._knobs, self._arrivals
        if one.slowdown is not None:
            self._slow[which] |= self._decision[which] == one.slowdown[0]
        self._decision[which] += 1
        begin_s = self._now_s.copy()
        end_s, last = arrivals.interval_ends(which, begin_s, one.requests_per_interval, one.interval_s)
        arrived = last - arrivals.first
        backlog_before = self._counts[:, 0] + self._counts[:, 1] if one.carry_backlog else np.zeros_like(last)
        self._reserve(int(np.max((backlog_before + arrived)[which])))
        run_servers(
            which,
            self._rules(numbers),
            knobs.tables_s,
            ServerArrivals(
                begin_s, end_s, arrivals.times_s, arrivals.first, last, self._work(which, arrived)
            ),
            Servers(self._factors, self._started, self._counts, self._waiting, self._serving, self._running),
            ServerResults(self._totals, self._summaries, self._telemetry, self._rows),
        )
        self._now_s[which] = end_s[which]
        arrivals.first[which] = last[which]
        for e in which[arrivals.first[which] == arrivals.known[which]].tolist():
            self._ended[e] = arrivals.ended(e)
        return self._told(which, numbers, end_s - begin_s, arrived, backlog_before)

    def _told(
        self,
        which: np.ndarray,
        numbers: np.ndarray,
        duration_s: np.ndarray,
        arrived: np.ndarray,
        backlog_before: np.ndarray,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Rewards and info of the intervals just run; fills in their observations."""
        one, space = self._one, self._one.space
        chosen = numbers[which]
        span_s, arrivals = duration_s[which], arrived[which]
        completions, batches, busy_thread_s = self._totals[which].T
        backlog = self._counts[which, 0] + self._counts[which, 1]
        batch_size = np.divide(completions, batches, out=np.full(len(which), np.nan), where=batches > 0)
        utilisation = np.minimum(1.0, busy_thread_s / (one.cores * span_s))
        latency, queue, service = (self._summaries[which, k] for k in range(3))
        measurements = np.full(self.num_envs, None, object)
        measurements[which] = told = list(
            map(
                Measurement,
                span_s.tolist(),
                arrivals.tolist(),
                completions.astype(np.int64).tolist(),
                repeat(0),  # failures
                map(LatencySummary._make, latency.tolist()),
                map(LatencySummary._make, queue.tolist()),
                map(LatencySummary._make, service.tolist()),
                batch_size.tolist(),
                backlog.tolist(),
                (backlog - backlog_before[which]).tolist(),
                utilisation.tolist(),
                repeat(math.nan),  # of the GPU
                self._service_times(which),
            )
        )
        costs = np.zeros(self.num_envs)
        costs[which] = list(map(one.objective.cost, told, map(space.configuration, chosen.tolist())))
        rate_per_s = arrivals / span_s
        fields = (rate_per_s, latency[:, 0], latency[:, 2], queue[:, 0], service[:, 0])
        observed = np.column_stack([*fields, batch_size, backlog, utilisation, space.features[chosen]])
        self._observations[which] = np.clip(np.nan_to_num(observed), 0.0, OBSERVATION_LIMIT)
        return -np.nan_to_num(costs), self._info(which, numbers, measurements, costs)

    def _service_times(self, which: np.ndarray) -> Iterator[tuple[ServiceTimes, ...]]:
        """The telemetry of each of these environments."""
        rows = self._rows[which]
        told = np.arange(self._telemetry.shape[1]) < rows[:, None]
        table = self._telemetry[which][told]  # (all rows, 4)
        counted = table[:, :3].astype(np.int64).T.tolist()
        flat = list(map(ServiceTimes, *counted, table[:, 3].tolist()))
        ends = np.cumsum(rows).tolist()
        return (tuple(flat[end - count : end]) for end, count in zip(ends, rows.tolist(), strict=True))

    def _info(
        self, which: np.ndarray, numbers: np.ndarray, measurements: np.ndarray, costs: np.ndarray
    ) -> dict[str, Any]:
        told = np.zeros(self.num_envs, bool)
        told[which] = True
        values = np.where(told[:, None], self._one.space.values[numbers], 0)
        configuration: dict[str, np.ndarray] = {}
        for name, column in zip(self._one.space.names, values.T, strict=True):
            configuration |= {name: column, f"_{name}": told.copy()}
        info = {
            "measurement": measurements,
            "number": np.where(told, numbers, 0),
            "configuration": configuration,
            "cost": costs,
        }
        return info | {f"_{name}": told.copy() for name in info}

    def _rules(self, numbers: np.ndarray) -> ServerRules:
        """How each environment's server serves under the configuration of this number."""
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

    def _work(self, which: np.ndarray, arrived: np.ndarray) -> np.ndarray:
        """(num_envs, most arrivals) service times as multiples of the table's; or none at all."""
        one = self._one
        if one.sizes is None:
            return np.empty((self.num_envs, 0))
        work = np.empty((self.num_envs, int(arrived[which].max())))
        for e in which.tolist():
            count = arrived[e]
            work[e, :count] = one.sizes.sample(self._size_rngs[e], count) / one.size_of_table
        return work

    def _reserve(self, requests: int) -> None:
        """Makes room in every server for so many requests."""
        if not hasattr(self, "_waiting"):
            rows = self._knobs.tables_s.shape[1] * self._knobs.tables_s.shape[2]
            self._totals, self._summaries = np.zeros((self.num_envs, 3)), np.zeros((self.num_envs, 3, 4))
            self._telemetry = np.zeros((self.num_envs, rows, 4))
            self._rows = np.zeros(self.num_envs, np.int64)
            self._waiting, self._serving, self._running = (np.empty((self.num_envs, n, 0)) for n in (2, 3, 5))
        room = self._waiting.shape[2]
        if requests > room:
            for name in ("_waiting", "_serving", "_running"):
                old = getattr(self, name)
                new = np.empty((*old.shape[:2], 2 * requests))
                new[:, :, :room] = old
                setattr(self, name, new)


class _Knobs:
    """What the knobs of every configuration of a space mean to the simulator."""

    def __init__(self, one: SimulatedServing) -> None:
        columns = dict(zip(one.space.names, one.space.values.T, strict=True))
        ones = np.ones(len(one.space), np.int64)
        inter, intra = columns.get("inter_op_threads", ones), columns.get("intra_op_threads", ones)
        self.instances = columns.get("instances", ones).astype(np.int64)
        self.full_size = columns.get("max_batch_size", ones).astype(np.int64)
        self.delay_s = 1e-6 * columns.get("max_queue_delay_us", 0 * ones)
        self.threads = (inter * intra).astype(float)
        pairs, self.table = np.unique(np.stack([inter, intra], axis=1), axis=0, return_inverse=True)
        self.tables = len(pairs)
        machines = [one.machine] if one.slower_machine is None else [one.machine, one.slower_machine]
        self.tables_s = np.stack([self._table(machine, *pair) for machine in machines for pair in pairs])

    def _table(self, machine: Machine, inter: int, intra: int) -> np.ndarray:
        return machine.table(
            {
                "inter_op_threads": int(inter),
                "intra_op_threads": int(intra),
                "instances": int(self.instances.max()),
                "max_batch_size": int(self.full_size.max()),
            }
        )


class _ArrivalStreams:
    """An arrival process for each environment, read ahead as far as is asked."""

    def __init__(self, num_envs: int) -> None:
        self._chunks: list[Iterator[np.ndarray]] = [_NO_CHUNKS] * num_envs
        self._all_known = np.zeros(num_envs, bool)
        self.times_s = np.empty((num_envs, 0))
        self.first = np.zeros(num_envs, np.int64)  # where the arrivals to come begin
        self.known = np.zeros(num_envs, np.int64)  # ... and end, as far as they are read

    def begin(self, e: int, chunks: Iterator[np.ndarray]) -> None:
        self._chunks[e] = chunks
        self._all_known[e] = False
        self.first[e] = self.known[e] = 0

    def ended(self, e: int) -> bool:
        """True if no arrival is to come."""
        while self.first[e] == self.known[e] and not self._all_known[e]:
            self._read(e)
        return bool(self.first[e] == self.known[e])

    def interval_ends(
        self, which: np.ndarray, begin_s: np.ndarray, requests: int, interval_s: float | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """When the intervals that begin now end, and where in `times_s` their arrivals do."""
        end_s, last = begin_s.copy(), self.first.copy()
        length = Length(requests, math.nan if interval_s is None else interval_s)
        while len(which):
            stream = Stream(self.times_s, self.first, self.known, self._all_known)
            unclear = interval_ends_s(which, stream, begin_s, length, end_s, last)
            which = np.flatnonzero(unclear)
            for e in which.tolist():
                self._read(e)
                # what was read may have moved the arrivals to the front
                last[e] = self.first[e]
        return end_s, last

    def _read(self, e: int) -> None:
        chunk = next(self._chunks[e], None)
        if chunk is None:
            self._all_known[e] = True
            return
        left = self.times_s[e, self.first[e] : self.known[e]].copy()
        count = len(left) + len(chunk)
        if count > self.times_s.shape[1]:
            grown = np.empty((len(self.first), 2 * count))
            grown[:, : self.times_s.shape[1]] = self.times_s
            self.times_s = grown
        self.times_s[e, : len(left)] = left
        self.times_s[e, len(left) : count] = chunk
        self.first[e], self.known[e] = 0, count
