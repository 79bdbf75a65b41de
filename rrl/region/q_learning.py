"""Region-based reinforcement learning: RRL's Algorithm 1 (section 4), and its authors' script as a setting.

| symbol | here | meaning |
|---|---|---|
| s | level | load level (`LoadLevels`), or one level for every load where `load_levels` is None |
| c, C | number, `space` | a configuration and the grid of them |
| r_t(s, c) | cost | the cost observed in interval t |
| C(c_t), δ | `region`, `radius` | the configurations within distance δ of the one in force |
| r̂_t(s, c) | `_estimated_costs` | the cost estimated for a configuration of the region, eq. (1) |
| Q_t(s, c) | `Perception.q` | perceived discounted cost, eq. (2), in the objective's unit |
| α_t, γ | `_learning_rates`, `discount` | learning rate and discount factor of eq. (2) |
| π_t(s, c), β | `policy`, `inverse_temperature` | the Boltzmann policy, eq. (3) |

Which s? The cost of an interval was observed under the load measured *in* it. So that load's level is
updated, not the level for which the decision was made. The next load is not known when the update is made.
The best guess is that the newest observation's load persists. Its level is s_t+1, for the bootstrap of eq.
(2) and for the next decision.

Which unit? The paper gives neither β nor the unit of Q, and Q_0 = 1/|C| means nothing without one. Here Q
keeps the objective's unit, and Q_0 is 1/|C| of the first cost. β acts on Q relative to r_min, the lowest cost
observed at the level. A configuration that costs x · r_min more than another is exp(-β x) times as probable.

How long do estimates last? A configuration whose estimate is too high is hardly ever drawn, so nothing puts
it right. An optimistic policy takes what was never observed for cheaper than its Q, by as much as Q was off
so far (ours): by exp of the mean of |ln(cost / Q)| over first observations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

import numpy as np

from rrl.agent import Agent, Proposable, Task, Transition, arrival_rate_per_s
from rrl.load_levels import LoadLevels
from rrl.region.estimator import (
    BackgroundTraining,
    EstimatorSettings,
    InlineTraining,
    LatencyEstimator,
    Training,
)
from rrl.region.policy import drawn_index
from rrl.seeding import Seed, whole_seed

COST_LIMITS = (1e-9, 1e12)
"""Costs are clipped to these limits, so that no formula here can overflow."""

LARGEST_EXPONENT = 500.0
"""The authors' script scales the k of its softmax of k/Q until the largest exponent is below 500."""


@dataclass(frozen=True)
class RRLSettings:
    """Hyper-parameters of `RegionQLearning`. The defaults are the paper's text, section 4."""

    radius: float = 2.0  # δ, in grid steps (Fig. 8)
    inverse_temperature: float = 20.0  # β; not given in the paper
    discount: float = 0.9  # γ; not given in the paper
    learning_rate: float | None = None  # a constant α; None: α = n(s, c) ** -learning_rate_power
    learning_rate_power: float = 1.0  # in (0.5, 1], so that Σα = ∞ and Σα² < ∞ (the proof has 1)
    counted: Literal["updates", "observations"] = "updates"  # what n(s, c) counts, see `Perception`
    policy: Literal["boltzmann", "reciprocal"] = "boltzmann"  # eq. (3), or a softmax of k/Q (script)
    initial_q: Literal["reciprocal of size", "first cost", "nearest level"] = "reciprocal of size"
    optimistic: bool = False  # what was never observed is hoped to cost less than its Q, see above
    anchored: bool = True  # f(c_t, r_t) = r_t, eq. (1); False: the network estimates all (script)
    load_levels: LoadLevels | None = field(default_factory=LoadLevels)  # None: no load index in Q (script)
    train_every: int = 1  # samples from one round of training to the next (section 5.2: asynchronous)
    estimator: EstimatorSettings = field(default_factory=EstimatorSettings)

    def __post_init__(self) -> None:
        if not self.radius >= 0:
            raise ValueError(f"the region's radius must not be negative, got {self.radius}")
        if not 0 <= self.inverse_temperature < math.inf:
            raise ValueError(
                f"inverse_temperature must be finite and not negative, got {self.inverse_temperature}"
            )
        if not 0 <= self.discount < 1:
            raise ValueError(f"the discount must be in [0, 1), got {self.discount}")
        if self.learning_rate is not None and not 0 < self.learning_rate <= 1:
            raise ValueError(f"a constant learning rate must be in (0, 1], got {self.learning_rate}")
        if not 0.5 < self.learning_rate_power <= 1:
            raise ValueError(
                "learning_rate_power must be in (0.5, 1] for Σα = ∞ and Σα² < ∞, "
                f"got {self.learning_rate_power}"
            )
        if self.train_every < 1:
            raise ValueError(f"train_every must be at least 1, got {self.train_every}")


PAPER = RRLSettings()
"""The paper's text. It names no β, γ or δ for its runs, so these are ours."""

