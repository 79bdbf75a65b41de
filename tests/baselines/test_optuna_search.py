"""Optuna's samplers search a load once, then stay with the best they found."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from baselines.optuna_search import OptunaSearch, OptunaSettings, Sampler
from rrl.agent import Task, Transition, observe
from rrl.measurement import Measurement
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 3, 4, 5], max_batch_size=[1, 2, 4, 8, 16], unused=[7])
BEST = SPACE.number({"instances": 4, "max_batch_size": 2, "unused": 7})


def bowl(number: int, rate_per_s: float) -> float:
    return float(math.exp(0.3 * SPACE.distances(BEST)[number]))


def interval(number: int, cost: float, rate_per_s: float = 10.0, gap: str = "") -> Transition:
    measurement = Measurement(10.0, round(10 * rate_per_s), round(10 * rate_per_s), 0, gap=gap)
    seen = observe(measurement, SPACE, number)
    return Transition(seen, SPACE.action(number), cost, seen, measurement)


def proposed(agent: OptunaSearch) -> int:
    return SPACE.number_of_action(agent.act(interval(0, 1.0).observation))


def live(
    agent: OptunaSearch,
    decisions: int,
    rate_per_s: float = 10.0,
    cost: Callable[[int, float], float] = bowl,
) -> list[int]:
    numbers = []
    for _ in range(decisions):
        numbers.append(proposed(agent))
        agent.update(interval(numbers[-1], cost(numbers[-1], rate_per_s), rate_per_s))
    return numbers


def search(sampler: Sampler = "tpe", patience: int = 10, seed: int = 0) -> OptunaSearch:
    settings = OptunaSettings(patience=patience, handed_on=2, startup_trials=5)
    return OptunaSearch(Task(SPACE), sampler, seed, settings)


@pytest.mark.parametrize(("sampler", "patience"), [("tpe", 15), ("gp", 5)])
def test_it_searches_until_nothing_better_is_found_and_then_stays_near_the_optimum(
    sampler: Sampler, patience: int
) -> None:
    numbers = live(search(sampler, patience), 60)
    costs = [bowl(number, 10.0) for number in numbers]
    found = costs.index(min(costs))
    assert len(set(numbers[: found + 1 + patience])) > 5
    assert len(set(numbers[found + 1 + patience :])) == 1
    assert SPACE.distances(BEST)[numbers[-1]] <= 1.0


def test_the_search_ends_after_so_many_trials_that_are_no_better() -> None:
    agent = search(patience=3)
    for number, cost in ((0, 5.0), (1, 6.0), (2, 5.0), (3, 4.0), (5, 4.5), (6, 4.0)):  # the fourth is better
        agent.update(interval(number, cost))
    assert agent._present.searching
    agent.update(interval(7, 4.1))
    assert live(agent, 3) == [3] * 3


def test_the_guards_intervals_are_trials_and_are_exploited() -> None:
    agent = search(patience=5)
    for _ in range(6):
        agent.update(interval(BEST, 1.0))
    assert live(agent, 3) == [BEST] * 3


def test_a_dropped_proposal_is_not_waited_for() -> None:
    agent = search()
    for number in range(8):
        agent.update(interval(number, 5.0))
    assert len(set(live(agent, 7))) > 1


@pytest.mark.parametrize(("cost", "gap"), [(math.nan, ""), (1.0, "the server restarted")])
def test_an_interval_with_a_gap_or_no_cost_is_repeated_and_is_no_trial(cost: float, gap: str) -> None:
    agent, other = search(), search()
    for _ in range(20):
        agent.update(interval(proposed(agent), cost, gap=gap))
    assert live(agent, 20) == live(other, 20)


def test_a_configuration_that_was_only_lucky_loses_its_place() -> None:
    agent = search(patience=2)
    for number, cost in ((3, 1.0), (4, 2.0), (5, 3.0)):
        agent.update(interval(number, cost))
    assert proposed(agent) == agent.recommended() == 3
    agent.update(interval(3, 4.0))  # its mean is 2.5 now
    assert proposed(agent) == agent.recommended() == 4


def test_a_clear_change_of_load_opens_a_search_and_the_way_back_does_not() -> None:
    agent = search()
    live(agent, 20)
    settled = live(agent, 5)
    assert len(set(settled)) == 1
    changed = live(agent, 20, rate_per_s=20.0)
    assert changed[:3] == settled[:3]  # until the median has followed
    assert changed[3] == settled[0]  # the new study begins with what was best
    assert len(set(changed[5:])) > 3
    back = live(agent, 10, rate_per_s=10.0)
    assert back[-5:] == settled


def test_noise_in_the_load_opens_no_search() -> None:
    agent = search()
    live(agent, 20)
    rng = np.random.default_rng(3)
    rates_per_s = 10.0 * (1 + 0.1 * rng.standard_normal(60))
    numbers = [live(agent, 1, rate)[0] for rate in rates_per_s]
    assert len(set(numbers)) == 1


def test_every_load_has_its_own_best() -> None:
    def cost(number: int, rate_per_s: float) -> float:
        return 1.0 + (number if rate_per_s < 15 else len(SPACE) - number)

    agent = search(patience=30)
    low = live(agent, 45, 10.0, cost)[-1]
    high = live(agent, 30, 20.0, cost)[-1]
    assert low < 5 < 20 < high
    assert live(agent, 8, 10.0, cost)[-1] == low  # what the change itself cost is not held against it


def test_an_unknown_sampler_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown sampler 'grid'; known: tpe, gp"):
        OptunaSearch(Task(SPACE), "grid")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"patience": 0}, {"startup_trials": 0}, {"handed_on": 0}, {"rate_factor": 1.0}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        OptunaSettings(**wrong)  # type: ignore[arg-type]
