"""CAPES: its formulas worked out by hand, and what it finds on a server of known costs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from baselines.capes import CAPES, PAPER, TUNED, CAPESSettings, Experience
from rrl.agent import Task, Transition
from rrl.space import ConfigurationSpace
from rrl.testing import SPACE, Server

LINE = ConfigurationSpace.of(instances=[1, 2, 3])
QUICK = replace(PAPER, observations=1, training_steps=0)


def agent(settings: CAPESSettings = QUICK, space: ConfigurationSpace = LINE) -> CAPES:
    return CAPES(Task(space), settings)


def transition(before: int, after: int, cost: float, space: ConfigurationSpace = LINE) -> Transition:
    """One interval of a server on which configuration `before` gives way to `after`."""
    server = Server(space)
    observation = server.transition(space.action(before)).next_observation
    measured = server.transition(space.action(after))
    return replace(measured, observation=observation, cost=cost)


def answers(network: list[torch.Tensor], q: list[float]) -> None:
    """Makes a network say these Q for every state."""
    with torch.no_grad():
        for variable in network:
            variable.zero_()
        network[-1].copy_(torch.tensor(q))


def experience(move: int, reward: float, inputs: int = 9) -> Experience:
    return Experience(np.ones(inputs, np.float32), move, reward, np.zeros(inputs, np.float32))


def test_a_move_changes_one_knob_by_one_step_or_nothing() -> None:
    capes = agent(space=SPACE)
    inside = np.array([1, 0, 2])
    reached = {tuple(capes._moved(inside, move) - inside) for move in range(len(capes.moves))}
    assert reached == {(0, 0, 0), (1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, -1)}


def test_a_move_beyond_the_edge_changes_nothing() -> None:
    capes = agent()
    lowest, highest = np.array([0]), np.array([2])
    assert [int(capes._moved(lowest, move)[0]) for move in range(3)] == [0, 1, 0]
    assert [int(capes._moved(highest, move)[0]) for move in range(3)] == [2, 2, 1]


def test_steps_that_no_value_of_a_knob_allows_are_not_offered() -> None:
    space = ConfigurationSpace.of(instances=[1, 2, 3], intra_op_threads=[1, 2, 3, 4], inter_op_threads=[2])
    capes = agent(replace(QUICK, step_sizes=(1, 3)), space)
    assert capes.moves == [(0, 0), (0, 1), (0, -1), (1, 1), (1, -1), (1, 3), (1, -3)]


def test_exploration_falls_linearly_to_its_last_rate() -> None:
    capes = agent()
    assert capes.exploration_rate(2_500) == pytest.approx((0.5 + 0.05) / 2)
    assert capes.exploration_rate(5_000) == pytest.approx(0.05)
    assert capes.exploration_rate(9_000) == pytest.approx(0.05)


def test_two_hidden_layers_of_200_or_of_1_2_times_the_inputs() -> None:
    assert [tuple(w.shape) for w in agent(PAPER).q_network[::2]] == [(36, 200), (200, 200), (200, 3)]
    wide = agent(replace(PAPER, observations=30))  # 30 x 9 inputs
    assert wide.q_network[2].shape == (324, 324)


def test_the_target_is_the_reward_and_the_discounted_best_q_of_the_target_network() -> None:
    capes = agent()
    answers(capes.target_network, [1.0, 3.0, 2.0])
    answers(capes.q_network, [9.0, 9.0, 9.0])
    targets = capes._targets([experience(0, 0.5), experience(1, -1.0)])
    np.testing.assert_allclose(targets, [0.5 + 0.99 * 3.0, -1.0 + 0.99 * 3.0], rtol=1e-6)


def test_the_target_network_follows_by_a_hundredth() -> None:
    capes = agent()
    answers(capes.target_network, [1.0, 0.0, 0.0])
    answers(capes.q_network, [2.0, 0.0, -5.0])
    capes._follow()
    np.testing.assert_allclose(capes.target_network[-1], [1.01, 0.0, -0.05], rtol=1e-6)


def test_training_moves_q_of_the_move_made_to_its_target() -> None:
    capes = agent(replace(QUICK, discount=0.0))
    capes.memory = [experience(1, 0.7), experience(2, -0.3)]
    for _ in range(300):
        capes._train()
    state = torch.ones(1, 9)
    w_1, b_1, w_2, b_2, w_3, b_3 = capes.q_network
    q = (((state @ w_1 + b_1).tanh() @ w_2 + b_2).tanh() @ w_3 + b_3)[0].detach()
    np.testing.assert_allclose(q[1:], [0.7, -0.3], atol=0.1)


def test_one_step_of_rmsprop_has_the_size_of_the_clipped_gradient_over_its_root_mean_square() -> None:
    capes = agent(replace(QUICK, discount=0.0))
    answers(capes.q_network, [0.0, 0.0, 0.0])
    capes.memory = [experience(1, 100.0)]  # gradient of the output's bias: 2 (0 - 100), clipped to -5
    capes._train()
    np.testing.assert_allclose(capes.q_network[-1].detach(), [0.0, 1e-3 / math.sqrt(0.1), 0.0], rtol=1e-4)
    gradients = [v.grad for v in capes.q_network if v.grad is not None]
    assert len(gradients) == len(capes.q_network)
    assert float(torch.stack([gradient.norm() for gradient in gradients]).max()) == pytest.approx(5.0)


def test_the_reward_is_the_change_of_the_objective_relative_to_the_first_cost() -> None:
    capes = agent()
    capes.update(transition(0, 1, 100.0))
    assert not capes.memory  # nothing to compare with
    capes.update(transition(1, 2, 80.0))
    capes.update(transition(2, 1, 110.0))
    assert [one.reward for one in capes.memory] == pytest.approx([0.2, -0.3])
    assert [capes.moves[one.move].steps for one in capes.memory] == [1, -1]


def test_the_change_across_an_interval_without_a_cost_is_not_learned() -> None:
    capes = agent()
    capes.update(transition(0, 1, 100.0))
    capes.update(transition(1, 1, math.nan))
    capes.update(transition(1, 2, 80.0))
    assert not capes.memory


def test_a_log_cost_is_its_own_reward() -> None:
    capes = agent(replace(QUICK, reward="log cost"))
    capes.update(transition(0, 1, 100.0))
    capes.update(transition(1, 2, 50.0))
    assert [one.reward for one in capes.memory] == pytest.approx([0.0, math.log(2)])


def test_a_jump_of_the_guard_is_no_experience() -> None:
    capes = agent(replace(QUICK, reward="log cost"))
    capes.update(transition(0, 2, 100.0))
    assert not capes.memory


def test_at_an_edge_the_experience_is_of_the_move_that_was_chosen() -> None:
    capes = agent(replace(QUICK, first_exploration=0.0, last_exploration=0.0, reward="log cost"))
    answers(capes.q_network, [0.0, 1.0, 0.0])  # up, always
    stuck = transition(2, 2, 100.0)
    np.testing.assert_array_equal(capes.act(stuck.observation), [2])
    capes.update(stuck)
    assert capes.moves[capes.memory[0].move].steps == 1


def test_a_state_holds_the_last_observations() -> None:
    capes = agent(replace(PAPER, training_steps=0, observations=3))
    seen = [transition(number, number, 100.0) for number in (0, 1, 2)]
    for one in seen[:2]:
        capes.update(one)
    state = capes._state(seen[2].observation).reshape(3, 9)
    np.testing.assert_allclose(state[:, -1], [0.0, 0.5, 1.0])


def test_it_trains_after_every_so_many_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    capes = agent(replace(PAPER, observations=1, training_steps=2, train_every=3))
    steps: list[int] = []
    monkeypatch.setattr(capes, "_train", lambda: steps.append(capes._decisions))
    for cost in (100.0, 90.0, 80.0, 70.0, 60.0, 50.0):
        capes.update(transition(1, 1, cost))
    assert steps == [3, 3, 6, 6]


def test_in_the_background_it_trains_on_without_a_pause_until_it_is_closed() -> None:
    capes = CAPES(Task(LINE), replace(PAPER, observations=1, training_steps=3), background_training=True)
    capes.update(transition(0, 1, 100.0))
    capes.finish_training()  # there is nothing to train on yet, so it does not wait
    capes.update(transition(1, 2, 80.0))
    before = [variable.detach().clone() for variable in capes._policy]
    assert capes._training is not None
    capes._training.wait_for(40)  # more steps than a decision has without the thread
    capes.close()
    assert any((a != b).any() for a, b in zip(before, capes.q_network, strict=True))
    trained = [variable.detach().clone() for variable in capes.q_network]
    capes.close()
    assert all((a == b).all() for a, b in zip(trained, capes.q_network, strict=True))


def test_while_it_trains_it_decides_by_the_network_of_the_last_interval() -> None:
    capes = CAPES(Task(LINE), replace(PAPER, observations=1), background_training=True)
    for number in (0, 1, 2):
        capes.update(transition(number, min(number + 1, 2), 100.0 - number))
    decided = [variable.clone() for variable in capes._policy]
    assert capes._training is not None
    capes._training.wait_for(20)
    assert all((a == b).all() for a, b in zip(decided, capes._policy, strict=True))
    capes.update(transition(2, 1, 100.0))
    assert any((a != b).any() for a, b in zip(decided, capes._policy, strict=True))
    capes.close()


def test_what_it_explores_does_not_depend_on_how_long_it_trained() -> None:
    short, long = (CAPES(Task(SPACE), TUNED, seed=3, background_training=True) for _ in range(2))
    drawn: list[list[float]] = []
    for capes, steps in ((short, 1), (long, 30)):
        server, draws = Server(SPACE), []
        for _ in range(5):
            capes.update(server.transition(SPACE.action(0)))
            assert capes._training is not None
            capes._training.wait_for(steps)
            draws.append(capes._explore)
        capes.close()
        drawn.append(draws)
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("best", ["highest", "lowest"])
def test_tuned_it_finds_a_good_configuration_of_whatever_objective(best: str) -> None:
    """The cost alone says what is good: the observed latency is the same in both cases."""
    capes, server = CAPES(Task(SPACE), TUNED), Server(SPACE)
    visited = []
    for _ in range(200):
        one = server.transition(capes.act(server.observation))
        visited.append(float(SPACE.features[SPACE.number_of_action(one.action)].mean()))
        capes.update(one if best == "highest" else replace(one, cost=1e3 / one.cost))
    settled = np.mean(visited[-50:])
    assert settled > 0.8 if best == "highest" else settled < 0.2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"discount": 1.0}, "discount"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"target_update": 0.0}, "target_update"),
        ({"last_exploration": 0.7}, "exploration"),
        ({"minibatch": 0}, "minibatch"),
        ({"training_steps": -1}, "training_steps"),
        ({"train_every": 0}, "train_every"),
        ({"step_sizes": ()}, "step_sizes"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(PAPER, **wrong)
