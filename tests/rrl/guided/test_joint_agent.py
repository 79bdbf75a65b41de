"""One agent for several models that share a machine: what it finds, and how it keeps to the budget."""

from __future__ import annotations

import numpy as np
import pytest

from baselines import make_agent
from envs.joint_simulated import JointSimulatedServing, true_costs
from envs.scenarios.joint_machines import random_joint_machine
from rrl.agent import Task, Transition, live
from rrl.belief.several_models.joint import JointBelief
from rrl.guided.joint_agent import JointGuided
from rrl.guided.joint_refusals import JointRefusals
from rrl.guided.joint_search import JointSearch
from rrl.joint import JointSpace, of_models, together
from rrl.measurement import LatencySummary, Measurement, ServiceTimes
from rrl.objective import LeastResources, MeanLatency, Objective, StrictSLO
from rrl.queueing.machine import Machine
from rrl.queueing.shared_machine import Contention
from rrl.space import ConfigurationSpace
from scripts.benchmarks.tuner.simulated.joint import TOGETHER, simulated, tuned

CORES = 4
MEMBER = ConfigurationSpace.of(instances=[1, 2, 3], intra_op_threads=[1, 2], max_batch_size=[1, 8])
START = {"instances": 1, "intra_op_threads": 1, "max_batch_size": 1}
SEED = 1003


def machine(alone_s: float, speed_up: float, batching: float) -> Machine:
    one, threads, batches = np.array([1]), np.array([1, 2, 4]), np.array([1, 8])
    table_s = alone_s * threads[:, None] ** -speed_up * batches[None] ** batching
    return Machine(one, threads, one, batches, table_s[None, :, None, :].astype(float))


def environment() -> JointSimulatedServing:
    """A heavy model whose batches pay, and a light one that needs threads; together they need the cores."""
    return JointSimulatedServing(
        {"heavy": machine(0.04, 0.2, 0.6), "light": machine(0.02, 0.9, 0.95)},
        {"heavy": 45.0, "light": 30.0},
        JointSpace({"heavy": MEMBER, "light": MEMBER}).space,
        contention=Contention(CORES, 1.1, 0.2),
        start=of_models({"heavy": START, "light": START}),
    )


def task(env: JointSimulatedServing, **values: object) -> Task:
    excluded = frozenset(np.flatnonzero(env.space.threads > CORES).tolist())
    return Task(env.space, cores=CORES, excluded=excluded, **values)  # type: ignore[arg-type]


def test_it_ends_near_the_best_of_the_joint_grid_and_keeps_the_budget() -> None:
    env = environment()
    agent = make_agent("guided", task(env), 0)
    assert isinstance(agent, JointGuided)
    lived = list(live(agent, env, 16, seed=1))
    numbers = [env.space.number_of_action(each.action) for each in lived]
    assert all(env.space.threads[number] <= CORES for number in numbers)
    allowed = np.flatnonzero(env.space.threads <= CORES)
    best_ms = true_costs(env, allowed.tolist()).min()
    left = agent.recommended()
    assert left is not None
    assert true_costs(env, [left])[0] <= 1.1 * best_ms


def test_the_same_run_twice_is_the_same() -> None:
    runs = []
    for _ in range(2):
        env = environment()
        lived = live(make_agent("guided", task(env), 0), env, 8, seed=2)
        runs.append([env.space.number_of_action(each.action) for each in lived])
    assert runs[0] == runs[1]


def test_behind_guard_and_validation_it_keeps_a_configuration_near_the_best() -> None:
    found = tuned(SEED, TOGETHER, 12)
    assert found.final <= 1.05
    assert found.failed == 0


def test_a_joint_cost_is_that_of_the_mean_request_or_of_the_slowest_model() -> None:
    env = environment()
    costs = np.array([[10.0, 30.0]])
    latency, slo, threads = (
        JointBelief(env.space, objective, CORES)
        for objective in (MeanLatency(), StrictSLO(50.0), LeastResources(50.0))
    )
    lived = list(live(make_agent("guided", task(env), 0), env, 2, seed=1))
    for belief in (latency, slo, threads):
        for each in lived:
            belief.learn(env.space.number_of_action(each.action), each.measurement)
    heavy = latency.weights[0]
    assert heavy == pytest.approx(45 / 75, abs=0.1)
    assert latency.cost.combined(costs, latency.weights)[0] == pytest.approx(10 * heavy + 30 * (1 - heavy))
    assert slo.cost.combined(costs, slo.weights)[0] == 30.0
    in_threads = np.array([[2.0, 3.0], [2.0, 1400.0]])
    assert threads.cost.combined(in_threads, threads.weights).tolist() == [5.0, 1400.0]


