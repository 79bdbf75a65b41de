"""DeepRM: a policy gradient with a small network (Mao et al., HotNets'16; github.com/hongzimao/deeprm).

| symbol | here | meaning |
|---|---|---|
| s | `Scaling.inputs` | the observation, scaled (`baselines.scaling`) |
| π_θ(s, a) | `policy` | one hidden layer of 20 ReLU units, then a softmax over the outputs |
| v | `OneStepEpisode.value` | the return of an episode |
| b | baseline | the mean return of a batch of episodes |
| θ | `network` | θ ← θ + α · RMSProp of the mean of ∇ ln π_θ(s, a) · (v - b) |

DeepRM was made for scheduling jobs in episodes. Here nothing ends, and a configuration hardly changes what
comes after its interval. So an episode is one decision, and a return (with γ = 1) is one reward. The
repository's batches, 10 episodes of up to 200 actions, would mean one update in 2,000 decisions.

What does an output mean? RRL says only that "the Scheduler interprets" them.

| `outputs` | the network has | probability of a configuration |
|---|---|---|
| `"configurations"` | an output for each configuration, as DeepRM has one for each action | its output's |
| `"knobs"` | a softmax for each knob, with an output for each value | the product over the knobs |

`TUNED` is ours. It had the lowest cost of 10 settings over the first 400 decisions, with two seeds each. They
were compared on the machines 0-9 of `envs.scenarios.families` at a stationary load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch

from baselines.scaling import Scaling
from rrl.agent import Agent, Proposable, Task, Transition
from rrl.region.policy import drawn_indices
from rrl.seeding import Seed, whole_seed


@dataclass(frozen=True)
class DeepRMSettings:
    """Hyper-parameters of `DeepRM`; the defaults are its paper's and repository's."""

    hidden: int = 20  # units
    learning_rate: float = 1e-3  # α, RMSProp's
    decay: float = 0.9  # ρ, RMSProp's
    initial_weights: float = 0.01  # standard deviation
    episodes: int = 10  # in a batch, after which the network is updated
    reward: Literal["cost", "log cost"] = "cost"  # the reward is minus this, relative to the first cost
    outputs: Literal["configurations", "knobs"] = "configurations"

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ValueError(f"the hidden layer needs at least 1 unit, got {self.hidden}")
        if self.episodes < 2:
            raise ValueError(
                "a batch needs at least 2 episodes, as the return of one is its own baseline, "
                f"got {self.episodes}"
            )
        if not self.learning_rate > 0 or not 0 <= self.decay < 1 or not self.initial_weights > 0:
            raise ValueError(
                "learning_rate and initial_weights must be positive and decay in [0, 1), "
                f"got {self.learning_rate}, {self.initial_weights}, {self.decay}"
            )


PAPER = DeepRMSettings()
"""The settings of the paper and its repository, which RRL compares with."""

TUNED = DeepRMSettings(learning_rate=5e-2, episodes=8, reward="log cost", outputs="knobs")


class OneStepEpisode(NamedTuple):
    """One decision and its return."""

    inputs: np.ndarray  # (fields + knobs,) float32
    choices: tuple[int, ...]  # (softmaxes,) the output chosen from each
    value: float  # v


class DeepRM(Agent):
    """The DeepRM agent. It sees only observations and costs, so it serves any objective."""

    def __init__(self, task: Task, settings: DeepRMSettings = PAPER, seed: Seed = 0) -> None:
        seed = whole_seed(seed)
        self.space = task.space
        self.settings = settings
        self._proposable = Proposable(task)
        self._softmaxes = (
            (len(self.space),) if settings.outputs == "configurations" else self.space.shape
        )  # outputs of each
        self._scaling = Scaling(task)
        widths = (self._scaling.size, settings.hidden, sum(self._softmaxes))
        self.network = _new_network(widths, settings.initial_weights, torch.Generator().manual_seed(seed))
        self._optimizer = torch.optim.RMSprop(
            self.network, lr=settings.learning_rate, alpha=settings.decay, eps=math.sqrt(1e-9)
        )
        self._batch: list[OneStepEpisode] = []
        self._rng = np.random.default_rng(seed)
        self._draws = self._rng.random(len(self._softmaxes))

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Draws a configuration from the policy, of those that may be proposed."""
        may_be = self._proposable.mask.reshape(self._softmaxes)
        return self._action(drawn_indices(self.policy(observation), self._draws, may_be))

    def update(self, transition: Transition) -> None:
        """Learns from one interval, unless it has a gap or no cost."""
        self._draws = self._rng.random(len(self._softmaxes))
        if not transition.has_cost:
            return
        self._scaling.see(transition)
        inputs = self._scaling.inputs(transition.observation)
        self._batch.append(
            OneStepEpisode(inputs, self._choices(transition.action), self._value(transition.cost))
        )
        if len(self._batch) == self.settings.episodes:
            self._train(self._batch)
            self._batch = []

    def refused(self, number: int) -> None:
        self._proposable.refused(number)

    def policy(self, observation: np.ndarray) -> list[np.ndarray]:
        """π_θ(s, ·): for each softmax, (outputs,) float."""
        with torch.no_grad():
            inputs = torch.from_numpy(self._scaling.inputs(observation)[None])
            return [log_p[0].double().exp().numpy() for log_p in self._log_policy(inputs)]

    def _log_policy(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        """ln π_θ: (n, inputs) -> for each softmax, (n, outputs)."""
        w_1, b_1, w_2, b_2 = self.network
        outputs = torch.addmm(b_2, torch.addmm(b_1, inputs, w_1).relu(), w_2)
        return [part.log_softmax(dim=1) for part in outputs.split(self._softmaxes, dim=1)]

    def _train(self, batch: list[OneStepEpisode]) -> None:
        """θ ← θ + α · RMSProp of the mean of ∇ ln π_θ(s, a) · (v - b)."""
        values = np.array([episode.value for episode in batch])
        advantages = torch.from_numpy(values - values.mean())
        log_policy = self._log_policy(torch.from_numpy(np.stack([episode.inputs for episode in batch])))
        episodes = torch.arange(len(batch))
        log_p = sum(
            part[episodes, torch.tensor(choices)]
            for part, choices in zip(log_policy, zip(*(e.choices for e in batch), strict=True), strict=True)
        )
        gain = (log_p * advantages).mean()
        self._optimizer.zero_grad()
        (-gain).backward()
        self._optimizer.step()

    def _value(self, cost: float) -> float:
        relative = self._scaling.relative_cost(cost)
        return -relative if self.settings.reward == "cost" else -math.log(relative)

    def _action(self, chosen: list[int]) -> np.ndarray:
        if self.settings.outputs == "configurations":
            return self.space.action(chosen[0])
        return np.array(chosen, dtype=np.int64)

    def _choices(self, action: np.ndarray) -> tuple[int, ...]:
        if self.settings.outputs == "configurations":
            return (self.space.number_of_action(action),)
        return tuple(int(index) for index in action)


def _new_network(
    widths: tuple[int, int, int], deviation: float, generator: torch.Generator
) -> list[torch.Tensor]:
    """w_1 (in, out), b_1 (out,), w_2, b_2: normal weights and zero biases, as in the repository."""
    network = []
    for fan_in, fan_out in pairwise(widths):
        weights = deviation * torch.randn(fan_in, fan_out, generator=generator)
        network += [weights.requires_grad_(), torch.zeros(fan_out, requires_grad=True)]
    return network
