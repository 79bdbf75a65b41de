"""The oracle knows every interval's best configuration; the best fixed one is best over all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from baselines.hindsight import BestFixed, Oracle
from rrl.agent import Hindsight, Task, Transition, observe
from rrl.measurement import Measurement
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 3])
COSTS = {10.0: [1.0, 2.0, 9.0], 20.0: [8.0, 3.0, 2.0], 30.0: [math.nan, 7.0, 5.0]}
RATES_PER_S = [10.0, 20.0, 30.0, 10.0]


def task(rates_per_s: list[float], asked: list[float] | None = None) -> Task:
    def expected_costs(rate_per_s: float) -> np.ndarray:
        if asked is not None:
            asked.append(rate_per_s)
        return np.asarray(COSTS[rate_per_s])

    return Task(SPACE, hindsight=Hindsight(np.asarray(rates_per_s), expected_costs))


def interval(cost: float = 1.0) -> Transition:
    seen = observe(Measurement(1.0, 10, 10, 0), SPACE, 0)
    return Transition(seen, SPACE.action(0), cost, seen, Measurement(1.0, 10, 10, 0))


def chosen(agent: Oracle | BestFixed, decisions: int) -> list[int]:
    numbers = []
    for _ in range(decisions):
        numbers.append(SPACE.number_of_action(agent.act(interval().observation)))
        agent.update(interval())
    return numbers


def test_the_oracle_follows_the_true_rate_and_stays_after_the_last_one() -> None:
    assert chosen(Oracle(task(RATES_PER_S)), 6) == [0, 2, 2, 0, 0, 0]


def test_an_interval_without_a_cost_counts_for_the_oracle_too() -> None:
    oracle = Oracle(task(RATES_PER_S))
    oracle.update(interval(math.nan))
    assert chosen(oracle, 1) == [2]


def test_the_oracle_asks_once_a_rate() -> None:
    asked: list[float] = []
    chosen(Oracle(task(RATES_PER_S, asked)), 4)
    assert asked == [10.0, 20.0, 30.0]


@pytest.mark.parametrize(
    ("rates_per_s", "best"),
    [
        ([10.0, 20.0], 1),  # sums 9, 5, 11: best on average, at neither rate
        ([10.0, 10.0, 10.0, 10.0, 20.0, 10.0], 0),  # 13, 13, 47: a tie goes to the first
        ([20.0, 30.0], 2),  # a configuration without an expected cost is never it
    ],
)
def test_the_best_fixed_configuration_costs_least_over_all_intervals(
    rates_per_s: list[float], best: int
) -> None:
    assert chosen(BestFixed(task(rates_per_s)), 3) == [best] * 3


@pytest.mark.parametrize("agent", [Oracle, BestFixed])
def test_without_hindsight_or_intervals_they_are_refused(agent: type[Oracle] | type[BestFixed]) -> None:
    with pytest.raises(ValueError, match="only a simulation knows beforehand; use rrl-compare"):
        agent(Task(SPACE))
    with pytest.raises(ValueError, match="at least one interval, got none"):
        agent(task([]))
