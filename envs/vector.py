"""`rrl/SimulatedServing-v0` many times over: simulated servers that step together, compiled as one loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.arrival_chunks import ArrivalChunks
from envs.arrival_streams import ArrivalStreams
from envs.serving import known_options
from envs.simulated import SimulatedServing, lognormal_factors
from envs.simulated_servers import SimulatedServers
from rrl.agent import OBSERVATION_LIMIT
from rrl.arrival_summary import dispersion_of_times, summarised
from rrl.measurement import ArrivalSummary, LatencySummary, Measurement
from rrl.seeding import Seed, whole_seed


class SimulatedServingVector(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """
    ## Description

    `num_envs` independent `SimulatedServing` environments of the same arguments. With the same seeds each
    gives what the single environment gives. After `import envs`, one is made by
    `gymnasium.make_vec("rrl/SimulatedServing-v0", num_envs=64)`. Nothing watches its intervals: each runs to
    its end.

    ## Action Space

    `(num_envs, knobs)`: an action of `SimulatedServing` each.

    ## Observation Space

    `(num_envs, 9 + knobs)`, float32: an observation of `SimulatedServing` each.

    ## Rewards

    `(num_envs,)`: minus the cost; 0 where there is none, and for a step that only resets.

    ## Starting State

    As `SimulatedServing`. An int as seed gives environment k the seed + k; a list gives each its
    own, or None to those whose random numbers go on.
    `options` may hold `configuration` and `reset_mask`, `(num_envs,)` bool: which environments to reset.

    ## Episode End

    As `SimulatedServing`. It is truncated after `max_episode_steps` steps, too, where that is given. The step
    after an environment's last resets it, whatever its action (`AutoresetMode.NEXT_STEP`).

    ## Arguments

    `num_envs`, `max_episode_steps` as in `gymnasium.make`, and those of `SimulatedServing`.

    `info` holds arrays, the first axis the environments': `measurement` (of objects), `number`, `cost` and
    `configuration`, a dictionary with an array a knob; each has its mask, of the same name after `_`.

    ## Version History

    * v0: initial version
    """

    def __init__(self, num_envs: int = 1, max_episode_steps: int | None = None, **arguments: Any) -> None:
        """ValueError for arguments that `SimulatedServing` refuses, and for no environment or no step."""
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be at least 1, got {max_episode_steps}")
        self._one = one = SimulatedServing(**arguments)
        self.num_envs = num_envs
        self.metadata = {**one.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_action_space, self.single_observation_space = one.action_space, one.observation_space
        self.action_space = batch_space(one.action_space, num_envs)
        self.observation_space = batch_space(one.observation_space, num_envs)
        self._max_episode_steps = math.inf if max_episode_steps is None else max_episode_steps
        self._random = [seeding.np_random() for _ in range(num_envs)]  # generator and seed of each
        self._reset_once = np.zeros(num_envs, bool)
        self._ended = np.zeros(num_envs, bool)
        self._observations = np.zeros(self.observation_space.shape or (), np.float32)
        self._arrivals = ArrivalStreams(num_envs)
        self._size_rngs = [np.random.default_rng(0)] * num_envs  # placeholders until `reset`
        draws = len(lognormal_factors(one.service_variation, self._size_rngs[0]))
        self._servers = SimulatedServers(one, num_envs, np.ones((num_envs, draws)))
        self._decision = np.full(num_envs, -1)

    def reset(
        self, *, seed: Seed | Sequence[Seed] = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        chosen = known_options(options, "configuration", "reset_mask")
        mask = np.asarray(chosen.get("reset_mask", np.ones(self.num_envs, bool)))
        if mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
            raise ValueError(f"reset_mask must be {self.num_envs} booleans, at least one of them true")
        asked = chosen.get("configuration")
        number = self._one.start if asked is None else self._one.space.number(asked)
        seeds = self._seeds(seed)
        which = np.flatnonzero(mask)
        for e in which.tolist():
            self._begin(e, seeds[e])
        _, info = self._intervals(which, np.full(self.num_envs, number))
        return self._observations.copy(), info

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if not self._reset_once.all():
            raise gym.error.ResetNeeded("call reset() before step(): no configuration is in force yet")
        if (self._ended & (self._decision == 0)).any():
            raise gym.error.ResetNeeded("the workload ran out within the first interval: give a longer one")
        numbers = self._one.space.numbers_of_actions(actions)
        if len(numbers) != self.num_envs:
            raise ValueError(f"give {self.num_envs} actions, one for each environment, got {len(numbers)}")
        begins = self._ended.copy()
        for e in np.flatnonzero(begins).tolist():
            self._begin(e, None)
        numbers = np.where(begins, self._one.start, numbers)
        rewards, info = self._intervals(np.arange(self.num_envs), numbers)
        rewards[begins] = 0.0
        self._ended |= self._decision >= self._max_episode_steps
        truncations = self._ended & ~begins
        return self._observations.copy(), rewards, np.zeros(self.num_envs, bool), truncations, info

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each environment, as Gymnasium's own vectors have it."""
        return tuple(generator for generator, _ in self._random)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """What the generator of each environment was last seeded with."""
        return tuple(seed for _, seed in self._random)

    def _seeds(self, seed: Seed | Sequence[Seed]) -> list[int | None]:
        """One for each environment; None where its random numbers go on."""
        if isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str):
            if np.ndim(np.asarray(seed, object)) == 0 or len(seed) != self.num_envs:
                raise ValueError(f"give one seed for each of the {self.num_envs} environments, got {seed!r}")
            return [None if each is None else whole_seed(each, below=None) for each in seed]
        if seed is None:
            return [None] * self.num_envs
        first = whole_seed(seed, below=None)
        return [first + k for k in range(self.num_envs)]

    def _begin(self, e: int, seed: int | None) -> None:
        """Begins an episode of environment e, up to its first interval."""
        one = self._one
        if seed is not None:
            self._random[e] = seeding.np_random(seed)
        arrivals_rng, self._size_rngs[e], variation_rng = self._random[e][0].spawn(3)
        self._arrivals.begin(e, ArrivalChunks(one.arrivals, arrivals_rng))
        if self._arrivals.ended(e):
            raise ValueError("the arrival process yields no arrivals; give one with at least one request")
        self._servers.empty(e, lognormal_factors(one.service_variation, variation_rng))
        self._decision[e] = -1
        self._ended[e] = False
        self._reset_once[e] = True

    def _intervals(self, which: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """One interval of these environments, each under its configuration: rewards and info."""
        one, servers, arrivals = self._one, self._servers, self._arrivals
        if one.slowdown is not None:
            servers.slow_down(which[self._decision[which] == one.slowdown[0]])
        self._decision[which] += 1
        begin_s = servers.now_s.copy()
        end_s, last = arrivals.interval_ends(which, begin_s, one.requests_per_interval, one.interval_s)
        arrived = last - arrivals.first
        backlog_before = servers.backlog * one.carry_backlog
        work = self._work(which, arrived)
        servers.run(which, numbers, end_s, arrivals.times_s, arrivals.first, last, work)
        seen_s = arrivals.until(which, last)
        arrivals.first[which] = last[which]
        for e in which[arrivals.first[which] == arrivals.known[which]].tolist():
            self._ended[e] = arrivals.ended(e)
        return self._told(which, numbers, (begin_s, end_s), arrived, backlog_before, seen_s)

    def _told(
        self,
        which: np.ndarray,
        numbers: np.ndarray,
        ends_s: tuple[np.ndarray, np.ndarray],
        arrived: np.ndarray,
        backlog_before: np.ndarray,
        seen_s: np.ndarray,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Rewards and info of the intervals just run; fills in their observations."""
        one, space = self._one, self._one.space
        chosen = numbers[which]
        begin_s, end_s = (moments_s[which] for moments_s in ends_s)
        span_s, arrivals = end_s - begin_s, arrived[which]
        last = np.cumsum(arrivals)
        its_arrivals = repeat(seen_s), (last - arrivals).tolist(), last.tolist(), begin_s.tolist()
        completions, batches, busy_thread_s = self._servers.totals[which].T
        backlog = self._servers.backlog[which]
        batch_size = np.divide(completions, batches, out=np.full(len(which), np.nan), where=batches > 0)
        utilisation = np.minimum(1.0, busy_thread_s / (one.cores * span_s))
        latency, queue, service = (self._servers.summaries[which, k] for k in range(3))
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
                self._servers.service_times(which),
                repeat(""),  # aborted
                repeat(""),  # gap
                map(partial, repeat(_arrival_summary), *its_arrivals),
                map(partial, repeat(_dispersion), *its_arrivals, span_s.tolist()),
            )
        )
        costs = np.zeros(self.num_envs)
        costs[which] = list(map(one.objective.cost, told, map(space.configuration, chosen.tolist())))
        rate_per_s = arrivals / span_s
        fields = (rate_per_s, latency[:, 0], latency[:, 2], queue[:, 0], service[:, 0])
        of_gpus = np.zeros(len(which))
        observed = np.column_stack(
            [*fields, batch_size, backlog, utilisation, of_gpus, space.features[chosen]]
        )
        self._observations[which] = np.clip(np.nan_to_num(observed), 0.0, OBSERVATION_LIMIT)
        return -np.nan_to_num(costs), self._info(which, numbers, measurements, costs)

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


def _arrival_summary(times_s: np.ndarray, first: int, last: int, begin_s: float) -> ArrivalSummary:
    return summarised(times_s[first:last] - begin_s)


def _dispersion(times_s: np.ndarray, first: int, last: int, begin_s: float, duration_s: float) -> float:
    return dispersion_of_times(times_s[first:last] - begin_s, duration_s)