RELEASED_EXACT = RRLSettings(
    radius=3.0,
    discount=0.0,
    learning_rate=0.3,  # Q = 0.7 Q + 0.3 network
    policy="reciprocal",
    initial_q="first cost",
    anchored=False,
    load_levels=None,
    estimator=EstimatorSettings(
        target="raw",
        huber_delta=100.0,
        learning_rate=0.7,
        start_from_weights=False,
        warm_start=False,
        minibatch=0,
        max_steps=30_000,
        loss_threshold=0.0,
        patience_checks=10,
    ),
)
"""The authors' script. A round of training takes 4 to 20 seconds.

The script gave the network the mean gap and raw knob values. Here features are scaled.
"""

RELEASED = replace(
    RELEASED_EXACT,
    estimator=replace(
        RELEASED_EXACT.estimator, start_from_weights=True, warm_start=True, max_steps=30, patience_checks=0
    ),
)
"""The authors' script with a round of training that goes on from the last network, in about 20 ms."""

TUNED = RRLSettings(
    discount=0.0,  # a configuration hardly changes the next load, so that bootstrapping only adds noise
    learning_rate_power=0.6,  # sooner than 1/n, it forgets a machine that was faster or slower
    counted="observations",
    initial_q="nearest level",  # a load never seen starts from what its neighbour knows
    optimistic=True,  # a network of ten samples is often wrong, and what it overrates would stay so
)
"""For tens of decisions on a live server."""


@dataclass
class Perception:
    """What is known at one load level."""

    q: np.ndarray  # (size,) Q(s, ·)
    updated: np.ndarray  # (size,) bool: tried or estimated at this level
    counts: np.ndarray  # (size,) int: n(s, ·), all updates or only a configuration's own observations
    lowest_cost: float  # r_min, the lowest observed cost on which Q rests


