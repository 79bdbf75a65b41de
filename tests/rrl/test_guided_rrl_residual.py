"""The default agent's residual, worked out by hand (RRL, equations 1 and 2)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from guided_agents import LEVEL, OWN, RATE_PER_S, VARIANCE, KnownNetwork, by_hand, row, transition

from rrl.guided_rrl import GUIDED, GuidedRRL


def perceived(agent: GuidedRRL) -> np.ndarray:
    return agent.residual.levels[LEVEL].log_ratio


def test_an_untrained_network_lets_the_region_share_what_was_observed() -> None:
    agent = by_hand(KnownNetwork([1, 1, 1], trained=False), radius=1.0)
    agent.update(transition(0, 60.0, [OWN]))
    α = 1 / (1 + VARIANCE / 0.1**2)
    np.testing.assert_allclose(perceived(agent), [α * math.log(1.2), α * math.log(1.2), 0.0])
    assert agent.residual.estimator.samples == pytest.approx([1.2])  # type: ignore[attr-defined]


def test_equation_1_adds_what_the_network_knows_and_equation_2_moves_towards_it() -> None:
    agent = by_hand(KnownNetwork([1.0, 1.3, 0.9]))
    agent.update(transition(1, 50.0, [OWN]))
    α = 1 / (1 + VARIANCE / 0.1**2)
    estimated = np.log([1.25 * 1.0 / 1.3, 1.25, 1.25 * 0.9 / 1.3])
    np.testing.assert_allclose(perceived(agent), α * estimated)
    agent.update(transition(1, 44.0, [OWN]))
    later = 1 / (2 + VARIANCE / 0.1**2)
    own = α * estimated[1] + later * (math.log(1.1) - α * estimated[1])
    others = np.log([1.1 * 1.0 / 1.3, 1.1 * 0.9 / 1.3])  # not observed themselves: still n = 1
    unseen = α * estimated[[0, 2]] + α * (others - α * estimated[[0, 2]])
    np.testing.assert_allclose(perceived(agent), [unseen[0], own, unseen[1]])


def test_what_was_observed_itself_is_not_changed_by_its_neighbours() -> None:
    agent = by_hand(KnownNetwork([1, 1, 1]))
    agent.update(transition(0, 60.0, [OWN]))
    own = perceived(agent)[0]
    agent.update(transition(1, 20.0, [OWN]))
    assert perceived(agent)[0] == own
    assert perceived(agent)[2] < 0


def test_what_is_seen_itself_does_not_build_upon_what_its_neighbours_made_likely() -> None:
    """Where changes cost; elsewhere the next ones tell soon enough."""
    agent = by_hand(KnownNetwork([1.0, 0.4, 1.0]), in_place=frozenset())
    for _ in range(5):
        agent.update(transition(0, 50.0, [OWN]))
    assert perceived(agent)[1] < -0.4  # the network's belief
    agent.update(transition(1, 44.0, [OWN]))
    α = 1 / (1 + VARIANCE / GUIDED.residual_sd_costly**2)
    assert perceived(agent)[1] == pytest.approx(α * math.log(1.1))


def test_where_changes_cost_what_is_seen_counts_for_more() -> None:
    agent = by_hand(KnownNetwork([1, 1, 1]), in_place=frozenset())
    agent.update(transition(0, 60.0, [OWN]))
    α = 1 / (1 + VARIANCE / GUIDED.residual_sd_costly**2)
    assert perceived(agent)[0] == pytest.approx(α * math.log(1.2))


def test_what_an_interval_says_against_the_prior_is_bounded() -> None:
    agent = by_hand(KnownNetwork([1, 1, 1], trained=False))
    agent.update(transition(0, 50.0 * 1000, [OWN]))
    α = 1 / (1 + VARIANCE / 0.1**2)
    np.testing.assert_allclose(perceived(agent), α)


@pytest.mark.parametrize("fields", [{"aborted": "the queue ran away"}, {"backlog": 30, "backlog_growth": 2}])
def test_an_aborted_interval_and_one_of_others_backlog_say_nothing_of_the_prior(
    fields: dict[str, object],
) -> None:
    agent = by_hand(KnownNetwork([1, 1, 1]))
    agent.update(transition(0, 500.0, [OWN], **fields))  # type: ignore[arg-type]
    assert not any(residual.log_ratio.any() for residual in agent.residual.levels.values())


def test_load_levels_are_perceived_apart_and_a_change_of_the_machine_forgets_all() -> None:
    agent = by_hand(KnownNetwork([1, 1, 1]))
    agent.update(transition(0, 60.0, [OWN]))
    agent.update(transition(0, 40.0, [OWN], rate_per_s=3 * RATE_PER_S))
    other = GUIDED.load_levels.level(3 * RATE_PER_S)
    assert (perceived(agent) > 0).all()
    assert (agent.residual.levels[other].log_ratio < 0).all()
    agent.update(transition(0, 50.0, [row(1, 60, 0.1)], rate_per_s=3 * RATE_PER_S))  # twice as slow
    assert agent.changes == 1
    assert LEVEL not in agent.residual.levels or not perceived(agent).any()


def test_the_residual_turns_a_decision() -> None:
    agent = by_hand(KnownNetwork([1, 1, 1]), radius=0.0)
    agent.update(transition(2, 80.0, [row(1, 60, 0.02)]))
    assert agent.act(np.empty(0)).tolist() == [1]  # 40 ms are predicted
    for _ in range(4):
        agent.update(transition(1, 60.0, [row(1, 60, 0.02)]))
    assert agent.act(np.empty(0)).tolist() == [0]
