"""CAPES: a deep Q-network that moves one knob by one step (Li et al., SC'17; github.com/mlogic/capes-oss).

| symbol | here | meaning |
|---|---|---|
| s_t | `_state` | the last observations, scaled (`baselines.scaling`), the newest one last |
| a_t | `moves` | 0: no change. Else one knob up or down by a step, or no change at the grid's edge |
| r_t | `_reward` | the change of the objective, so that the sum of rewards is the objective's gain |
| Q(s, a; θ) | `q_network` | two tanh layers of max(200, 1.2 · length of s) units |
| y | `_targets` | r + γ · max_a Q(s_t+1, a; θ⁻) |
| θ⁻ | `target_network` | follows θ: θ⁻ ← (1 - α) θ⁻ + α θ after every training step |
| ε | `exploration_rate` | share of random moves, falling linearly over the first actions |

θ is trained by RMSProp on the squared error (Q - y)² over minibatches of the replay memory. Each variable's
gradient is clipped by its norm. Costs are relative to the first one, so that nothing depends on the
objective's unit.

| | the repository | here |
|---|---|---|
| training, live | without a pause between actions | the same, in a thread of the lowest priority |
| training, simulated | | `training_steps` a decision, as no time passes between two |
| an observation | the means of a one-second tick | the means of an interval |
| ε falls over | 5,000 actions | the same in `PAPER`, so that ε is about ½ throughout a run of 100 |

`PAPER` keeps the repository's settings, whatever the length of a run. `TUNED` lets ε fall over 60 decisions,
so that it is smallest in the last 40 of a run of 100. While the thread trains, the network as it was after
the last interval decides, so that the agent answers the same when it is asked again.

In simulation the 8 steps of `PAPER` take about as long as a decision of the default agent. Over 100 decisions
on the machines 0-5 of `envs.scenarios.families` they did far better than none, and hardly better than 4.

`TUNED` is ours. It had the lowest cost of 15 settings over the first 400 decisions, with one agent seed. They
were compared on the machines 0-7 of `envs.scenarios.families` at a stationary load. 200 units did as well.
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from threading import Condition, Event, Thread, get_native_id
from typing import Literal, NamedTuple

import numpy as np
import torch

from baselines.scaling import Scaling
from rrl.agent import Agent, Proposable, Task, Transition, number_in_force
from rrl.seeding import Seed, whole_seed
from rrl.space import ConfigurationSpace

HIDDEN_UNITS_PER_INPUT = 1.2
LOWEST_PRIORITY = 19  # of a thread on Linux


@dataclass(frozen=True)
class CAPESSettings:
    """Hyper-parameters of `CAPES`; the defaults are its repository's."""

    smallest_hidden_layer: int = 200  # units; 1.2 for each input, if that is more
    discount: float = 0.99  # γ
    learning_rate: float = 1e-3  # RMSProp's
    decay: float = 0.9  # RMSProp's
    minibatch: int = 32  # transitions in a training step
    target_update: float = 0.01  # α
    gradient_clip: float = 5.0  # largest norm of a variable's gradient
    first_exploration: float = 0.5  # ε of the first action (the example configuration: 1)
    last_exploration: float = 0.05  # ε in the end
    exploration_actions: int = 5_000  # until then (the example configuration: 1,000,000)
    observations: int = 4  # intervals in a state (the example configuration: 10)
    training_steps: int = 8  # after a decision where no time passes between two
    train_every: int = 1  # decisions from one such training to the next
    step_sizes: tuple[int, ...] = (1,)  # that a move may have, in grid steps
    reward: Literal["change", "log cost"] = "change"  # the change of -cost, or -ln(cost) itself

    def __post_init__(self) -> None:
        if not 0 <= self.discount < 1:
            raise ValueError(f"the discount must be in [0, 1), got {self.discount}")
        if not self.learning_rate > 0 or not 0 <= self.decay < 1 or not self.gradient_clip > 0:
            raise ValueError(
                "learning_rate and gradient_clip must be positive and decay in [0, 1), "
                f"got {self.learning_rate}, {self.gradient_clip}, {self.decay}"
            )
        if not 0 < self.target_update <= 1:
            raise ValueError(f"target_update must be in (0, 1], got {self.target_update}")
        if not 0 <= self.last_exploration <= self.first_exploration <= 1:
            raise ValueError(
                "the exploration must fall from first_exploration to last_exploration, both in [0, 1], "
                f"got {self.first_exploration} and {self.last_exploration}"
            )
        positive = ("minibatch", "exploration_actions", "observations", "train_every")
        for name in ("smallest_hidden_layer", *positive):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.training_steps < 0:
            raise ValueError(f"training_steps must not be negative, got {self.training_steps}")
        if not self.step_sizes or min(self.step_sizes) < 1:
            raise ValueError(f"step_sizes must be at least one grid step each, got {self.step_sizes}")


PAPER = CAPESSettings()
"""The repository's settings, which RRL compares with."""

TUNED = CAPESSettings(
    smallest_hidden_layer=64,
    discount=0.5,
    exploration_actions=60,
    observations=1,
    training_steps=4,
    step_sizes=(1, 3),
    reward="log cost",
)


