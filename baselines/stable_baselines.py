"""Stable-Baselines3's DQN and PPO as an engineer of today would point them at a server.

The models, buffers and training are the library's (Raffin et al., JMLR 2021). Only its loop, which would step
the environment itself, is replaced by `act` and `update`.

| | DQN | PPO |
|---|---|---|
| action | one of all configurations, `Discrete` | an index for each knob, `MultiDiscrete` |
| observation | scaled (`baselines.scaling`) | the same |
| reward | 1 / relative cost | -ln(relative cost) |
| γ | 0, as a configuration hardly changes what comes after | the same |
| trains | every decision, on minibatches of its replay buffer | every rollout, on all of it |

DQN's rewards are positive because its Q starts near 0. With negative rewards every untried configuration
would look better than any tried one, and there are more configurations than decisions.

The settings suit hundreds of decisions. The library's defaults are for millions of steps: PPO would first
train after 2,048. The settings were chosen among six to eight for each, on the machines 0-5 of
`envs.scenarios.families`.

The library draws from the global generators of Python, NumPy and PyTorch. Each agent puts generators of its
own in their place while the library works. So two agents in one process do not draw from each other's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.logger import Logger

from baselines.scaling import INPUT_LIMIT, Scaling
from rrl.agent import Agent, Proposable, Task, Transition
from rrl.region.policy import drawn_indices
from rrl.seeding import Seed, whole_seed

DQN_ARGUMENTS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "buffer_size": 10_000,  # transitions
    "learning_starts": 16,  # decisions, which are random until then
    "batch_size": 32,
    "gradient_steps": 4,  # for each decision
    "gamma": 0.0,
    "exploration_initial_eps": 1.0,
    "exploration_final_eps": 0.05,
    "exploration_fraction": 0.1,  # of `EXPECTED_DECISIONS`
}
"""The arguments of `stable_baselines3.DQN`."""

PPO_ARGUMENTS: dict[str, Any] = {
    "learning_rate": 1e-2,
    "n_steps": 8,  # decisions in a rollout
    "batch_size": 8,
    "n_epochs": 10,
    "gamma": 0.0,
}
"""The arguments of `stable_baselines3.PPO`."""

EXPECTED_DECISIONS = 400
"""What `learn(total_timesteps=...)` would be told. The schedule of exploration is a share of it."""


class StableBaselinesDQN(Agent):
    """DQN over the numbers of all configurations."""

    def __init__(self, task: Task, seed: Seed = 0) -> None:
        seed = whole_seed(seed)
        self.space = task.space
        self._randomness = _Randomness()
        self._scaling = Scaling(task)
        self._proposable = Proposable(task)
        with self._randomness.in_place():
            spaces = _Spaces(self._scaling.size, gym.spaces.Discrete(len(self.space)))
            self.model = DQN("MlpPolicy", spaces, seed=seed, device="cpu", **DQN_ARGUMENTS)
        self.model.set_logger(Logger(None, []))
        self._decisions = 0
        self._rng = np.random.default_rng(seed)
        self._draw()

    def act(self, observation: np.ndarray) -> np.ndarray:
        """The configuration with the highest Q of those that may be proposed, or a random one."""
        if self._explore < self.exploration_rate(self._decisions):
            return self.space.action(self._random_number)
        with torch.no_grad():
            q = self.model.q_net(torch.from_numpy(self._scaling.inputs(observation)[None]))[0].numpy()
        return self.space.action(int(np.argmax(np.where(self._proposable.mask, q, -np.inf))))

    def update(self, transition: Transition) -> None:
        """Adds one interval to the replay buffer, unless it has a gap or no cost, and trains."""
        self._decisions += 1
        self._draw()
        if not transition.has_cost:
            return
        self._scaling.see(transition)
        buffer = self.model.replay_buffer
        assert buffer is not None  # made by the constructor
        buffer.add(
            self._scaling.inputs(transition.observation),
            self._scaling.inputs(transition.next_observation),
            np.array([self.space.number_of_action(transition.action)]),
            np.array([1.0 / self._scaling.relative_cost(transition.cost)]),
            np.array([False]),
            [{}],
        )
        if self._decisions >= self.model.learning_starts:
            with self._randomness.in_place():
                self.model.train(DQN_ARGUMENTS["gradient_steps"], DQN_ARGUMENTS["batch_size"])

    def refused(self, number: int) -> None:
        self._proposable.refused(number)

    def exploration_rate(self, decisions: int) -> float:
        """ε after so many decisions; 1 until the training starts."""
        if decisions < self.model.learning_starts:
            return 1.0
        return float(self.model.exploration_schedule(max(0.0, 1.0 - decisions / EXPECTED_DECISIONS)))

    def _draw(self) -> None:
        self._explore = float(self._rng.random())
        numbers = np.flatnonzero(self._proposable.mask)
        self._random_number = int(numbers[self._rng.integers(len(numbers))])


class StableBaselinesPPO(Agent):
    """PPO with an index for each knob."""

    def __init__(self, task: Task, seed: Seed = 0) -> None:
        seed = whole_seed(seed)
        self.space = task.space
        self._randomness = _Randomness()
        self._scaling = Scaling(task)
        self._proposable = Proposable(task)
        with self._randomness.in_place():
            spaces = _Spaces(self._scaling.size, gym.spaces.MultiDiscrete(list(self.space.shape)))
            self.model = PPO("MlpPolicy", spaces, seed=seed, device="cpu", **PPO_ARGUMENTS)
        self.model.set_logger(Logger(None, []))
        self._starts = True
        self._rng = np.random.default_rng(seed)
        self._draws = self._rng.random(len(self.space.knobs))

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Draws an index for each knob from the policy, of what may be proposed."""
        may_be = self._proposable.mask.reshape(self.space.shape)
        return np.array(drawn_indices(self.policy(observation), self._draws, may_be), dtype=np.int64)

    def policy(self, observation: np.ndarray) -> list[np.ndarray]:
        """The probability of each value: for each knob, (values,) float."""
        with torch.no_grad():
            distribution = self.model.policy.get_distribution(self._tensor(observation))
        categoricals: Any = distribution.distribution  # one for each knob
        return [categorical.probs[0].double().numpy() for categorical in categoricals]

    def update(self, transition: Transition) -> None:
        """Adds one interval to the rollout, unless it has a gap or no cost, and trains when it is full."""
        self._draws = self._rng.random(len(self.space.knobs))
        if not transition.has_cost:
            return
        self._scaling.see(transition)
        policy, buffer = self.model.policy, self.model.rollout_buffer
        inputs = self._tensor(transition.observation)
        with torch.no_grad():
            value, log_probability, _ = policy.evaluate_actions(
                inputs, torch.from_numpy(transition.action[None])
            )
        buffer.add(
            inputs.numpy(),
            transition.action[None],
            np.array([-math.log(self._scaling.relative_cost(transition.cost))]),
            np.array([self._starts]),
            value,
            log_probability,
        )
        self._starts = False
        if buffer.full:
            with torch.no_grad():
                last = policy.predict_values(self._tensor(transition.next_observation))
            buffer.compute_returns_and_advantage(last_values=last, dones=np.array([False]))
            with self._randomness.in_place():
                self.model.train()
            buffer.reset()

    def refused(self, number: int) -> None:
        self._proposable.refused(number)

    def _tensor(self, observation: np.ndarray) -> torch.Tensor:
        """(1, inputs) float32."""
        return torch.from_numpy(self._scaling.inputs(observation)[None])


class _Spaces(gym.Env[np.ndarray, Any]):
    """What the library's constructors ask an environment for; it is never stepped."""

    def __init__(self, inputs: int, action_space: gym.Space[Any]) -> None:
        self.observation_space = gym.spaces.Box(-INPUT_LIMIT, INPUT_LIMIT, (inputs,), np.float32)
        self.action_space = action_space


class _Randomness:
    """One agent's states of the three global generators that the library draws from."""

    def __init__(self) -> None:
        self._states = _global_states()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the global generators are this agent's. Afterwards they are as before."""
        before = _global_states()
        _set_global_states(self._states)
        try:
            yield
        finally:
            self._states = _global_states()
            _set_global_states(before)


def _global_states() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002


def _set_global_states(states: tuple[Any, Any, torch.Tensor]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.random.set_rng_state(states[2])
