"""The default agent where a change costs users something: it makes few, and none that may hurt much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rrl.agent import Task, Transition
from rrl.guided import telemetry
from rrl.guided.agent import GUIDED, GuidedRRL
from rrl.guided.latency_prior import Circumstances, Latencies
from rrl.measurement import ServiceTimes
from rrl.objective import LeastResources, MeanLatency, Objective, StrictSLO
from rrl.space import ConfigurationSpace
from tests.support.guided_agents import (
    LINE,
    QUICK,
    RATE_PER_S,
    SPACE,
    KnownPrior,
    costs,
    family_scenario,
    lived,
    row,
    transition,
)

TWO = ConfigurationSpace.parse("instances=1,2,intra_op_threads=1,2")


@pytest.mark.parametrize("seed", [0, 3])
def test_where_changes_cost_it_makes_few_of_them_and_still_gets_there(seed: int) -> None:
    scenario = family_scenario(seed)

    def decided(in_place: frozenset[str] | None) -> tuple[int, float]:
        """Changes of other knobs than `instances`, and the cost at the end over the best's."""
        agent = GuidedRRL(Task(SPACE, in_place=in_place))
        numbers = list(lived(agent, scenario, np.full(60, RATE_PER_S)))
        threads = SPACE.values[numbers][:, 1:]
        expected = costs(scenario.slowed(), SPACE, MeanLatency(), RATE_PER_S)
        return int((np.diff(threads, axis=0) != 0).any(axis=1).sum()), expected[numbers[-1]] / expected.min()

    (costly, ratio), (free, _) = decided(frozenset({"instances"})), decided(None)
    assert costly < free
    assert ratio < 1.15


@pytest.mark.parametrize(
    ("process_start_s", "objective", "decided"),
    [
        (0.0, MeanLatency(), 2),
        (3.0, MeanLatency(), 0),
        (3.0, LeastResources(45.0), 2),  # whose cost is no time, so that no waiting can be added to it
    ],
)
def test_it_stays_where_the_queue_of_the_change_costs_more_than_it_brings(
    process_start_s: float, objective: Objective, decided: int
) -> None:
    """What it recommends for good does not hang on the way there."""
    settings = replace(GUIDED, process_start_s=process_start_s, reluctance=0.0, reluctance_later=0.0)
    task = Task(LINE, objective, in_place=frozenset())
    agent = GuidedRRL(
        task, replace(settings, estimator=QUICK, exploring_costly=0, looks_costly=(), spread_s=10.0)
    )
    KnownPrior(agent, [50.0, 60.0, 40.0])
    agent.update(transition(0, 50.0, [row(1, 60, 0.075)], rate_per_s=12.0))  # it bears 13 a second
    assert agent.act(np.empty(0)).tolist() == [decided]
    assert agent.recommended() == 2


class SlowsDown(KnownPrior):
    """The first takes ten times as long as soon as service times are a tenth longer."""

    def simulated(self, numbers: np.ndarray, scale: np.ndarray, given: Circumstances) -> Latencies:
        mean_ms, p95_ms = super().simulated(numbers, scale, given)
        times = np.where((numbers == 0) & (scale > 1.1), 10.0, 1.0)[:, None]
        return Latencies(times * mean_ms, times * p95_ms)


def after_an_interval(
    prior: type[KnownPrior],
    mean_ms: list[float],
    in_place: frozenset[str] | None,
    objective: Objective,
    **settings: float,
) -> GuidedRRL:
    """Of the first, which bears 13 of 12 requests/s; it minds no process that is started."""
    free = replace(GUIDED, reluctance=0.0, reluctance_later=0.0, process_start_s=0.0, estimator=QUICK)
    free = replace(free, exploring=0, exploring_costly=0, looks=(), looks_costly=())
    agent = GuidedRRL(Task(LINE, objective, in_place=in_place), replace(free, **settings))  # type: ignore[arg-type]
    prior(agent, mean_ms)
    agent.update(transition(0, mean_ms[0], [row(1, 60, 0.075)], rate_per_s=12.0))
    return agent


@pytest.mark.parametrize(
    ("in_place", "objective", "headroom", "expected"),
    [
        (frozenset(), MeanLatency(), 0.1, 1),
        (frozenset(), MeanLatency(), 0.0, 0),
        (None, MeanLatency(), 0.1, 0),
        (frozenset(), LeastResources(200.0), 2.0, 0),  # whose cost is threads: the fewest that serve well
    ],
)
def test_where_changes_cost_it_takes_of_what_is_about_as_good_what_bears_more(
    in_place: frozenset[str] | None, objective: Objective, headroom: float, expected: int
) -> None:
    mean_ms, settings = [50.0, 51.0, 80.0], {"machine_sd": 0.0, "headroom": headroom, "tail": 0.0}
    agent = after_an_interval(KnownPrior, mean_ms, in_place, objective, **settings)
    assert agent.recommended() == expected
    assert ("bears more" in agent.explain()) == (expected == 1)