def test_what_is_expected_of_a_model_depends_on_its_neighbour() -> None:
    env = environment()
    belief = JointBelief(env.space, MeanLatency(), CORES)
    for each in live(make_agent("guided", task(env), 0), env, 12, seed=1):
        belief.learn(env.space.number_of_action(each.action), each.measurement)
    quiet = of_models({"heavy": START, "light": START})
    busy = quiet | {"light.instances": 3, "light.intra_op_threads": 2}
    numbers = np.array([env.space.number(each) for each in (quiet, busy)])
    slower = belief.log_slower(belief.joint.parts(numbers))
    assert slower[1, 0] >= slower[0, 0] >= 0.0
    means, sds = belief.log_costs_ahead(numbers, beside=int(numbers[0]))
    assert sds[0] == pytest.approx(0.0, abs=0.02)
    assert np.isfinite(means).all()


def test_what_came_of_a_model_that_is_quiet_by_now_counts_by_the_requests_that_came() -> None:
    env = environment()
    belief = JointBelief(env.space, MeanLatency(), CORES)
    start = env.space.number(of_models({"heavy": START, "light": START}))
    env.reset(seed=0)
    for heavy_per_s in [45.0] * 4 + [1.0] * 6:
        env.rates_per_s = np.array([heavy_per_s, 30.0])
        belief.learn(start, env.step(env.space.action(start))[4]["measurement"])
    this = np.array([start])
    ahead, lately, kept = (
        float(np.exp(costs(this)[0][0]))
        for costs in (belief.log_costs_ahead, belief.log_costs_lately, belief.log_costs_kept)
    )
    parts = belief.joint.parts(this)[0]
    own = [m.log_costs_lately(parts[k : k + 1])[0][0] for k, m in enumerate(belief.members)]
    came = np.array([4 * 45.0 + 6 * 1.0, 10 * 30.0])
    assert lately == pytest.approx(float(np.exp(own) @ came / came.sum()), rel=0.2)
    assert lately > 5 * ahead
    assert kept == pytest.approx((ahead + lately) / 2)


def told_by_load(light_per_s: list[float]) -> JointBelief:
    """What is believed after intervals of the start in which `light` had so many requests."""
    env = environment()
    belief = JointBelief(env.space, MeanLatency(), CORES)
    start = env.space.number(of_models({"heavy": START, "light": START}))
    env.reset(seed=0)
    for each_per_s in light_per_s:
        env.rates_per_s = np.array([15.0, each_per_s])
        belief.learn(start, env.step(env.space.action(start))[4]["measurement"])
    return belief


def test_a_model_that_falls_silent_counts_little_until_requests_come_again() -> None:
    busy, silent, again = (
        told_by_load([30.0] * 6 + after) for after in ([1e-9] * 2, [1e-9] * 6, [1e-9] * 6 + [30.0] * 2)
    )
    assert busy.weights[1] == pytest.approx(2 / 3, abs=0.1)  # two quiet intervals may be chance
    assert silent.weights[1] < 0.02
    assert again.weights[1] == pytest.approx(2 / 3, abs=0.1)
    every = np.arange(len(silent.joint.space))
    parts = silent.joint.parts(every)
    slows = [belief.log_slower(parts)[:, 0].max() for belief in (busy, silent)]
    assert slows[1] < 0.1 * slows[0]  # what it kept busy is idle
    ahead, lately = silent.log_costs_ahead(every)[0], silent.log_costs_lately(every)[0]
    best = int(np.argmin(ahead))
    assert lately[best] > lately.min() + 0.1  # and what came of it may come again


def test_a_silence_as_long_as_one_before_is_no_lower_load() -> None:
    lulls = told_by_load(([30.0] * 2 + [1e-9] * 5) * 2)
    assert lulls.weights[1] == pytest.approx(2 / 3, abs=0.1)
    longer = told_by_load(([30.0] * 2 + [1e-9] * 5) * 2 + [1e-9])
    assert longer.weights[1] < 0.02


@pytest.mark.parametrize("objective", [MeanLatency(), StrictSLO(200.0), LeastResources(200.0)])
def test_the_cores_of_a_model_that_falls_silent_go_to_the_other(objective: Objective) -> None:
    env = environment()
    env.rates_per_s = np.array([30.0, 80.0])
    agent = make_agent("guided", task(env, objective=objective), 0)
    numbers = []
    for each in live(agent, env, 18, seed=1):
        numbers.append(env.space.number_of_action(each.action))
        if len(numbers) == 10:
            env.rates_per_s = np.array([30.0, 1e-9])
    _, light = JointSpace.of(env.space).parts(np.array(numbers)).T
    assert MEMBER.threads[light[9]] > 1
    assert MEMBER.threads[light[-1]] == 1