class Move(NamedTuple):
    """One knob changed by some grid steps. With `steps` = 0 nothing changes."""

    knob: int
    steps: int


class Experience(NamedTuple):
    """One entry of the replay memory."""

    state: np.ndarray  # (observations * fields,) float32
    move: int  # index in `moves`
    reward: float
    next_state: np.ndarray  # (observations * fields,) float32


class CAPES(Agent):
    """The CAPES agent. It sees only observations and costs, so it serves any objective."""

    def __init__(
        self,
        task: Task,
        settings: CAPESSettings = PAPER,
        seed: Seed = 0,
        background_training: bool = False,
    ) -> None:
        seed = whole_seed(seed)
        self.space = task.space
        self.settings = settings
        self._proposable = Proposable(task)
        self.moves = _moves(self.space, settings.step_sizes)
        self.memory: list[Experience] = []
        self._scaling = Scaling(task)
        inputs = settings.observations * self._scaling.size
        hidden = max(settings.smallest_hidden_layer, int(HIDDEN_UNITS_PER_INPUT * inputs))
        generator = torch.Generator().manual_seed(seed)
        self.q_network = _new_network((inputs, hidden, hidden, len(self.moves)), generator)
        self.target_network = _copied(self.q_network)
        self._optimizer = torch.optim.RMSprop(
            self.q_network, lr=settings.learning_rate, alpha=settings.decay, eps=1e-5
        )
        self._earlier: deque[np.ndarray] = deque(maxlen=settings.observations - 1)
        self._last_cost = math.nan
        self._decisions = 0
        self._rng = self._batch_rng = np.random.default_rng(seed)
        self._policy = self.q_network  # what decides
        self._training: TrainingBetweenDecisions | None = None
        if background_training:
            self._batch_rng = np.random.default_rng((seed, 1))  # how many it draws depends on time
            self._policy = _copied(self.q_network)
            self._training = TrainingBetweenDecisions(self._train)
        self._draw()

    def act(self, observation: np.ndarray) -> np.ndarray:
        """The configuration in force, changed by the best move known or by a random one."""
        indices = self.space.action(number_in_force(observation, self.space))
        return self._moved(indices, self._chosen(observation))

    def update(self, transition: Transition) -> None:
        """Remembers one interval, unless it has a gap or no cost, and trains on the memory."""
        if self._training is not None:
            self._training.pause()
        chosen = self._chosen(transition.observation)
        self._decisions += 1
        self._draw()
        if transition.has_cost:
            self._scaling.see(transition)
        state = self._state(transition.observation)
        self._earlier.append(transition.observation)
        reward = self._reward(transition)
        move = self._move_made(transition, chosen)
        if reward is not None and move is not None:
            self.memory.append(Experience(state, move, reward, self._state(transition.next_observation)))
        if self._training is not None:
            self._policy = _copied(self.q_network)
            self._training.resume(bool(self.memory))
            return
        is_due = self._decisions % self.settings.train_every == 0
        for _ in range(self.settings.training_steps if self.memory and is_due else 0):
            self._train()

    def refused(self, number: int) -> None:
        self._proposable.refused(number)

    def finish_training(self) -> None:
        """Waits for as many steps as a decision has without the thread, as when a journal is replayed."""
        if self._training is not None:
            self._training.wait_for(self.settings.training_steps)

    def close(self) -> None:
        if self._training is not None:
            self._training.pause()

    def exploration_rate(self, action: int) -> float:
        """ε at an action, counted from 1."""
        settings = self.settings
        done = min(1.0, action / settings.exploration_actions)
        return settings.first_exploration - done * (settings.first_exploration - settings.last_exploration)

    def _draw(self) -> None:
        """Draws what the next decision needs, so that `act` draws nothing."""
        self._explore = float(self._rng.random())
        self._random_move = int(self._rng.integers(len(self.moves)))

    def _chosen(self, observation: np.ndarray) -> int:
        """The index of the next move."""
        if self._explore < self.exploration_rate(self._decisions + 1):
            return self._random_move
        with torch.no_grad():
            q = _forward(torch.from_numpy(self._state(observation)[None]), self._policy)
        return int(q.argmax())

    def _state(self, observation: np.ndarray) -> np.ndarray:
        """(observations * (fields + knobs),) float32. The first observation stands for those before it."""
        seen = [*self._earlier, observation]
        padding = [seen[0]] * (self.settings.observations - len(seen))
        return np.concatenate([self._scaling.inputs(one) for one in padding + seen])

    def _moved(self, indices: np.ndarray, move: int) -> np.ndarray:
        """(knobs,) int64: where a move leads; nowhere if it would leave the grid, or what may be proposed."""
        knob, steps = self.moves[move]
        there = indices.copy()
        there[knob] += steps
        inside = 0 <= there[knob] < self.space.shape[knob]
        may_be = inside and self._proposable.mask[self.space.number_of_action(there)]
        return there if may_be else indices

    def _move_made(self, transition: Transition, chosen: int) -> int | None:
        """The move that led to the action in force; None if the guard chose one that no move leads to.

        At an edge several moves lead nowhere. Then it is the one that was chosen.
        """
        indices = self.space.action(number_in_force(transition.observation, self.space))
        for move in (chosen, *range(len(self.moves))):
            if np.array_equal(self._moved(indices, move), transition.action):
                return move
        return None

    def _reward(self, transition: Transition) -> float | None:
        """None where there is no cost, or none before it to compare with."""
        if not transition.has_cost:
            self._last_cost = math.nan
            return None
        last_cost, self._last_cost = self._last_cost, self._scaling.relative_cost(transition.cost)
        if self.settings.reward == "log cost":
            return -math.log(self._last_cost)
        return None if math.isnan(last_cost) else last_cost - self._last_cost

    def _train(self) -> None:
        """One training step of θ, then one of θ⁻."""
        size = min(self.settings.minibatch, len(self.memory))
        batch = [self.memory[i] for i in self._batch_rng.choice(len(self.memory), size, replace=False)]
        states = torch.from_numpy(np.stack([experience.state for experience in batch]))
        moves = torch.tensor([experience.move for experience in batch])
        q = _forward(states, self.q_network)[torch.arange(size), moves]
        loss = (q - self._targets(batch)).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        for variable in self.q_network:
            _clip_norm(variable.grad, self.settings.gradient_clip)
        self._optimizer.step()
        self._follow()

    def _targets(self, batch: list[Experience]) -> torch.Tensor:
        """(batch,) y = r + γ · max_a Q(s_t+1, a; θ⁻)."""
        rewards = torch.tensor([experience.reward for experience in batch])
        next_states = torch.from_numpy(np.stack([experience.next_state for experience in batch]))
        with torch.no_grad():
            next_q = _forward(next_states, self.target_network)
        return rewards + self.settings.discount * next_q.amax(dim=1)

    def _follow(self) -> None:
        """θ⁻ ← (1 - α) θ⁻ + α θ."""
        with torch.no_grad():
            for behind, ahead in zip(self.target_network, self.q_network, strict=True):
                behind.lerp_(ahead, self.settings.target_update)