class RegionQLearning(Agent):
    """The RRL agent.

    `act` is a pure function of the observation and of the transitions so far. The draw for the next decision
    is made when a transition arrives. So replaying a journal resumes a run exactly. With
    `background_training` it also depends on when each estimate was finished.
    """

    def __init__(
        self,
        task: Task,
        settings: RRLSettings = TUNED,
        seed: Seed = 0,
        background_training: bool = False,
    ) -> None:
        seed = whole_seed(seed)
        self.space = task.space
        self.settings = settings
        self._proposable = Proposable(task)
        self.perceptions: dict[int, Perception] = {}
        self.estimator = LatencyEstimator(len(self.space.knobs), settings.estimator, seed)
        self._training: Training = (
            BackgroundTraining(self.estimator.train)
            if background_training
            else InlineTraining(self.estimator.train)
        )
        self._first_cost = math.nan
        self._observed = np.zeros(len(self.space), dtype=bool)  # at any level
        self._surprises: list[float] = []  # |ln(cost / Q)| of each first observation
        self._samples = 0  # given to the estimator
        self._rng = np.random.default_rng(seed)
        self._draw = float(self._rng.random())

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Draws a configuration from the policy at the observed load's level (Algorithm 1, step 1)."""
        policy = self.policy(self._level(arrival_rate_per_s(observation)))
        return self.space.action(drawn_index(policy, self._draw))

    def update(self, transition: Transition) -> None:
        """Learns from one interval (Algorithm 1, step 2), unless it has a gap or no cost."""
        self._draw = float(self._rng.random())
        measurement = transition.measurement
        if not transition.has_cost:
            return
        number = self.space.number_of_action(transition.action)
        cost = float(np.clip(transition.cost, *COST_LIMITS))
        if not self.perceptions:
            self._first_cost = cost
        if self.settings.radius > 0:  # a region of one needs no estimate
            self.estimator.add(measurement.arrival_rate_per_s, self.space.features[number], cost)
            self._samples += 1
            if self._samples % self.settings.train_every == 0:
                self._training.request()
        self._update_perceptions(transition, number, cost)

    def refused(self, number: int) -> None:
        self._proposable.refused(number)

    def finish_training(self) -> None:
        """Waits until the network knows all transitions so far, so that a replay does not run ahead of it."""
        self._training.wait()

    def close(self) -> None:
        """Ends training, and raises what its last round raised."""
        self._training.close()

    def policy(self, level: int) -> np.ndarray:
        """(size,) π(s, ·): eq. (3), or the authors' softmax of k/Q. It is uniform while nothing is known.

        What must not be proposed has probability 0.
        """
        may_be = self._proposable.mask
        if not self.perceptions:
            return may_be / may_be.sum()
        perception = self._perception(level)
        q = self._hoped_for(perception)
        least = self._least(q)
        if self.settings.policy == "boltzmann":
            exponents = -self.settings.inverse_temperature / perception.lowest_cost * (q - least)
        else:
            exponents = LARGEST_EXPONENT * (least / q - 1.0)
        weights: np.ndarray = np.exp(np.where(may_be, exponents, -np.inf))
        return weights / weights.sum()

    def greedy(self, observation: np.ndarray) -> int | None:
        """The best configuration known for the observed load."""
        return self.best_configuration(self._level(arrival_rate_per_s(observation)))

    def best_configuration(self, level: int) -> int | None:
        """The number with the lowest Q of those tried or estimated at this level, or at the nearest known.

        None where no such one may be proposed.
        """
        if not self.perceptions:
            return None
        perception = self.perceptions[self._nearest_level(level)]
        known = perception.updated & self._proposable.mask
        return int(np.argmin(np.where(known, perception.q, np.inf))) if known.any() else None

    def _update_perceptions(self, transition: Transition, number: int, cost: float) -> None:
        """Eq. (2) for the region around the configuration in force. All others stay the same."""
        rate_per_s = transition.measurement.arrival_rate_per_s
        level = self._level(rate_per_s)
        next_level = self._level(arrival_rate_per_s(transition.next_observation))
        perception = self.perceptions[level] = self._perception(level)
        if not self._observed[number]:
            self._surprises.append(abs(math.log(cost / perception.q[number])))
            self._observed[number] = True
        region = self._region(number, perception)
        r_hat = self._estimated_costs(rate_per_s, region, number, cost)
        bootstrap = self.settings.discount * self._least(self._perception(next_level).q)
        perception.updated[region] = True
        perception.counts[region if self.settings.counted == "updates" else number] += 1
        α = self._learning_rates(perception.counts[region])
        perception.q[region] = (1 - α) * perception.q[region] + α * (r_hat + bootstrap)
        perception.lowest_cost = min(perception.lowest_cost, cost)

    def _hoped_for(self, perception: Perception) -> np.ndarray:
        """(size,) Q(s, ·), less by the usual surprise where nothing was observed."""
        if not (self.settings.optimistic and self._surprises):
            return perception.q
        share = math.exp(-fmean(self._surprises))
        return np.where(self._observed, perception.q, share * perception.q)

    def _least(self, q: np.ndarray) -> float:
        """The least of these (size,) costs over what may be proposed."""
        return float(q[self._proposable.mask].min())

    def _estimated_costs(self, rate_per_s: float, region: np.ndarray, number: int, cost: float) -> np.ndarray:
        """Eq. (1): r̂_t(s, c) for c in the region of c_t = `number`.

        Anchored, f(c_t, r_t) = r_t. Then the network says only how other configurations compare with the one
        in force: by ratio where it learns logarithms, by difference where it learns costs. Before any network
        is finished, neighbours are taken to perform alike (Fig. 6).
        """
        if not self.estimator.trained:
            return np.full(len(region), cost)
        expected = self.estimator.estimate(rate_per_s, self.space.features[region])
        if self.settings.anchored:
            expected_here = expected[region == number]
            if self.settings.estimator.target == "log":
                expected = cost * (expected / expected_here)
            else:
                expected = cost + (expected - expected_here)
        result: np.ndarray = np.clip(np.nan_to_num(expected, nan=cost), *COST_LIMITS)
        return result

    def _region(self, number: int, perception: Perception) -> np.ndarray:
        """C(c_t). Where observations are counted, it leaves out others that have observations of their own.

        A pair is then estimated anew (α = 1) until its first observation, which the policy brings about
        sooner or later. From then on it averages its own observations. So α still satisfies the conditions.
        """
        region = self.space.region(number, self.settings.radius)
        if self.settings.counted == "updates":
            return region
        return region[(perception.counts[region] == 0) | (region == number)]

    def _learning_rates(self, counts: np.ndarray) -> np.ndarray:
        """α = n ** -power, or the constant."""
        if self.settings.learning_rate is not None:
            return np.full(len(counts), self.settings.learning_rate)
        result: np.ndarray = np.maximum(counts, 1.0) ** -self.settings.learning_rate_power
        return result

    def _level(self, rate_per_s: float) -> int:
        return 0 if self.settings.load_levels is None else self.settings.load_levels.level(rate_per_s)

    def _nearest_level(self, level: int) -> int:
        """The known level nearest to this one; of two equally near, the higher."""
        return min(self.perceptions, key=lambda known: (abs(known - level), -known))

    def _perception(self, level: int) -> Perception:
        """What is known at a level, or what a new level starts from. Some cost must be known."""
        if level in self.perceptions:
            return self.perceptions[level]
        size, first_cost = len(self.space), self._first_cost
        if self.settings.initial_q == "nearest level" and self.perceptions:
            nearest = self.perceptions[self._nearest_level(level)]
            return Perception(
                nearest.q.copy(), nearest.updated.copy(), np.zeros(size, dtype=int), nearest.lowest_cost
            )
        q_0 = first_cost / size if self.settings.initial_q == "reciprocal of size" else first_cost
        return Perception(
            np.full(size, q_0), np.zeros(size, dtype=bool), np.zeros(size, dtype=int), first_cost
        )