def test_the_fewest_threads_that_keep_a_limit_are_found_on_a_large_joint_grid() -> None:
    """Of 1,296 configurations; most of those that keep it have twice as many."""
    scenario = random_joint_machine(5)
    used = []
    for limit_ms in (100.0, 400.0):
        env = simulated(scenario, seed=5)
        excluded = frozenset(np.flatnonzero(env.space.threads > scenario.cores).tolist())
        least = Task(env.space, LeastResources(limit_ms), scenario.cores, excluded=excluded)
        lived = list(live(make_agent("guided", least, 0), env, 20, seed=1))
        used.append([int(env.space.threads[env.space.number_of_action(each.action)]) for each in lived[-5:]])
        assert np.median([each.measurement.latency.p95_ms for each in lived[-5:]]) <= limit_ms
    assert max(used[1]) <= 4 < max(used[0]) <= 7


def test_a_model_without_requests_stays_as_it_is_while_the_other_is_tuned() -> None:
    env = environment()
    env.rates_per_s = np.array([45.0, 1e-9])
    agent = make_agent("guided", task(env), 0)
    numbers = [env.space.number_of_action(each.action) for each in live(agent, env, 8, seed=1)]
    parts = JointSpace.of(env.space).parts(np.array(numbers))
    assert len(set(parts[1:, 1].tolist())) <= 2  # the rule of thumb may have moved it once
    assert agent.recommended() is not None  # the other is known, and compared


def test_where_threads_count_those_of_a_model_without_requests_do_too() -> None:
    """The first choice, made before anything is known, gives it more than it needs."""
    env = environment()
    env.rates_per_s = np.array([20.0, 1e-9])
    agent = make_agent("guided", task(env, objective=LeastResources(150.0)), 0)
    assert isinstance(agent, JointGuided)
    numbers = [env.space.number_of_action(each.action) for each in live(agent, env, 8, seed=1)]
    light = JointSpace.of(env.space).parts(np.array(numbers))[:, 1]
    assert MEMBER.threads[light[0]] > MEMBER.threads[light[-1]] == 1
    last = np.array(numbers[-1:])
    more = agent.belief.joint.joined(np.array([[agent.belief.joint.parts(last)[0, 0], light[0]]]))
    both = np.concatenate([last, more])
    least, most = np.exp(agent.belief.log_costs_ahead(both)[0])
    added = MEMBER.threads[light[0]] - 1
    assert most - least == pytest.approx(added, abs=0.1)
    ahead = agent.belief.ahead(both, np.ones((2, 2))).cost
    assert ahead[1] - ahead[0] == pytest.approx(added, abs=0.1)


def test_a_model_that_answers_none_of_its_requests_does_not_lose_its_threads() -> None:
    space = ConfigurationSpace.parse("a.instances=1:4,b.instances=1:4")
    present = space.number({"a.instances": 1, "b.instances": 4})
    for waiting, fewest in ((0, 1), (20, 4)):
        belief = JointBelief(space, LeastResources(2000.0), 64)
        b = Measurement(5.0, waiting, 0, 0, backlog=waiting, backlog_growth=waiting)
        belief.learn(present, together({"a": answered(3, 0.01, 10.5), "b": b}))
        promising = JointSearch(belief).promising(present, 6, np.ones(len(space), dtype=bool))
        assert min(space.configuration(int(number))["b.instances"] for number in promising) == fewest


def test_the_fewest_threads_are_looked_for_with_those_of_knobs_that_are_not_tuned() -> None:
    """An instance of the first model has four threads, which none may change."""
    space = ConfigurationSpace.parse("a.instances=1:8,b.instances=1:8")
    found = {"a.intra_op_threads": 4, "b.intra_op_threads": 1}
    belief = JointBelief(space, LeastResources(2000.0), 64, found)
    measurement = together({"a": answered(3, 0.01, 10.5), "b": answered(3, 0.01, 10.5)})
    present = space.number({"a.instances": 1, "b.instances": 1})
    belief.learn(present, measurement)
    promising = JointSearch(belief).promising(present, 6, np.ones(len(space), dtype=bool))
    assert {space.configuration(int(number))["a.instances"] for number in promising} == {1}


def test_the_rule_of_thumb_keeps_what_was_found_of_a_knob_that_it_does_not_name() -> None:
    member = ConfigurationSpace.of(instances=[1, 2], max_ongoing_requests=[5, 16])
    space = JointSpace({"heavy": member, "light": member}).space
    found = of_models({name: {"instances": 1, "max_ongoing_requests": 16} for name in ("heavy", "light")})
    agent = make_agent("guided", Task(space, cores=CORES, found=found), 0)
    assert isinstance(agent, JointGuided)
    assert agent._thumb == space.number(found | {"heavy.instances": 2, "light.instances": 2})


