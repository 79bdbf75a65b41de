"""Point-based Q-learning: a decision teaches about its own configuration alone."""

from __future__ import annotations

import numpy as np

from baselines.point_q_learning import POINT_BASED
from rrl.agent import Task
from rrl.load_levels import LoadLevels
from rrl.region.q_learning import RegionQLearning
from rrl.testing import SPACE, Server


def test_an_update_changes_one_entry_and_the_network_has_no_say() -> None:
    agent, server = RegionQLearning(Task(SPACE), POINT_BASED), Server(SPACE)
    first = server.transition(SPACE.action(0))
    agent.update(first)
    (level,) = agent.perceptions
    for number in (7, 11):
        before = agent.perceptions[level].q.copy()
        one = server.transition(SPACE.action(number))
        agent.update(one)
        assert LoadLevels().level(one.measurement.arrival_rate_per_s) == level
        after = agent.perceptions[level].q
        assert after[number] == one.cost  # the first observation is taken whole
        np.testing.assert_array_equal(np.delete(after, number), np.delete(before, number))


def test_repeated_costs_of_a_configuration_are_averaged_with_a_falling_learning_rate() -> None:
    agent, server = RegionQLearning(Task(SPACE), POINT_BASED), Server(SPACE)
    costs = []
    for _ in range(3):
        one = server.transition(SPACE.action(5))
        costs.append(one.cost)
        agent.update(one)
    (perception,) = agent.perceptions.values()
    expected = costs[0]
    for n, cost in enumerate(costs[1:], start=2):
        expected += n**-0.6 * (cost - expected)
    np.testing.assert_allclose(perception.q[5], expected)