class LongTail(KnownPrior):
    """The first has a p95 of four times its mean, and the others of twice."""

    def simulated(self, numbers: np.ndarray, scale: np.ndarray, given: Circumstances) -> Latencies:
        mean_ms, p95_ms = super().simulated(numbers, scale, given)
        return Latencies(mean_ms, np.where(numbers == 0, 2.0, 1.0)[:, None] * p95_ms)


@pytest.mark.parametrize(
    ("in_place", "objective", "tail", "second_ms", "expected"),
    [
        (frozenset(), MeanLatency(), 0.2, 54.0, 1),  # 2^0.2 = 1.15
        (frozenset(), MeanLatency(), 0.2, 60.0, 0),
        (frozenset(), MeanLatency(), 0.0, 54.0, 0),
        (None, MeanLatency(), 0.2, 54.0, 0),
        (frozenset(), StrictSLO(1e3), 0.2, 110.0, 0),  # the p95 is the cost itself: 200 ms for 220 ms
    ],
)
def test_where_changes_cost_it_takes_of_what_is_about_as_good_what_has_the_shorter_tail(
    in_place: frozenset[str] | None, objective: Objective, tail: float, second_ms: float, expected: int
) -> None:
    settings = {"machine_sd": 0.0, "headroom": 0.0, "tail": tail}
    agent = after_an_interval(LongTail, [50.0, second_ms, 300.0], in_place, objective, **settings)
    assert agent.recommended() == expected
    assert agent.act(np.empty(0)).tolist() == [expected]
    assert ("a shorter tail" in agent.explain()) == (expected == 1)


@pytest.mark.parametrize("exploring", [0, 5])
@pytest.mark.parametrize(("in_place", "expected"), [(frozenset(), 1), (None, 0)])
def test_where_changes_cost_it_takes_what_bears_a_slower_machine(
    in_place: frozenset[str] | None, expected: int, exploring: int
) -> None:
    settings = {"headroom": 0.0, "exploring": exploring, "exploring_costly": exploring, "optimism": 0.0}
    agent = after_an_interval(SlowsDown, [50.0, 60.0, 80.0], in_place, MeanLatency(), **settings)
    assert agent.act(np.empty(0)).tolist() == [expected]
    assert agent.recommended() == expected


def test_where_changes_cost_it_tries_nothing_that_it_expects_to_be_far_worse() -> None:
    scenario = family_scenario(4)

    def worst_tried(gamble: float) -> float:
        """The most that it expected of a change, as a multiple of what was in force."""
        task, worst = Task(SPACE, in_place=frozenset({"instances"})), 0.0
        agent = GuidedRRL(task, replace(GUIDED, gamble=gamble, exploring_costly=28))
        for _ in lived(agent, scenario, np.full(30, RATE_PER_S)):
            if agent.service_times.known:
                expected = agent._costs().simulated(np.array([agent._next, agent._in_force]), np.ones(2))
                worst = max(worst, expected[0] / expected[1])
        return worst

    assert worst_tried(1.05) < 1.15  # simulated again, costs differ a little
    assert worst_tried(1e9) > 1.15


@pytest.mark.parametrize(
    ("in_place", "measured_ms", "stays"),
    [
        (frozenset(), 60.0, True),  # 50 ms were measured of the one before
        (frozenset(), 300.0, False),  # far worse
        (frozenset({"instances"}), 60.0, True),  # an instance was started
        (None, 60.0, False),
    ],
)
def test_what_processes_were_started_for_is_not_left_after_one_interval(
    in_place: frozenset[str] | None, measured_ms: float, stays: bool
) -> None:
    task = Task(TWO, in_place=in_place)
    settings = replace(GUIDED, reluctance=0.0, reluctance_later=0.0, process_start_s=0.0, exploring_costly=0)
    settings = replace(settings, estimator=QUICK, radius=0.0, exploring=0, looks=(), looks_costly=())
    settings = replace(settings, residual_sd=10.0, residual_sd_costly=10.0)  # what is measured is believed
    agent = GuidedRRL(task, settings)
    KnownPrior(agent, [50.0, 90.0, 40.0, 90.0])
    before, after = TWO.action(0).tolist(), TWO.action(2).tolist()  # 1 instance, and 2
    agent.update(transition(0, 50.0, [row(1, 60, 0.02)], TWO))
    assert agent.act(np.empty(0)).tolist() == after
    agent.update(transition(2, measured_ms, [row(1, 60, 0.02)], TWO, gap="the target restarted"))
    agent.update(transition(2, measured_ms, [row(1, 60, 0.02)], TWO))
    assert agent.act(np.empty(0)).tolist() == (after if stays else before)
    assert ("little of what was just started" in agent.explain()) == stays
    agent.update(transition(2, measured_ms, [row(1, 60, 0.02)], TWO))
    assert agent.act(np.empty(0)).tolist() == before


