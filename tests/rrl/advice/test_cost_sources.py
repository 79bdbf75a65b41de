"""What other configurations are foreseen to cost: honest about what is not known, and mostly right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import RATE_PER_S, family_cores, family_machine
from envs.scenarios.scenario import Scenario
from envs.scenarios.workloads import PerIntervalPoisson
from rrl.advice import cost_sources
from rrl.advice.cost_sources import by_machine, by_observation, by_table
from rrl.advice.possible_costs import PossibleCosts
from rrl.agent import Task, Transition
from rrl.measurement import LatencySummary, Measurement, ServiceTimes
from rrl.objective import LeastResources, MeanLatency, Objective
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(
    instances=[1, 2, 3, 4],
    intra_op_threads=[1, 2, 4],
    max_batch_size=[1, 2, 4, 8],
    max_queue_delay_us=[0, 30_000],
)
INTERVALS = 3
Tells = Callable[[Measurement], Measurement]


def everything(measurement: Measurement) -> Measurement:
    return measurement


def by_batch_size(measurement: Measurement) -> Measurement:
    """As a stock Triton tells it."""
    totals: dict[int, tuple[int, float]] = {}
    for row in measurement.telemetry:
        count, total_s = totals.get(row.batch_size, (0, 0.0))
        totals[row.batch_size] = count + row.count, total_s + row.total_s
    rows = (ServiceTimes(0, size, *total) for size, total in sorted(totals.items()))
    return replace(measurement, telemetry=tuple(rows))


def observed(scenario: Scenario, number: int, rate_per_s: float, tells: Tells, seed: int) -> list[Transition]:
    """Three intervals of one configuration, after one in which the server's queue has filled."""
    arrivals = PerIntervalPoisson(np.full(INTERVALS + 2, rate_per_s))
    env = scenario.environment(SPACE, MeanLatency(), arrivals, start=SPACE.configuration(number))
    observation, _ = env.reset(seed=seed)
    action = SPACE.action(number)
    transitions = []
    for _ in range(INTERVALS):
        following, _, _, _, info = env.step(action)
        measurement = tells(info["measurement"])
        transitions.append(Transition(observation, action, info["cost"], following, measurement))
        observation = following
    return transitions


class Case(NamedTuple):
    """What was foreseen of a machine under a load, and what is true."""

    possible: PossibleCosts
    true_costs: np.ndarray
    present: int

    @property
    def recommended(self) -> int | None:
        position = self.possible.recommended()
        return None if position is None else int(self.possible.numbers[position])

    def holds(self, number: int) -> bool:
        """True if the interval foreseen holds the true cost."""
        position = int(np.flatnonzero(self.possible.numbers == number)[0])
        low, _, high = self.possible.expectation(position)
        return bool(low <= self.true_costs[number] <= high)


def scenario_of(seed: int) -> Scenario:
    return Scenario(family_machine(seed), f"family-{seed}", carry_backlog=True, cores=family_cores(seed))


@cache
def true_costs_of(seed: int, rate_per_s: float) -> np.ndarray:
    return ExpectedCosts(scenario_of(seed), SPACE, MeanLatency()).costs(rate_per_s)


def case(seed: int, tells: Tells) -> Case:
    """A machine of the family in some configuration that bears the load, but not well."""
    cores, scenario = family_cores(seed), scenario_of(seed)
    rate_per_s = RATE_PER_S * (0.5, 0.8)[seed % 2]
    true_costs = true_costs_of(seed, rate_per_s)
    bearable = np.flatnonzero((true_costs > 1.5 * true_costs.min()) & (true_costs < 8 * true_costs.min()))
    present = int(np.random.default_rng(seed).choice(bearable))
    task = Task(SPACE, cores=cores)
    possible = by_observation(task, observed(scenario, present, rate_per_s, tells, seed), seed)
    assert possible is not None
    return Case(possible, true_costs, present)


@pytest.mark.parametrize("tells", [everything, by_batch_size])
def test_what_is_recommended_by_observation_alone_is_better_and_as_expected(tells: Tells) -> None:
    """Over many machines nine in ten are; of these, at most one is not."""
    cases = [case(seed, tells) for seed in range(40, 60)]
    changed = [(c, number) for c in cases if (number := c.recommended) is not None]
    assert len(changed) >= 6
    assert sum(c.true_costs[n] <= c.true_costs[c.present] for c, n in changed) >= len(changed) - 1
    assert sum(c.holds(n) for c, n in changed) >= len(changed) - 1
    assert np.median([c.true_costs[c.present] / c.true_costs[n] for c, n in changed]) > 1.15


