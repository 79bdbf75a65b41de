"""The default agent: what it finds, how it stays, and what it tries first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import RATE_PER_S, scenarios
from envs.scenarios.scenario import Scenario
from envs.scenarios.workloads import PerIntervalPoisson
from rrl.agent import Task, Transition, live
from rrl.arrival_summary import summarised
from rrl.belief import replay
from rrl.guided.agent import Guided
from rrl.guided.settings import GUIDED
from rrl.measurement import LatencySummary, Measurement, ServiceTimes
from rrl.objective import LeastResources, MeanLatency, Objective, StrictSLO
from rrl.queueing.kernels import Candidates, replayed_ms
from rrl.space import ConfigurationSpace
from tests.support import serving_units

SPACE = ConfigurationSpace.of(instances=range(1, 9), intra_op_threads=range(1, 9))
DECISIONS = 14


def transitions(
    seed: int, agent: Guided, decisions: int = DECISIONS, objective: Objective | None = None
) -> list[Transition]:
    (scenario,) = scenarios(f"family:{seed}")
    arrivals = PerIntervalPoisson(np.full(decisions + 2, RATE_PER_S))
    env = scenario.environment(SPACE, objective or MeanLatency(), arrivals)
    return list(live(agent, env, decisions, seed=seed))


def numbers(lived: list[Transition]) -> list[int]:
    return [SPACE.number_of_action(transition.action) for transition in lived]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_near_the_best_within_ten_decisions(seed: int) -> None:
    (scenario,) = scenarios(f"family:{seed}")
    costs = ExpectedCosts(scenario, SPACE, MeanLatency()).costs(RATE_PER_S)
    chosen = costs[numbers(transitions(seed, Guided(Task(SPACE))))]
    assert np.median(chosen[9:]) <= 1.1 * costs.min()


def test_what_is_excluded_is_left_though_it_is_in_force() -> None:
    start = SPACE.number({"instances": 4, "intra_op_threads": 2})
    agent = Guided(Task(SPACE, excluded=frozenset({start})))
    (scenario,) = scenarios("family:0")
    env = scenario.environment(SPACE, MeanLatency(), PerIntervalPoisson(np.full(4, RATE_PER_S)))
    observation, _ = env.reset(seed=0)
    for _ in range(2):
        after, _, _, _, info = env.step(SPACE.action(start))
        agent.update(Transition(observation, SPACE.action(start), info["cost"], after, info["measurement"]))
        assert SPACE.number_of_action(agent.act(after)) != start


def test_the_same_seed_decides_the_same() -> None:
    assert numbers(transitions(3, Guided(Task(SPACE)))) == numbers(transitions(3, Guided(Task(SPACE))))


def second_choice(
    scenario: Scenario, start: dict[str, int], space: ConfigurationSpace, cores: int, within: int
) -> tuple[str, dict[str, int]]:
    """Why and what the agent proposes after an interval of 5 requests/s under the start."""
    env = scenario.environment(space, MeanLatency(), PerIntervalPoisson(np.full(4, 5.0)), start=start)
    before, info = env.reset(seed=0)
    agent = Guided(Task(space, cores=cores), replace(GUIDED, rule_of_thumb_within=within))
    action = space.action(space.number(start))
    agent.update(Transition(before, action, info["cost"], before, info["measurement"]))
    return agent.explain(), space.configuration(space.number_of_action(agent.act(before)))


@pytest.mark.parametrize("within", [GUIDED.rule_of_thumb_within, 0])
def test_where_the_cores_are_known_the_rule_of_thumb_is_tried_first_unless_it_has_no_time(
    within: int,
) -> None:
    (scenario,) = scenarios("profiled:50", truth="batches")
    space = ConfigurationSpace.of(instances=[1, 2], intra_op_threads=[1, 2], max_batch_size=[1, 4, 8])
    start = {"instances": 1, "intra_op_threads": 2, "max_batch_size": 1}
    why, chosen = second_choice(scenario, start, space, 2, within)
    assert ("rule of thumb" in why) == (within > 0)
    assert within == 0 or chosen == {"instances": 2, "intra_op_threads": 1, "max_batch_size": 8}


def test_the_rule_of_thumb_is_not_tried_where_it_is_expected_to_be_worse() -> None:
    """An interval of 4 x 2 tells of this machine that one thread is slow and that it bears the load."""
    (scenario,) = scenarios("family:0")
    why, _ = second_choice(scenario, {"instances": 4, "intra_op_threads": 2}, SPACE, 8, 4)
    assert "rule of thumb" not in why


@pytest.mark.parametrize(("found", "kept"), [({"max_ongoing_requests": 64}, 64), ({}, 5)])
def test_the_rule_of_thumb_keeps_what_was_found_of_a_knob_that_it_does_not_name(
    found: dict[str, int], kept: int
) -> None:
    space = ConfigurationSpace.of(
        instances=[1, 2, 4], max_batch_size=[1, 8], max_ongoing_requests=[5, 16, 64]
    )
    agent = Guided(Task(space, cores=4, found=found))
    rule = {"instances": 4, "max_batch_size": 8, "max_ongoing_requests": kept}
    assert agent._thumb == space.number(rule)


def test_what_is_refused_twice_is_not_proposed_again_nor_more_of_it() -> None:
    agent = Guided(Task(SPACE))
    refused = SPACE.number({"instances": 3, "intra_op_threads": 2})
    agent.refused(refused)
    agent.refused(refused)
    for number in numbers(transitions(1, agent))[1:]:
        configuration = SPACE.configuration(number)
        assert not (configuration["intra_op_threads"] == 2 and configuration["instances"] >= 3)


def left_out(agent: Guided, refused: int) -> np.ndarray:
    """What may not be proposed after it was refused twice."""
    agent.refused(refused)
    assert agent.belief.replay.allowed.all()
    agent.refused(refused)
    return np.flatnonzero(~agent.belief.replay.allowed)


def test_larger_batches_are_left_out_with_what_is_refused_whatever_the_delay() -> None:
    space = ConfigurationSpace.of(instances=[1, 2, 3], max_batch_size=[1, 4, 8], max_queue_delay_us=[0, 1000])
    refused = space.number({"instances": 2, "max_batch_size": 4, "max_queue_delay_us": 1000})
    instances, batch, _ = space.values.T
    expected = np.flatnonzero((instances >= 2) & (batch >= 4))
    assert left_out(Guided(Task(space)), refused).tolist() == expected.tolist()


def test_it_alone_is_left_out_where_what_needs_no_less_was_taken() -> None:
    agent = Guided(Task(SPACE))
    taken = SPACE.number({"instances": 3, "intra_op_threads": 2})
    agent.update(replace(transitions(0, Guided(Task(SPACE)), 1)[0], action=SPACE.action(taken)))
    refused = SPACE.number({"instances": 2, "intra_op_threads": 2})
    assert left_out(agent, refused).tolist() == [refused]


def all_failed(space: ConfigurationSpace, number: int) -> Transition:
    """An interval of this configuration in which every request failed."""
    none, measurement = np.zeros(0), Measurement(10.0, 50, 0, 50)
    cost = MeanLatency().cost(measurement, space.configuration(number))
    return Transition(none, space.action(number), cost, none, measurement)


def test_what_has_a_delay_is_tried_where_all_without_was_refused() -> None:
    space = ConfigurationSpace.of(max_queue_delay_us=[0, 1000])
    agent = Guided(Task(space))
    agent.update(all_failed(space, 1))
    for _ in range(2):
        agent.refused(0)
    agent.update(all_failed(space, 1))
    assert space.number_of_action(agent.act(np.zeros(0))) == 1


def test_something_may_be_proposed_whatever_was_refused() -> None:
    space = ConfigurationSpace.of(instances=[1, 2, 3])
    agent = Guided(Task(space))
    assert left_out(agent, 0).tolist() == [0]
    for number in (1, 1, 2, 2):
        agent.refused(number)
    agent.update(all_failed(space, 0))
    assert agent.belief.replay.allowed.any()


def test_a_time_without_requests_is_no_time_in_which_what_waits_stays() -> None:
    agent = Guided(Task(SPACE))
    lived = transitions(0, agent, decisions=2)
    silent = replace(lived[-1], measurement=Measurement(30.0, 0, 0, 0))
    agent.update(silent)
    agent.update(replace(silent, measurement=replace(lived[-1].measurement, gap="it was restarted")))
    agent.update(lived[-1])
    assert agent.belief.forecast.longest_silence_s == 30.0 + lived[-1].measurement.duration_s


def test_what_it_recommends_bears_what_came_lately_too() -> None:
    agent = Guided(Task(SPACE))
    transitions(0, agent)
    best = agent.recommended()
    assert best is not None
    agent.belief.log_costs_lately = lambda numbers: (np.where(numbers == best, 9.0, 0.0), 0.0)  # type: ignore
    assert agent.recommended() not in (None, best)


def test_a_gap_teaches_nothing() -> None:
    agent = Guided(Task(SPACE))
    lived = transitions(0, agent, decisions=4)
    last = lived[-1]
    told, before = agent.explain(), agent.act(last.next_observation)
    agent.update(Transition(last.observation, last.action, np.nan, last.next_observation, last.measurement))
    assert agent.explain() == told
    np.testing.assert_array_equal(agent.act(last.next_observation), before)


@pytest.mark.parametrize("objective", [StrictSLO(900.0), LeastResources(900.0)])
def test_other_objectives_are_tuned_too(objective: Objective) -> None:
    agent = Guided(Task(SPACE, objective))
    lived = transitions(0, agent, objective=objective)
    costs = [transition.cost for transition in lived]
    assert np.isfinite(costs).all()
    assert np.median(costs[-4:]) <= costs[0]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_on_a_cluster_it_learns_how_many_nodes_a_unit_needs(share: float) -> None:
    """By the cluster rule: without it, it stays with units of four nodes, which cannot bear the load."""
    rate_per_s = share * serving_units.LARGEST_PER_S
    costs = serving_units.mean_latencies_ms(rate_per_s)
    nature = replace(serving_units.CALM, speed_sd=0.25, requests_per_node=100)
    agent = Guided(Task(serving_units.SPACE, nodes=serving_units.NODES))
    lived = list(live(agent, serving_units.cluster(rate_per_s, nature), 16, seed=0))
    chosen = costs[[serving_units.SPACE.number_of_action(each.action) for each in lived]]
    assert np.median(chosen[8:]) <= 1.1 * costs.min()


def test_a_closed_loop_on_the_units_of_a_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="give nodes or concurrency"):
        Guided(Task(serving_units.SPACE, nodes=8, concurrency=4))


def simulated_requests(arrivals: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many requests are simulated, over all configurations, for a decision after so many an interval."""
    space = ConfigurationSpace.of(instances=[1, 2, 4], intra_op_threads=[1, 2], max_batch_size=[1, 8])
    agent, duration_s = Guided(Task(space, cores=4)), 5.0
    service_s = duration_s / arrivals
    offsets_s = np.sort(np.random.default_rng(0).uniform(0, duration_s, arrivals))
    latency = LatencySummary(1500 * service_s, 1500 * service_s, 3000 * service_s, 3000 * service_s)
    measurement = Measurement(
        duration_s,
        arrivals,
        arrivals,
        0,
        latency=latency,
        telemetry=(ServiceTimes(1, 1, arrivals, service_s * arrivals),),
        arrival_summary=summarised(offsets_s),
        dispersion=2.0,
    )
    counts: list[int] = []

    def counted(candidates: Candidates, *others: Any) -> np.ndarray:
        counts.append(len(candidates.instances) * len(others[2].arrival_s))
        return replayed_ms(candidates, *others)

    number = space.number({"instances": 2, "intra_op_threads": 1, "max_batch_size": 1})
    observation, action = np.zeros(1, np.float32), space.action(number)
    monkeypatch.setattr(replay, "replayed_ms", counted)
    for _ in range(5):
        counts.clear()
        agent.update(Transition(observation, action, latency.mean_ms, observation, measurement))
    return sum(counts)


def test_of_many_requests_a_bounded_number_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    many, more = (simulated_requests(each, monkeypatch) for each in (50_000, 400_000))
    assert more <= 1.1 * many
