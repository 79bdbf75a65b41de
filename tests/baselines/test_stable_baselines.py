"""Stable-Baselines3's DQN and PPO driven by transitions."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from baselines.stable_baselines import (
    DQN_ARGUMENTS,
    PPO_ARGUMENTS,
    StableBaselinesDQN,
    StableBaselinesPPO,
)
from rrl.agent import Task
from rrl.testing import SPACE, Server

Rival = type[StableBaselinesDQN] | type[StableBaselinesPPO]


def settled(method: Rival, decisions: int, best: str) -> float:
    """The mean knob feature, 0 to 1, of the last 50 configurations on the server of known costs."""
    agent, server = method(Task(SPACE)), Server(SPACE)
    visited = []
    for _ in range(decisions):
        one = server.transition(agent.act(server.observation))
        visited.append(float(SPACE.features[SPACE.number_of_action(one.action)].mean()))
        agent.update(one if best == "highest" else replace(one, cost=1e3 / one.cost))
    return float(np.mean(visited[-50:]))


@pytest.mark.parametrize("best", ["highest", "lowest"])
def test_dqn_finds_a_good_configuration_of_whatever_objective(best: str) -> None:
    mean = settled(StableBaselinesDQN, 200, best)
    assert mean > 0.75 if best == "highest" else mean < 0.25


@pytest.mark.parametrize("best", ["highest", "lowest"])
def test_ppo_finds_a_good_configuration_of_whatever_objective(best: str) -> None:
    mean = settled(StableBaselinesPPO, 200, best)
    assert mean > 0.75 if best == "highest" else mean < 0.25


@pytest.mark.parametrize("method", [StableBaselinesDQN, StableBaselinesPPO])
def test_the_global_generators_are_left_alone(method: Rival) -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    expected = drawn()
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    settled(method, 20, "highest")
    assert drawn() == expected


def test_dqn_explores_at_random_first_and_less_and_less_later() -> None:
    agent = StableBaselinesDQN(Task(SPACE))
    starts = DQN_ARGUMENTS["learning_starts"]
    rates = [agent.exploration_rate(decisions) for decisions in range(500)]
    assert rates[: starts - 1] == [1.0] * (starts - 1)
    assert (np.diff(rates) <= 0).all()
    assert rates[-1] == pytest.approx(DQN_ARGUMENTS["exploration_final_eps"])


def test_dqn_without_discount_learns_the_reward_itself() -> None:
    """The reward is first cost / cost: 1 for the first configuration, 2 for half its cost."""
    agent, server = StableBaselinesDQN(Task(SPACE)), Server(SPACE)
    observation = server.observation
    for k in range(120):
        one = server.transition(SPACE.action((3, 20)[k % 2]))
        agent.update(replace(one, observation=observation, cost=(40.0, 20.0)[k % 2]))
    inputs = torch.from_numpy(agent._scaling.inputs(observation)[None])
    q = agent.model.q_net(inputs)[0].detach().numpy()
    np.testing.assert_allclose(q[[3, 20]], [1.0, 2.0], atol=0.1)


def test_ppo_trains_when_a_rollout_is_full_and_not_before() -> None:
    agent, server = StableBaselinesPPO(Task(SPACE)), Server(SPACE)

    def weights() -> np.ndarray:
        return torch.cat([p.detach().flatten() for p in agent.model.policy.parameters()]).numpy().copy()

    first = weights()
    for _ in range(PPO_ARGUMENTS["n_steps"] - 1):
        agent.update(server.transition(agent.act(server.observation)))
    np.testing.assert_array_equal(weights(), first)
    agent.update(server.transition(agent.act(server.observation)))
    assert (weights() != first).any()
    assert agent.model.rollout_buffer.pos == 0
