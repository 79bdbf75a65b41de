"""How slow the machine was in each interval, once a run has ended."""

from __future__ import annotations

import numpy as np
import pytest

from envs.simulated import SimulatedServing
from rrl.belief.belief import Belief
from rrl.objective import MeanLatency
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace
from rrl.views.slowness_by_interval import SlownessByInterval

SPACE = ConfigurationSpace.of(max_batch_size=[1, 2])
INTERVALS, SLOW_FROM = 40, 15


@pytest.fixture
def slowness() -> SlownessByInterval:
    """Of a machine that becomes three times slower, and stays so until that is usual."""
    one = np.array([1])
    machine = Machine(one, one, one, np.array([1, 2]), np.array([[[[0.01, 0.02]]]]))
    env = SimulatedServing(machine, SPACE, arrivals=10.0, interval_s=4.0, slowdown=(SLOW_FROM - 1, 3.0))
    env.np_random = np.random.default_rng(0)
    belief = Belief(SPACE, MeanLatency())
    found = SlownessByInterval(belief, 0)
    found.take_in(1)  # before anything is known
    for _ in range(INTERVALS):
        belief.learn(0, env.run(0).measurement)
        found.take_in(1)
    return found


def test_it_is_told_over_what_is_usual_at_the_end(slowness: SlownessByInterval) -> None:
    told = np.exp(slowness.at_end())
    assert np.median(told[1:SLOW_FROM]) == pytest.approx(1 / 3, rel=0.1)
    assert np.median(told[-10:]) == pytest.approx(1.0, rel=0.1)


def test_what_is_forgotten_leaves_the_rest_as_it_is(slowness: SlownessByInterval) -> None:
    told, positions = slowness.at_end(), [0, 3, SLOW_FROM + 5, INTERVALS]
    slowness.keep(positions)
    np.testing.assert_array_equal(slowness.at_end(), told[positions])


def test_nothing_is_known_of_a_model_that_answered_nothing() -> None:
    unknown = SlownessByInterval(Belief(SPACE, MeanLatency()), 0)
    unknown.take_in(2)
    np.testing.assert_array_equal(unknown.at_end(), np.zeros(2))
