"""What the default agent teaches its residual (`rrl.guided.region_residual`), and what it decides by it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.guided_agents import OWN, RATE_PER_S, by_hand, row, transition


def test_it_tells_what_was_observed_and_what_its_prior_expected() -> None:
    agent = by_hand(radius=1.0, residual_sd=1e3)  # so large that a single interval says all
    agent.update(transition(0, 60.0, [OWN]))  # 50 ms are predicted
    expected = [math.log(1.2), math.log(1.2), 0.0]
    np.testing.assert_allclose(agent.residual.log_ratio(RATE_PER_S), expected, rtol=1e-6)


@pytest.mark.parametrize("fields", [{"aborted": "the queue ran away"}, {"backlog": 30, "backlog_growth": 2}])
def test_an_aborted_interval_and_one_of_others_backlog_say_nothing_of_the_prior(
    fields: dict[str, object],
) -> None:
    agent = by_hand()
    agent.update(transition(0, 500.0, [OWN], **fields))  # type: ignore[arg-type]
    assert not agent.residual.log_ratio(RATE_PER_S).any()


@pytest.mark.parametrize(
    ("in_place", "waited", "says"), [(frozenset(), 15, True), (frozenset(), 30, False), (None, 15, False)]
)
def test_a_few_that_waited_before_void_no_interval_where_changes_cost(
    in_place: frozenset[str] | None, waited: int, says: bool
) -> None:
    """Of 1,000 requests 15 are a fiftieth at most, 30 are not."""
    agent = by_hand(in_place=in_place)
    agent.update(transition(0, 60.0, [row(1, 600, 0.01)], rate_per_s=100.0, backlog=waited))
    assert agent.residual.log_ratio(100.0).any() == says


def test_a_change_of_the_machine_forgets_all() -> None:
    agent = by_hand()
    agent.update(transition(0, 60.0, [OWN]))
    agent.update(transition(0, 40.0, [OWN], rate_per_s=3 * RATE_PER_S))
    assert agent.residual.log_ratio(RATE_PER_S).any()
    agent.update(transition(0, 50.0, [row(1, 60, 0.1)], rate_per_s=3 * RATE_PER_S))  # twice as slow
    assert agent.changes == 1
    assert not agent.residual.log_ratio(RATE_PER_S).any()


def test_the_residual_turns_a_decision() -> None:
    agent = by_hand(radius=0.0)
    agent.update(transition(2, 80.0, [row(1, 60, 0.02)]))
    assert agent.act(np.empty(0)).tolist() == [1]  # 40 ms are predicted
    for _ in range(4):
        agent.update(transition(1, 60.0, [row(1, 60, 0.02)]))
    assert agent.act(np.empty(0)).tolist() == [0]