def test_what_the_guard_refuses_and_what_the_target_refuses_is_left() -> None:
    env = environment()
    agent = make_agent("guided", task(env), 0)
    for each in live(agent, env, 6, seed=1):
        last = each
    proposed = env.space.number_of_action(agent.act(last.next_observation))
    agent.keep_off(frozenset({proposed}))
    agent.update(last)
    other = env.space.number_of_action(agent.act(last.next_observation))
    assert other != proposed
    agent.keep_off(frozenset())
    for _ in range(2):
        agent.refused(other)
    agent.update(last)
    assert env.space.number_of_action(agent.act(last.next_observation)) != other


def answered(rate_per_s: float, service_s: float, mean_ms: float) -> Measurement:
    """What an interval of one model tells, whose latency varies little."""
    count, took = round(5 * rate_per_s), 1e3 * service_s
    mean, waited, served = (
        LatencySummary(ms, ms, 1.3 * ms, 1.5 * ms) for ms in (mean_ms, mean_ms - took, took)
    )
    rows = (ServiceTimes(1, 1, count, count * service_s),)
    return Measurement(5.0, count, count, 0, mean, waited, served, 1.0, telemetry=rows)


def test_one_model_s_refused_part_is_found_by_changing_one_model_alone() -> None:
    """The target refuses more than two instances of the second model, whatever the first one has."""
    space = ConfigurationSpace.parse("a.instances=1:6,b.instances=1:6")
    agent = make_agent("guided", Task(space, cores=16), 0)
    measurement = together({"a": answered(30, 0.05, 100), "b": answered(30, 0.06, 300)})
    start = space.action(space.number({"a.instances": 2, "b.instances": 2}))
    lesson = Transition(np.zeros(0), start, measurement.latency.mean_ms, np.zeros(0), measurement)
    agent.update(lesson)
    for _ in range(3):
        proposed = space.number_of_action(agent.act(lesson.next_observation))
        if space.configuration(proposed)["b.instances"] <= 2:
            break
        for _ in range(2):
            agent.refused(proposed)
        agent.update(lesson)
    assert space.configuration(proposed)["b.instances"] <= 2
    assert proposed != space.number_of_action(start)


SMALL = JointSpace({name: ConfigurationSpace.of(instances=[1, 2, 3]) for name in ("a", "b")})


def refusals(*changes: tuple[tuple[int, int], tuple[int, int]], taken: set[tuple[int, int]]) -> JointRefusals:
    """After the target refused each change from one to the other, twice, given by instances."""
    found = JointRefusals(SMALL, frozenset())
    for before, after in changes:
        found.leave_out(joint_number(after), joint_number(before), set(map(joint_number, taken)))
    return found


def joint_number(instances: tuple[int, int]) -> int:
    return int(SMALL.joined(np.array([instances]) - 1)[0])


def instances_of(allowed: np.ndarray) -> set[tuple[int, int]]:
    return {(int(a) + 1, int(b) + 1) for a, b in SMALL.parts(np.flatnonzero(allowed))}


EVERY = {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}


def test_what_one_model_is_refused_is_left_out_beside_every_value_of_the_others() -> None:
    found = refusals(((3, 1), (3, 2)), taken={(3, 1)})
    assert instances_of(found.allowed) == {(a, 1) for a in (1, 2, 3)}


def test_where_one_model_s_part_was_taken_the_others_must_need_no_less_too() -> None:
    """As where the models share the memory of a machine."""
    found = refusals(((2, 1), (2, 3)), taken={(1, 3), (2, 1)})
    assert instances_of(found.allowed) == EVERY - {(2, 3), (3, 3)}


def test_of_a_refused_change_of_several_what_needs_no_less_in_each_is_left_out() -> None:
    found = refusals(((1, 1), (2, 2)), taken={(1, 1)})
    assert instances_of(found.allowed) == EVERY - {(2, 2), (2, 3), (3, 2), (3, 3)}


def test_what_needs_less_than_something_taken_is_left_out_alone() -> None:
    found = refusals(((3, 3), (2, 2)), taken={(3, 3)})
    assert instances_of(found.allowed) == EVERY - {(2, 2)}


def test_after_a_refused_change_of_several_one_changes_alone_and_then_another() -> None:
    start, taken = joint_number((1, 1)), {joint_number((1, 1))}
    found = refusals(((1, 1), (3, 3)), taken={(1, 1)})
    assert instances_of(found.telling(start, taken)) == {(1, 1), (2, 1), (3, 1), (1, 2), (1, 3)}
    found.leave_out(joint_number((1, 2)), start, taken)
    assert instances_of(found.telling(start, taken)) == {(1, 1), (2, 1), (3, 1)}
    new = joint_number((2, 1))
    np.testing.assert_array_equal(found.telling(new, taken | {new}), found.allowed)
