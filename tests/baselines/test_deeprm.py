"""DeepRM: its policy gradient worked out by hand, and what it finds on a server of known costs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from baselines.deeprm import PAPER, TUNED, DeepRM, DeepRMSettings, OneStepEpisode
from rrl.agent import Task
from rrl.space import ConfigurationSpace
from rrl.testing import SPACE, Server

LINE = ConfigurationSpace.of(instances=[1, 2, 3])


def agent(settings: DeepRMSettings = PAPER, space: ConfigurationSpace = LINE) -> DeepRM:
    return DeepRM(Task(space), settings)


def silenced(deeprm: DeepRM) -> DeepRM:
    """All weights 0: every output is as probable as any other."""
    with torch.no_grad():
        for variable in deeprm.network:
            variable.zero_()
    return deeprm


def test_one_hidden_layer_of_20_and_one_output_a_configuration() -> None:
    assert [tuple(v.shape) for v in agent(space=SPACE).network] == [(11, 20), (20,), (20, 24), (24,)]


def test_with_outputs_for_knobs_there_is_one_a_value() -> None:
    deeprm = agent(TUNED, SPACE)
    assert deeprm.network[2].shape == (TUNED.hidden, 3 + 2 + 4)
    assert [len(probabilities) for probabilities in deeprm.policy(Server(SPACE).observation)] == [3, 2, 4]


def test_the_policy_is_the_softmax_of_the_outputs() -> None:
    deeprm = silenced(agent())
    with torch.no_grad():
        deeprm.network[-1].copy_(torch.tensor([0.0, math.log(2.0), math.log(5.0)]))
    (policy,) = deeprm.policy(Server(LINE).observation)
    np.testing.assert_allclose(policy, [1 / 8, 2 / 8, 5 / 8], rtol=1e-6)


def test_the_gradient_is_the_mean_of_score_times_advantage() -> None:
    """Of the outputs' bias: mean over episodes of (1[k = a] - π_k) · (v - b), with b the batch's mean."""
    deeprm = silenced(agent(replace(PAPER, episodes=2)))
    inputs = np.ones(9, np.float32)
    deeprm._train([OneStepEpisode(inputs, (0,), -1.0), OneStepEpisode(inputs, (2,), -4.0)])
    score = np.eye(3)[[0, 2]] - 1 / 3
    expected = (score * np.array([[1.5], [-1.5]])).mean(axis=0)
    gradient = deeprm.network[-1].grad
    assert gradient is not None
    np.testing.assert_allclose(-gradient, expected, rtol=1e-5, atol=1e-7)  # the optimiser descends


def test_a_step_makes_the_better_choice_more_probable() -> None:
    deeprm = silenced(agent(replace(PAPER, episodes=2)))
    inputs = np.ones(9, np.float32)
    deeprm._train([OneStepEpisode(inputs, (0,), -1.0), OneStepEpisode(inputs, (2,), -4.0)])
    (policy,) = deeprm.policy(Server(LINE).observation)
    assert policy[0] > policy[1] > policy[2]
    # RMSProp from v = 0: α g / √(0.1 g²)
    np.testing.assert_allclose(
        deeprm.network[-1].detach(),
        [1e-3 / math.sqrt(0.1), 0.0, -1e-3 / math.sqrt(0.1)],
        rtol=1e-3,
        atol=1e-9,
    )


def test_the_probability_of_a_configuration_is_the_product_over_its_knobs() -> None:
    deeprm = silenced(agent(TUNED, SPACE))
    inputs = np.ones(11, np.float32)
    deeprm._train([OneStepEpisode(inputs, (2, 0, 1), -1.0), OneStepEpisode(inputs, (0, 0, 3), -3.0)])
    gradient = deeprm.network[-1].grad
    assert gradient is not None
    # of ln π = Σ ln π_knob: the mean of ±1 · (1[k = a] - π_k), in which the common choice cancels
    expected = [[-0.5, 0.0, 0.5], [0.0, 0.0], [0.0, 0.5, 0.0, -0.5]]
    np.testing.assert_allclose(-gradient, np.concatenate(expected), atol=1e-7)


def test_the_network_changes_once_a_batch() -> None:
    deeprm, server = agent(space=SPACE), Server(SPACE)
    first = deeprm.network[-1].detach().clone()
    for _ in range(PAPER.episodes - 1):
        deeprm.update(server.transition(deeprm.act(server.observation)))
    assert torch.equal(deeprm.network[-1], first)
    deeprm.update(server.transition(deeprm.act(server.observation)))
    assert not torch.equal(deeprm.network[-1], first)


def test_an_interval_without_a_cost_is_no_episode() -> None:
    deeprm, server = agent(TUNED, SPACE), Server(SPACE)
    one = server.transition(SPACE.action(0))
    deeprm.update(replace(one, cost=math.nan))
    deeprm.update(replace(one, measurement=replace(one.measurement, gap="the server restarted")))
    assert not deeprm._batch


@pytest.mark.parametrize("best", ["highest", "lowest"])
def test_tuned_it_finds_a_good_configuration_of_whatever_objective(best: str) -> None:
    """The cost alone says what is good: the observed latency is the same in both cases."""
    deeprm, server = DeepRM(Task(SPACE), TUNED), Server(SPACE)
    visited = []
    for _ in range(300):
        one = server.transition(deeprm.act(server.observation))
        visited.append(float(SPACE.features[SPACE.number_of_action(one.action)].mean()))
        deeprm.update(one if best == "highest" else replace(one, cost=1e3 / one.cost))
    settled = np.mean(visited[-50:])
    assert settled > 0.8 if best == "highest" else settled < 0.2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"hidden": 0}, "hidden"),
        ({"episodes": 1}, "2 episodes"),
        ({"decay": 1.0}, "decay"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(PAPER, **wrong)