class TrainingBetweenDecisions:
    """Trains step after step in a thread, from one decision to the next."""

    def __init__(self, train: Callable[[], None]) -> None:
        self._train = train
        self._thread: Thread | None = None
        self._stop = Event()
        self._stepped = Condition()
        self._steps = 0  # since it was resumed

    def pause(self) -> None:
        """Returns when no step is under way: what the steps change may be read and changed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def resume(self, can_train: bool) -> None:
        """Goes on after a pause, where there is something to train on."""
        self._stop.clear()
        self._steps = 0
        if can_train:
            self._thread = Thread(target=self._run, daemon=True)
            self._thread.start()

    def wait_for(self, steps: int) -> None:
        """Waits for so many steps since it was resumed; not at all where it does not train."""
        with self._stepped:
            self._stepped.wait_for(
                lambda: self._thread is None or self._stop.is_set() or self._steps >= steps
            )

    def _run(self) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own: the cores are the server's
            os.setpriority(os.PRIO_PROCESS, get_native_id(), LOWEST_PRIORITY)
        try:
            while not self._stop.is_set():
                self._train()
                with self._stepped:
                    self._steps += 1
                    self._stepped.notify_all()
        finally:  # nobody waits for a thread that has ended, by an error either
            with self._stepped:
                self._stop.set()
                self._stepped.notify_all()


def _copied(network: list[torch.Tensor]) -> list[torch.Tensor]:
    return [variable.detach().clone() for variable in network]


def _moves(space: ConfigurationSpace, step_sizes: tuple[int, ...]) -> list[Move]:
    """No change first, then every step up and down that some value of a knob allows."""
    return [Move(0, 0)] + [
        Move(knob, sign * steps)
        for knob, length in enumerate(space.shape)
        for steps in step_sizes
        if steps < length
        for sign in (1, -1)
    ]


def _new_network(widths: tuple[int, ...], generator: torch.Generator) -> list[torch.Tensor]:
    """w_1 (in, out), b_1 (out,), w_2, ...: uniform weights within ±1/√in and biases 0 (repository)."""
    network = []
    for fan_in, fan_out in pairwise(widths):
        weights = (2.0 * torch.rand(fan_in, fan_out, generator=generator) - 1.0) / math.sqrt(fan_in)
        network += [weights.requires_grad_(), torch.zeros(fan_out, requires_grad=True)]
    return network


def _clip_norm(gradient: torch.Tensor | None, largest: float) -> None:
    """Scales a gradient down to the largest norm allowed."""
    if gradient is not None and (norm := float(gradient.norm())) > largest:
        gradient.mul_(largest / norm)


def _forward(states: torch.Tensor, network: list[torch.Tensor]) -> torch.Tensor:
    """(n, inputs) -> (n, moves): Q(s, ·)."""
    for i in range(0, len(network) - 2, 2):
        states = torch.addmm(network[i + 1], states, network[i]).tanh()
    return torch.addmm(network[-1], states, network[-2])