@pytest.mark.parametrize(("first_ms", "learned"), [(60.0, False), (300.0, True)])
def test_the_first_interval_of_what_processes_were_started_for_teaches_nothing_unless_it_is_far_worse(
    first_ms: float, learned: bool
) -> None:
    agent = GuidedRRL(Task(TWO, in_place=frozenset()), replace(GUIDED, estimator=QUICK))
    KnownPrior(agent, [50.0, 90.0, 40.0, 90.0])
    agent.update(transition(0, 50.0, [row(1, 60, 0.02)], TWO))
    service_s, ratio = agent.service_times.service_time_s(), agent.residual.log_ratio(RATE_PER_S)
    agent.update(transition(2, first_ms, [row(1, 60, 0.03)], TWO))
    assert np.array_equal(agent.service_times.service_time_s(), service_s) is not learned
    assert np.array_equal(agent.residual.log_ratio(RATE_PER_S), ratio) is not learned
    agent.update(transition(2, 60.0, [row(1, 60, 0.03)], TWO))
    assert not np.array_equal(agent.service_times.service_time_s(), service_s)


@pytest.mark.parametrize(
    ("in_place", "rate_per_s", "threads"),
    [
        ({"instances"}, 15.0, 1),  # more than the one instance in force bears: another one beside it first
        ({"instances"}, 3.0, 2),  # nobody has to be relieved, so the threads that are better may be loaded
        (None, 15.0, 2),
    ],
)
def test_while_the_queue_grows_it_takes_what_helps_in_place(
    in_place: set[str] | None, rate_per_s: float, threads: int
) -> None:
    space = ConfigurationSpace.parse("instances=1:3,intra_op_threads=1,2")
    agent = GuidedRRL(Task(space, cores=8, in_place=None if in_place is None else frozenset(in_place)))
    start = space.number({"instances": 1, "intra_op_threads": 1})
    for _ in range(3):
        agent.update(transition(start, 900.0, [row(1, 100, 0.1)], space, rate_per_s))
    proposed = space.configuration(space.number_of_action(agent.act(np.empty(0))))
    assert proposed["intra_op_threads"] == threads
    assert rate_per_s == 3.0 or proposed["instances"] > 1


@pytest.mark.parametrize(
    ("in_place", "slower", "changes"),
    [
        ({"instances"}, (1.5, 1.0), 0),  # a hiccup
        ({"instances"}, (1.5, 1.5), 1),
        ({"instances"}, (1.5, 0.6), 0),  # two of opposite kinds
        (None, (1.5,), 1),
    ],
)
def test_where_changes_cost_the_machine_has_changed_once_a_second_interval_says_so(
    in_place: set[str] | None, slower: tuple[float, ...], changes: int
) -> None:
    space = ConfigurationSpace.parse("instances=1:3,intra_op_threads=1,2")
    agent = GuidedRRL(Task(space, in_place=None if in_place is None else frozenset(in_place)))
    for factor in (1.0, 1.0, *slower):
        agent.update(transition(0, 60.0 * factor, [row(1, 100, 0.05 * factor)], space))
    assert agent.changes == changes
    learned_s = agent.service_times.service_time_s()[0, 0, 0]
    assert learned_s == pytest.approx(0.05 * (slower[-1] if changes else 1.0), rel=0.02)


def returned_to(agent: GuidedRRL, slower: tuple[float, ...]) -> None:
    """A configuration of two, then three intervals of another, and the first again, so many times slower."""
    for number, factor in ((2, 1.0), (0, 1.0), (0, 1.0), (0, 1.0), *((2, factor) for factor in slower)):
        agent.update(transition(number, 60.0 * factor, [row(1, 100, 0.05 * factor)], TWO))


