"""What the simulated and the live environment share: one step is one interval under one configuration."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rrl.agent import OBSERVATION_FIELDS, OBSERVATION_LIMIT, observe
from rrl.interval import UNWATCHED, Interval, MeasuredInterval, Watch
from rrl.measurement import Measurement
from rrl.objective import Objective
from rrl.seeding import Seed, whole_seed
from rrl.space import Configuration, ConfigurationSpace


def action_space_of(space: ConfigurationSpace) -> spaces.MultiDiscrete:
    """The indices of each knob's values."""
    return spaces.MultiDiscrete(list(space.shape))


def observation_space_of(space: ConfigurationSpace) -> spaces.Box:
    """What is observed of an interval under a configuration of the space."""
    size = len(OBSERVATION_FIELDS) + len(space.knobs)
    return spaces.Box(0.0, OBSERVATION_LIMIT, (size,), np.float32)


def known_options(options: Mapping[str, Any] | None, *known: str) -> dict[str, Any]:
    """The options of a `reset`; ValueError for any that it does not know, such as one misspelt."""
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(
            f"options must be a dictionary, which may hold {' and '.join(known)}, got {options!r}"
        )
    unknown = [str(name) for name in options or () if name not in known]
    if unknown:
        raise ValueError(f"unknown options {', '.join(unknown)}; reset takes {' and '.join(known)}")
    return dict(options or {})