def test_nothing_is_recommended_where_the_best_is_in_force() -> None:
    scenario = Scenario(family_machine(41), "family-41", carry_backlog=True)
    best = int(ExpectedCosts(scenario, SPACE, MeanLatency()).costs(RATE_PER_S).argmin())
    task = Task(SPACE, cores=family_cores(41))
    possible = by_observation(task, observed(scenario, best, RATE_PER_S, everything, seed=0))
    assert possible is not None
    assert possible.recommended() is None


@pytest.mark.parametrize("mean_ms", [math.nan, 100.0])
def test_without_service_times_by_batch_size_nothing_is_foreseen(mean_ms: float) -> None:
    def nothing(measurement: Measurement) -> Measurement:
        return replace(measurement, telemetry=(), service=LatencySummary(mean_ms))

    scenario = Scenario(family_machine(41), "family-41")
    batching = int(SPACE.values[:, 2].argmax())
    assert by_observation(Task(SPACE), observed(scenario, batching, 2 * RATE_PER_S, nothing, seed=0)) is None


def test_the_seed_fixes_what_is_foreseen() -> None:
    first, again = (case(43, everything).possible.costs for _ in range(2))
    np.testing.assert_array_equal(first, again)


LARGE = ConfigurationSpace.of(
    instances=range(1, 6), intra_op_threads=range(1, 6), inter_op_threads=range(1, 6)
)


def of_large(objective: Objective) -> PossibleCosts:
    """What is foreseen from one interval with the most threads, under a load that most bear."""
    scenario = Scenario(family_machine(44), "family-44")
    env = scenario.environment(LARGE, objective, PerIntervalPoisson(np.full(3, 5.0)))
    observation, _ = env.reset(seed=0)
    action = LARGE.action(len(LARGE) - 1)
    following, _, _, _, info = env.step(action)
    transition = Transition(observation, action, info["cost"], following, info["measurement"])
    possible = by_observation(Task(LARGE, objective), [transition])
    assert possible is not None
    return possible


def test_of_a_large_space_the_promising_and_the_near_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_sources, "MAX_CONFIGURATIONS", 50)
    possible, present = of_large(MeanLatency()), len(LARGE) - 1
    assert 50 <= len(possible.numbers) < len(LARGE)
    assert set(LARGE.region(present, 2.0)) <= set(possible.numbers)
    assert possible.numbers[possible.present] == present


def test_where_threads_count_the_best_of_each_number_of_them_is_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cost_sources, "MAX_CONFIGURATIONS", 50)
    possible = of_large(LeastResources(20_000.0))
    assert len(possible.numbers) < len(LARGE)
    assert set(LARGE.threads[possible.numbers]) == set(LARGE.threads)


THREADS = ConfigurationSpace.of(intra_op_threads=[1, 2])


@pytest.mark.parametrize("rows", [(ServiceTimes(1, 1, 400, 6.0),), ()], ids=["rows", "means"])
@pytest.mark.parametrize(("cpu_utilisation", "gains"), [(0.3, True), (math.nan, True), (1.0, False)])
def test_threads_are_expected_to_gain_little_where_other_programs_have_the_cores(
    cpu_utilisation: float, gains: bool, rows: tuple[ServiceTimes, ...]
) -> None:
    """Of two cores, one thread keeps 0.6 busy, by rows or by the mean service time alone."""
    none, service = np.empty(0), LatencySummary(15.0)
    measurement = Measurement(10.0, 400, 400, 0, LatencySummary(26.0), service=service, mean_batch_size=1.0)
    measurement = replace(measurement, telemetry=rows, cpu_utilisation=cpu_utilisation)
    seen = [Transition(none, THREADS.action(0), 26.0, none, measurement)] * INTERVALS
    possible = by_observation(Task(THREADS, cores=2), seen)
    assert possible is not None
    assert bool(possible.gain[1] > 1.2) is gains
    assert possible.recommended() is None  # some models gain nothing from threads


LINE = ConfigurationSpace.of(instances=[1, 2, 3])


def measured(cost: float, **fields: object) -> list[Transition]:
    """Three intervals of one instance at 10 requests a second."""
    measurement = replace(Measurement(10.0, 100, 100, 0), **fields)  # type: ignore[arg-type]
    none = np.empty(0)
    return [Transition(none, LINE.action(0), cost, none, measurement)] * INTERVALS


def simulated(rate_per_s: float, slower: float) -> np.ndarray:
    assert rate_per_s == 10.0
    return slower * np.array([60.0, 40.0, 50.0])