@pytest.mark.parametrize(("in_place", "changes"), [(frozenset({"instances"}), 0), (None, 1)])
def test_where_changes_cost_what_was_just_put_in_force_tells_of_itself_and_not_of_the_machine(
    in_place: frozenset[str] | None, changes: int
) -> None:
    """What was known of it is of another time, and what is in force otherwise did not become slower."""
    agent = GuidedRRL(Task(TWO, in_place=in_place))
    returned_to(agent, (1.3, 1.3))
    assert agent.changes == changes
    learned_s = [agent.service_times.expected_s(TWO.configuration(n), 1)[0] for n in (0, 2)]
    np.testing.assert_allclose(learned_s, [0.065 if changes else 0.05, 0.065], rtol=0.03)


@pytest.mark.parametrize("slower", [(1.3, 1.0, 1.0), (1.0, 1.3, 1.3)])
def test_the_first_intervals_of_what_was_put_in_force_do_not_tell_of_the_machine(
    slower: tuple[float, ...],
) -> None:
    agent = GuidedRRL(Task(TWO, in_place=frozenset({"instances"})))
    returned_to(agent, slower)
    assert agent.changes == 0
    assert agent.service_times.expected_s(TWO.configuration(0), 1)[0] == pytest.approx(0.05, rel=0.05)


def test_where_changes_cost_what_slows_what_is_in_force_slows_all() -> None:
    """A machine that drifts says nothing for another configuration."""
    agent = GuidedRRL(Task(TWO, in_place=frozenset({"instances"})))
    for number, factor in ((2, 1.0), (2, 1.0), (0, 1.0), (0, 1.0), (0, 1.05)):
        agent.update(transition(number, 60.0 * factor, [row(1, 100, 0.05 * factor)], TWO))
    assert agent.changes == 0
    in_force_s, other_s = (agent.service_times.expected_s(TWO.configuration(n), 1)[0] for n in (0, 2))
    assert in_force_s > 0.051
    assert other_s == pytest.approx(in_force_s, rel=0.01)


def by_batch_size(number: int, latency_ms: float, service_s: float) -> Transition:
    """Ten seconds of batches of one at 20 requests/s, as a stock Triton tells them."""
    return transition(number, latency_ms, [ServiceTimes(0, 1, 200, 200 * service_s)], TWO, 20.0)


def test_what_was_measured_is_known_where_busy_instances_are_estimated() -> None:
    """At 20 requests/s of 50 ms each one of two instances is busy, and a batch begins as 1 + 1 - 1/3."""
    agent = GuidedRRL(Task(TWO, cores=2, in_place=frozenset({"instances"})))
    for _ in range(3):
        agent.update(by_batch_size(2, 60.0, 0.05))
    measured, other = agent._standard_deviations(np.array([2, 3]))
    assert measured < 0.075
    assert other > 0.15


def test_single_batches_count_for_little_where_a_target_tells_no_variation() -> None:
    """One batch of two that took 1.6 times as long as others do."""
    space = ConfigurationSpace.parse("instances=1,2,max_batch_size=1,4")
    agent = GuidedRRL(Task(space, cores=2, in_place=frozenset({"instances"})))
    usual = [ServiceTimes(0, 1, 200, 10.0), ServiceTimes(0, 2, 20, 1.5)]
    for rows in (usual, usual, [ServiceTimes(0, 1, 200, 10.0), ServiceTimes(0, 2, 1, 0.12)]):
        agent.update(transition(1, 60.0, rows, space, 20.0))
    assert agent.variation == telemetry.UNTOLD_VARIATION
    assert agent.service_times.service_time_s()[0, 0, 1] == pytest.approx(0.075, rel=0.05)


def test_what_was_refused_twice_is_not_proposed_again_nor_more_instances_of_it() -> None:
    """They need no less memory; other knobs may."""
    scenario, rates_per_s = family_scenario(0), np.full(30, RATE_PER_S)
    favourite = list(lived(GuidedRRL(Task(SPACE)), scenario, rates_per_s))[-1]
    instances, *others = SPACE.values[favourite]
    once, twice = GuidedRRL(Task(SPACE)), GuidedRRL(Task(SPACE))
    once.refused(favourite)
    twice.refused(favourite)
    twice.refused(favourite)
    assert list(lived(once, scenario, rates_per_s))[-1] == favourite
    _, *proposed = SPACE.values[list(lived(twice, scenario, rates_per_s))]  # the first was chosen before
    assert not any(count >= instances and rest == others for count, *rest in map(list, proposed))
