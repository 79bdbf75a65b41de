"""What is derived from a grid: the configuration an observation speaks of, and threads at work."""

from __future__ import annotations

import math

import pytest

from rrl.agent import Transition, number_in_force, observe
from rrl.measurement import Measurement
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(
    instances=[1, 2, 4], inter_op_threads=[3], intra_op_threads=range(1, 8), max_batch_size=[1, 32]
)


def test_an_observation_tells_which_configuration_was_in_force() -> None:
    measurement = Measurement(1.0, 10, 10, 0)
    for number in range(len(SPACE)):
        assert number_in_force(observe(measurement, SPACE, number), SPACE) == number


def test_threads_are_the_product_of_the_knobs_that_multiply() -> None:
    number = SPACE.number(
        {"instances": 4, "inter_op_threads": 3, "intra_op_threads": 5, "max_batch_size": 32}
    )
    assert SPACE.threads[number] == 60
    assert ConfigurationSpace.of(max_batch_size=[1, 2]).threads.tolist() == [1, 1]
    units = ConfigurationSpace.of(instances=[2], intra_op_threads=[3], nodes_per_unit=[1, 4])
    assert units.threads.tolist() == [6, 24]  # on all nodes of the units


@pytest.mark.parametrize(
    ("cost", "gap", "has"), [(3.0, "", True), (math.nan, "", False), (3.0, "restarted", False)]
)
def test_a_gap_and_an_interval_without_answers_have_no_cost(cost: float, gap: str, has: bool) -> None:
    measurement = Measurement(1.0, 10, 10, 0, gap=gap)
    observation = observe(measurement, SPACE, 0)
    transition = Transition(observation, SPACE.action(0), cost, observation, measurement)
    assert transition.has_cost == has