def test_by_a_machine_file_the_simulated_costs_are_expected_within_its_error() -> None:
    possible = by_machine(Task(LINE), measured(60.0), simulated)
    assert possible.numbers.tolist() == [0, 1, 2]
    assert possible.recommended() == 1
    low, middle, high = possible.expectation(1)
    assert middle == pytest.approx(40.0, rel=0.05)
    assert 1.15 < middle / low < 1.5
    assert 1.15 < high / middle < 1.5


def test_a_machine_that_has_become_slower_than_its_file_is_taken_for_slower() -> None:
    slower = by_machine(Task(LINE), measured(75.0), simulated)
    assert slower.expectation(1).middle == pytest.approx(45.0, rel=0.05)
    growing = by_machine(Task(LINE), measured(75.0, backlog_growth=40), simulated)
    assert growing.expectation(1).middle == pytest.approx(40.0, rel=0.05)  # no latency to go by


def test_by_a_table_the_two_costs_measured_are_compared() -> None:
    possible = by_table(Task(LINE), measured(40.0), number=2, cost=25.0, intervals=4)
    assert possible.numbers.tolist() == [0, 2]
    assert possible.recommended() == 1
    assert possible.expectation(1) == pytest.approx((18.6, 25.0, 33.6), rel=0.03)
    unsure = by_table(Task(LINE), measured(40.0), number=2, cost=36.0, intervals=1)
    assert unsure.recommended() is None
    same = by_table(Task(LINE), measured(40.0), number=0, cost=36.0, intervals=9)
    assert (same.numbers.tolist(), same.recommended()) == ([0], None)


def test_a_table_of_another_load_tells_less() -> None:
    near = by_table(Task(LINE), measured(40.0), number=2, cost=25.0, intervals=4)
    far = by_table(Task(LINE), measured(40.0), number=2, cost=25.0, intervals=4, apart=math.log(1.6))
    assert far.expectation(1).high > 1.5 * near.expectation(1).high
    assert far.recommended() is None


def test_the_objective_decides_what_is_foreseen() -> None:
    scenario = Scenario(family_machine(42), "family-42", carry_backlog=True)
    task = Task(SPACE, LeastResources(2000.0), family_cores(42))
    number = SPACE.number(
        {"instances": 4, "intra_op_threads": 4, "max_batch_size": 1, "max_queue_delay_us": 0}
    )
    seen = observed(scenario, number, 0.3 * RATE_PER_S, everything, seed=1)
    possible = by_observation(task, [replace(transition, cost=16.0) for transition in seen])
    assert possible is not None
    recommended = possible.recommended()
    assert recommended is not None
    assert SPACE.threads[possible.numbers[recommended]] < 16


def test_a_capacity_is_the_rate_from_which_a_configuration_is_overloaded() -> None:
    one = np.array([1])
    times_s = np.array([[[[0.1, 0.15], [0.12, 0.2]]]])
    machine = Machine(one, one, np.array([1, 2]), np.array([1, 4]), times_s)
    assert machine.capacity_per_s({"instances": 2}) == pytest.approx(2 / 0.12)
    assert machine.capacity_per_s({"instances": 2, "max_batch_size": 4}) == pytest.approx(8 / 0.2)


def test_a_knob_that_is_not_tuned_counts_as_it_was_found_and_not_as_1() -> None:
    """Four instances bear a load that one does not: nobody may foresee a queue because they are not tuned."""
    scenario = Scenario(family_machine(41), "family-41", carry_backlog=True)
    with_instances = ConfigurationSpace.of(instances=[4], intra_op_threads=[2], max_batch_size=[1, 2, 4, 8])
    without = ConfigurationSpace.of(max_batch_size=[1, 2, 4, 8])
    found = {"instances": 4, "intra_op_threads": 2, "max_batch_size": 1}
    present = SPACE.number(found | {"max_queue_delay_us": 0})
    seen = observed(scenario, present, RATE_PER_S, everything, 1)
    foreseen = []
    for space in (with_instances, without):
        action = space.action(space.number({name: found[name] for name in space.names}))
        told = [replace(each, action=action) for each in seen]
        foreseen.append(by_observation(Task(space, cores=4, found=found), told))
    whole, fixed = foreseen
    assert whole is not None
    assert fixed is not None
    np.testing.assert_array_equal(fixed.numbers, whole.numbers)
    assert np.isfinite(fixed.expectation(fixed.present).high)
    np.testing.assert_allclose(fixed.costs, whole.costs)
