"""The exhaustive sweep visits everything once, and then stays at the best."""

from __future__ import annotations

import math

import numpy as np
import pytest

from baselines.exhaustive_sweep import ExhaustiveSweep
from rrl.agent import Task, Transition, observe
from rrl.measurement import Measurement
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 3], max_batch_size=[1, 2, 4])
NOTHING = observe(Measurement(1.0, 10, 10, 0), SPACE, 0)


def interval(number: int, cost: float, gap: str = "") -> Transition:
    return Transition(NOTHING, SPACE.action(number), cost, NOTHING, Measurement(1.0, 10, 10, 0, gap=gap))


def next_number(sweep: ExhaustiveSweep) -> int:
    return SPACE.number_of_action(sweep.act(NOTHING))


@pytest.mark.parametrize("repeats", [1, 3])
def test_it_visits_each_configuration_as_often_as_told_and_stays_at_the_best_mean(repeats: int) -> None:
    sweep = ExhaustiveSweep(Task(SPACE), seed=1, repeats=repeats)
    visited = []
    while not sweep.done:
        visited.append(next_number(sweep))
        sweep.update(interval(visited[-1], 10.0 + abs(visited[-1] - 4) + 0.1 * len(visited) % 1))
    assert sorted(visited) == sorted(list(range(9)) * repeats)
    assert visited[:9] != list(range(9))
    assert next_number(sweep) == 4
    sweep.update(interval(4, 100.0))  # it turns out worse than its neighbours
    sweep.update(interval(4, 100.0))
    assert next_number(sweep) != 4


def test_what_the_target_refused_twice_is_left_out_and_the_sweep_ends() -> None:
    sweep = ExhaustiveSweep(Task(SPACE))
    refused = {6, 7, 8}
    visited = []
    for _ in range(3 * len(SPACE)):
        number = next_number(sweep)
        if number in refused:
            sweep.refused(number)
            number = 0  # runs instead, and costs most
        else:
            visited.append(number)
        sweep.update(interval(number, 10.0 - number))
    assert sweep.done
    assert set(visited) <= set(range(6))
    assert next_number(sweep) == 5


def test_an_interval_without_a_cost_is_repeated() -> None:
    sweep = ExhaustiveSweep(Task(SPACE))
    first = next_number(sweep)
    sweep.update(interval(first, math.nan))
    sweep.update(interval(first, 5.0, gap="the server restarted"))
    assert next_number(sweep) == first
    assert np.isnan(sweep.mean_costs).all()


def test_intervals_the_guard_chose_put_the_next_configuration_off_but_do_not_drop_it() -> None:
    sweep = ExhaustiveSweep(Task(SPACE))
    first = next_number(sweep)
    guards = (first + 1) % 9
    sweep.update(interval(guards, 7.0))
    assert next_number(sweep) != first
    visited = []
    while not sweep.done:
        visited.append(next_number(sweep))
        sweep.update(interval(visited[-1], 8.0))
    assert sorted(visited) == sorted(set(range(9)) - {guards})  # the guard's visit counts as one
    assert next_number(sweep) == guards


def test_a_sweep_of_no_visits_is_refused() -> None:
    with pytest.raises(ValueError, match="at least once, got repeats=0"):
        ExhaustiveSweep(Task(SPACE), repeats=0)
