"""RRL's formulas, worked out by hand where the space is small enough."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrl.agent import Transition, observe
from rrl.estimator import EstimatorSettings
from rrl.load_levels import LoadLevels
from rrl.measurement import LatencySummary, Measurement
from rrl.region_q_learning import LIVE, PAPER, RELEASED, Perception, RegionQLearning, RRLSettings
from rrl.space import ConfigurationSpace

LINE = ConfigurationSpace.of(instances=[1, 2, 3])
RATE_PER_S = 40.0
LEVEL = LoadLevels().level(RATE_PER_S)
QUICK = EstimatorSettings(hidden=(4,), max_steps=1)


class FixedEstimator:
    """An estimator whose network says what the test wants."""

    def __init__(self, space: ConfigurationSpace, expected: list[float] | None) -> None:
        self._space = space
        self._expected = expected
        self.samples: list[float] = []

    @property
    def trained(self) -> bool:
        return self._expected is not None

    def add(self, rate_per_s: float, knob_features: np.ndarray, cost: float) -> None:
        self.samples.append(cost)

    def estimate(self, rate_per_s: float, knob_features: np.ndarray) -> np.ndarray:
        assert self._expected is not None
        matches = (knob_features[:, None, :] == self._space.features[None]).all(axis=2)
        return np.asarray(self._expected)[matches.argmax(axis=1)]


def agent_with_estimates(
    settings: RRLSettings, expected: list[float] | None, space: ConfigurationSpace = LINE
) -> RegionQLearning:
    agent = RegionQLearning(space, replace(settings, estimator=replace(settings.estimator, hidden=(4,), max_steps=1)))
    agent.estimator = FixedEstimator(space, expected)  # type: ignore[assignment]
    agent._training.request = lambda: None  # type: ignore[method-assign]
    return agent


def transition(
    number: int,
    cost: float,
    rate_per_s: float = RATE_PER_S,
    next_rate_per_s: float | None = None,
    gap: str = "",
    space: ConfigurationSpace = LINE,
) -> Transition:
    def measured(rate: float) -> Measurement:
        return Measurement(10.0, round(10 * rate), round(10 * rate), 0, LatencySummary(mean_ms=cost), gap=gap)

    after = observe(measured(rate_per_s if next_rate_per_s is None else next_rate_per_s), space, number)
    return Transition(after, space.action(number), cost, after, measured(rate_per_s))


def test_q_starts_at_one_over_the_number_of_configurations_and_the_policy_is_then_uniform() -> None:
    agent = agent_with_estimates(PAPER, None)
    np.testing.assert_allclose(agent.policy(LEVEL), 1 / 3)
    agent.update(transition(0, 6.0))
    far = agent.policy(LEVEL + 5)  # a level without any update: all Q are Q_0 = 1/3 of the first cost
    np.testing.assert_allclose(far, 1 / 3)


def test_equation_1_anchors_the_estimate_at_the_observation() -> None:
    logarithmic = agent_with_estimates(PAPER, [10.0, 20.0, 40.0])
    logarithmic.update(transition(1, 30.0))
    np.testing.assert_allclose(logarithmic.perceptions[LEVEL].q, [15 + 9 - 9 + 9, 39, 69])
    raw = replace(PAPER, estimator=EstimatorSettings(target="raw"), discount=0.0)
    additive = agent_with_estimates(raw, [10.0, 20.0, 40.0])
    additive.update(transition(1, 30.0))
    np.testing.assert_allclose(additive.perceptions[LEVEL].q, [20, 30, 50])
