"""What is derived from a grid: the configuration an observation speaks of, and threads at work."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
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


def test_an_action_is_the_number_of_a_configuration_whatever_holds_it() -> None:
    actions = np.array([SPACE.action(number) for number in range(len(SPACE))])
    assert [SPACE.number_of_action(action) for action in actions] == list(range(len(SPACE)))
    assert SPACE.numbers_of_actions(actions).tolist() == list(range(len(SPACE)))
    last = len(SPACE) - 1
    same: list[Any] = [list(actions[last]), tuple(actions[last]), actions[last].astype(float)]
    assert [SPACE.number_of_action(action) for action in same] == [last] * 3


@pytest.mark.parametrize(
    "action",
    [
        *([0.7, 0, 0, 0], [-1, 0, 0, 0], [3, 0, 0, 0], [math.nan, 0, 0, 0], [math.inf, 0, 0, 0], [0, 0, 0]),
        *([0] * 5, [], "0000", ["0"] * 4, 5, None, [[0, 0, 0, 0]], {"instances": 1}),
    ],
)
def test_what_is_no_action_is_refused_in_a_sentence(action: Any) -> None:
    message = r"whole number of each knob's value \(instances 0 to 2, inter_op_threads 0 to 0, .*\), got "
    with pytest.raises(ValueError, match=message):
        SPACE.number_of_action(action)