class ServingEnv(gym.Env[np.ndarray, np.ndarray]):
    """
    ## Description

    An inference server answers requests that arrive on their own account. Once an interval the agent chooses
    a configuration (instances, threads, batching) for the server, and sees what the interval was like.
    The goal is to keep the objective's cost, by default the mean latency, as low as the load allows.
    This is the base of the environments; `SimulatedServing` and `LiveServing` say where the server is.

    ## Action Space

    The action is an `ndarray` with shape `(knobs,)`, `MultiDiscrete(space.shape)`: the index of each knob's
    value in `space`, a `ConfigurationSpace`. A space holds any of these knobs:

    | Knob                 | Values  | Unit     | Meaning                                               |
    |----------------------|---------|----------|-------------------------------------------------------|
    | `instances`          | >= 1    | batches  | how many batches may be in service at once            |
    | `intra_op_threads`   | >= 1    | threads  | threads inside one operator                           |
    | `inter_op_threads`   | >= 1    | threads  | operators of one batch that may run at once           |
    | `max_batch_size`     | >= 1    | requests | a batch is dispatched as soon as it is this large     |
    | `max_queue_delay_us` | >= 0    | µs       | or once its oldest request has waited this long       |
    | `nodes_per_unit`     | >= 1    | nodes    | nodes that serve one batch together                   |

    ## Observation Space

    The observation is a `float32` `ndarray` with shape `(9 + knobs,)` that describes the interval just ended.
    What was not observed is 0. In brackets: where a value lies in practice; all are clipped to [0, 1e7].

    | Num | Observation                                    | Min | Max       | Unit       |
    |-----|------------------------------------------------|-----|-----------|------------|
    | 0   | arrival rate                                   | 0   | 1e7       | requests/s |
    | 1   | mean latency (arrival to answer)               | 0   | 1e7       | ms         |
    | 2   | 95th percentile of the latency                 | 0   | 1e7       | ms         |
    | 3   | mean time in the queue                         | 0   | 1e7       | ms         |
    | 4   | mean time in service                           | 0   | 1e7       | ms         |
    | 5   | mean batch size                                | 0   | 1e7       | requests   |
    | 6   | backlog: requests in the server at the end     | 0   | 1e7       | requests   |
    | 7   | CPU utilisation of the machine                 | 0   | 1e7 (1)   | fraction   |
    | 8   | utilisation of the machine's GPUs              | 0   | 1e7 (1)   | fraction   |
    | 9.. | each knob's index, scaled by its axis's length | 0   | 1e7 (1)   | fraction   |

    `info` tells more: `measurement` (the whole `Measurement`), `number` and `configuration` (what is in
    force), `cost` (what the reward negates), and of a live target what `LiveServing` adds.

    ## Rewards

    Minus the objective's cost for the interval. Where nothing was completed there is no latency and the cost
    is not a number. The reward is 0 then, and nothing should be learned from the interval.

    ## Starting State

    `reset` puts the starting configuration, or `options={"configuration": {...}}`, in force and runs one
    interval under it: that is the first observation.

    ## Episode End

    An episode never terminates. It is truncated only where the workload is fixed and has run out.

    ## Arguments

    | Parameter   | Type                 | Description                                             |
    |-------------|----------------------|---------------------------------------------------------|
    | `space`     | `ConfigurationSpace` | the grid the agent chooses from                         |
    | `objective` | `Objective`          | what to minimise                                        |
    | `start`     | int                  | number, in `space`, of the configuration to start from  |

    ## Without Gymnasium

    `run(number, watch)` is what `step` and `reset` are faces of. It takes a configuration's number in `space`
    and returns an `Interval`. Its `Watch` is shown the `Progress` of a running interval and may interrupt it.
    A live interval may also be measured for a share of its usual time only, or until it has told enough. A
    simulated interval always has its usual requests, unless it is interrupted.

    ## Version History

    * v0: initial version
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium's own attribute)

    def __init__(self, space: ConfigurationSpace, objective: Objective, start: int = 0) -> None:
        if not 0 <= start < len(space):
            raise ValueError(
                f"the start must be a configuration's number, 0 to {len(space) - 1}, got {start}"
            )
        self.space = space
        self.objective = objective
        self.start = start
        self.fixed: Configuration = {}  # the values of knobs that are not in the space, as far as known
        self.action_space = action_space_of(space)
        self.observation_space = observation_space_of(space)
        self._under_way = False  # an episode has begun

    def run(self, number: int, watch: Watch = UNWATCHED) -> Interval:
        """One interval under configuration `number`. It begins an episode where none is under way."""
        if not self._under_way or self._workload_ended():
            self._begin_episode(number)
        measured = self._interval(number, watch)
        measurement = measured.measurement
        return Interval(
            **vars(measured),
            number=number,
            cost=self.cost(measurement, self.space.configuration(number)),
            observation=observe(measurement, self.space, number),
        )

    def cost(self, measurement: Measurement, configuration: Configuration) -> float:
        """What an interval under this configuration costs, by the objective."""
        return float(self.objective.cost(measurement, {**self.fixed, **configuration}))

    def reset(
        self, *, seed: Seed = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=None if seed is None else whole_seed(seed, below=None))
        configuration = known_options(options, "configuration").get("configuration")
        number = self.start if configuration is None else self.space.number(configuration)
        self._begin_episode(number)
        interval = self.run(number)
        return interval.observation, self._info(interval)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self._under_way:
            raise gym.error.ResetNeeded("call reset() before step(): no configuration is in force yet")
        if self._workload_ended():
            raise gym.error.ResetNeeded("the workload has run out; call reset() to start it again")
        interval = self.run(self.space.number_of_action(action))
        return interval.observation, interval.reward, False, self._workload_ended(), self._info(interval)

    def _begin_episode(self, number: int) -> None:
        self._begin(number)
        self._under_way = True

    def _info(self, interval: Interval) -> dict[str, Any]:
        """What Gymnasium's `info` tells of an interval."""
        return {
            "measurement": interval.measurement,
            "number": interval.number,
            "configuration": self.space.configuration(interval.number),
            "cost": interval.cost,
        }

    @abstractmethod
    def _begin(self, number: int) -> None:
        """Begins an episode whose first interval is under configuration `number`."""

    @abstractmethod
    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        """Puts configuration `number` in force if it is not, lets it settle, and measures one interval."""

    def _workload_ended(self) -> bool:
        """True once a fixed workload has run out."""
        return False
