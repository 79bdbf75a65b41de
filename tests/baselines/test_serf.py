"""SERF: what it profiles, which configuration it takes at which load, and that it follows the load."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from baselines.serf import SERF, SERFSettings, candidates, profile
from rrl.agent import Task, Transition, observe
from rrl.measurement import LatencySummary, Measurement
from rrl.objective import LeastResources, MeanLatency, Objective, StrictSLO
from rrl.queueing.interference import Queue
from rrl.queueing.machine import Machine
from rrl.queueing.simulator import Simulation
from rrl.space import ConfigurationSpace
from rrl.views.reference_table import ReferenceTable
from tests.support import serving_units

SPACE = ConfigurationSpace.of(instances=range(1, 7), inter_op_threads=[1, 2], intra_op_threads=[1, 2, 4, 8])
MACHINE = Machine.invent(0, cores=8)


def serf(objective: Objective | None = None, space: ConfigurationSpace = SPACE) -> SERF:
    return SERF(Task(space, objective or MeanLatency(), machine=MACHINE))


def measured(rate_per_s: float) -> Measurement:
    return Measurement(100.0, round(100 * rate_per_s), 1, 0, LatencySummary(mean_ms=1.0))


def chosen(agent: SERF, rate_per_s: float) -> dict[str, int]:
    action = agent.act(observe(measured(rate_per_s), agent.space, 0))
    return agent.space.configuration(agent.space.number_of_action(action))


def simulated_latencies_ms(space: ConfigurationSpace, rate_per_s: float) -> np.ndarray:
    """(size, requests) of every configuration under the same long Poisson load."""
    arrivals_s = np.cumsum(np.random.default_rng(5).exponential(1 / rate_per_s, 20_000))
    outcomes = [
        Simulation(MACHINE).run(arrivals_s, None, space.configuration(number), math.inf)
        for number in range(len(space))
    ]
    return 1e3 * np.array([outcome.finish_s - outcome.arrival_s for outcome in outcomes])


@pytest.mark.parametrize("rate_per_s", [2.0, 10.0, 18.0, 24.0])
def test_it_takes_a_configuration_within_2_percent_of_the_simulated_best(rate_per_s: float) -> None:
    means_ms = simulated_latencies_ms(SPACE, rate_per_s).mean(axis=1)
    number = SPACE.number(chosen(serf(), rate_per_s))
    assert means_ms[number] <= 1.02 * means_ms.min()


def test_low_load_is_served_one_by_one_and_high_load_side_by_side() -> None:
    agent = serf()
    low, high = chosen(agent, 0.5), chosen(agent, 22.0)
    assert low["instances"] == 1
    assert high["instances"] > low["instances"]
    assert high["intra_op_threads"] < low["intra_op_threads"]


def test_profiled_one_at_a_time_it_takes_what_cannot_bear_the_load() -> None:
    blind = SERF(Task(SPACE, machine=MACHINE), SERFSettings(queue=Queue.MD_C))
    means_ms = simulated_latencies_ms(SPACE, 18.0).mean(axis=1)
    aware_ms, blind_ms = (means_ms[SPACE.number(chosen(agent, 18.0))] for agent in (serf(), blind))
    assert blind_ms > 2.0 * aware_ms


def test_the_profile_is_the_machines_service_time_of_every_parallelism_tuple() -> None:
    numbers = candidates(SPACE, MACHINE)
    times_s = profile(MACHINE, SPACE, numbers)
    assert times_s.shape == (len(SPACE), 6)
    for number in (0, 17, len(SPACE) - 1):
        np.testing.assert_array_equal(
            times_s[number], MACHINE.table(SPACE.configuration(number) | {"instances": 6})[:, 0]
        )


def test_no_stable_configuration_leaves_the_one_of_largest_capacity() -> None:
    agent = serf()
    at_the_edge = max(
        range(len(SPACE)),
        key=lambda number: (
            SPACE.configuration(number)["instances"] / MACHINE.table(SPACE.configuration(number))[-1, 0]
        ),
    )
    assert chosen(agent, 1e4) == SPACE.configuration(at_the_edge)
    assert chosen(serf(LeastResources(100.0)), 1e4) == SPACE.configuration(at_the_edge)


def test_least_resources_keeps_the_limit_with_fewer_threads_than_the_fastest() -> None:
    limit_ms = 400.0
    thrifty = chosen(serf(LeastResources(limit_ms)), 8.0)
    fastest = chosen(serf(), 8.0)
    assert math.prod(thrifty.values()) < math.prod(fastest.values())
    p95_ms = np.percentile(simulated_latencies_ms(SPACE, 8.0), 95, axis=1)
    assert p95_ms[SPACE.number(thrifty)] <= limit_ms
    fewest = min(
        math.prod(SPACE.configuration(number).values())
        for number in range(len(SPACE))
        if p95_ms[number] <= limit_ms
    )
    assert math.prod(thrifty.values()) == fewest


def test_strict_slo_takes_the_lowest_95th_percentile() -> None:
    p95_ms = np.percentile(simulated_latencies_ms(SPACE, 18.0), 95, axis=1)
    number = SPACE.number(chosen(serf(StrictSLO(300.0)), 18.0))
    assert p95_ms[number] <= 1.05 * p95_ms.min()


def test_an_interval_without_traffic_keeps_the_configuration_of_the_last_load() -> None:
    agent = serf()
    quiet = observe(Measurement(10.0, 0, 0, 0), SPACE, 0)
    busy = observe(measured(22.0), SPACE, 0)
    agent.update(Transition(quiet, SPACE.action(0), 1.0, busy, measured(22.0)))
    agent.update(Transition(busy, SPACE.action(0), math.nan, quiet, Measurement(10.0, 0, 0, 0)))
    np.testing.assert_array_equal(agent.act(quiet), agent.act(busy))
    assert (serf().act(quiet) != agent.act(quiet)).any()


def test_batching_knobs_are_held_at_no_batching() -> None:
    space = ConfigurationSpace.of(
        instances=[1, 2, 3], intra_op_threads=[1, 4], max_batch_size=[1, 4], max_queue_delay_us=[500, 2000]
    )
    for rate_per_s in (1.0, 10.0, 100.0):
        configuration = chosen(serf(space=space), rate_per_s)
        assert configuration["max_batch_size"] == 1
        assert configuration["max_queue_delay_us"] == 500


def test_what_was_not_profiled_is_not_taken() -> None:
    space = ConfigurationSpace.of(instances=range(1, 20), intra_op_threads=[2])
    agent = serf(space=space)
    assert space.values[agent.numbers][:, 0].max() == 10  # the table's end


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task(SPACE), "rrl-profile"),
        (Task(ConfigurationSpace.of(max_batch_size=[2, 4]), machine=MACHINE), "needs 1 among"),
        (Task(ConfigurationSpace.of(instances=[11, 12]), machine=MACHINE), "ends at 10"),
    ],
)
def test_a_task_it_cannot_act_on_is_refused_in_one_sentence(task: Task, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SERF(task)


def test_the_reference_table_can_be_written_and_read(tmp_path: Path) -> None:
    agent = serf()
    table = agent.reference_table([1.0, 10.0, 22.0], "latency", "invented")
    assert len(table.levels) == 3
    table.write(tmp_path / "table.yaml")
    entry = ReferenceTable.read(tmp_path / "table.yaml").recommend(22.0)
    assert entry is not None
    assert entry.configuration == chosen(agent, 22.0)
    assert entry.rate_per_s[0] <= 22.0 <= entry.rate_per_s[1] + 1e-3


def test_a_space_without_threads_works() -> None:
    space = ConfigurationSpace.of(instances=[1, 2, 3])
    assert chosen(serf(space=space), 1.0)["instances"] >= 1
    assert chosen(serf(space=ConfigurationSpace.of(intra_op_threads=[1, 4])), 1.0)["intra_op_threads"] == 4


def test_a_profile_with_times_after_a_rest_gives_the_model_a_start_up() -> None:
    rested_s = 1.3 * MACHINE.service_time_s[..., 0]
    plain = SERF(Task(SPACE, machine=MACHINE))
    rested = SERF(Task(SPACE, machine=replace(MACHINE, rested_time_s=rested_s)))
    light, alike, heavy = rested.predicted(0.0), plain.predicted(0.0), rested.predicted(1e6)
    np.testing.assert_allclose(light.mean_latency_s, 1.3 * alike.mean_latency_s, rtol=1e-6)
    np.testing.assert_allclose(light.p95_latency_s, 1.3 * alike.p95_latency_s, rtol=1e-6)
    assert np.isinf(heavy.mean_latency_s).all()
    assert np.isinf(heavy.p95_latency_s).all()
    busy, alike = rested.predicted(10.0), plain.predicted(10.0)
    stable = alike.utilisation < 1
    assert (busy.mean_latency_s[stable] > alike.mean_latency_s[stable]).all()
    assert (busy.mean_latency_s[stable] < 2.5 * alike.mean_latency_s[stable]).all()
    # The simpler models stay what they are.
    blind = SERF(
        Task(SPACE, machine=replace(MACHINE, rested_time_s=rested_s)), SERFSettings(queue=Queue.MM_C)
    )
    np.testing.assert_array_equal(
        blind.predicted(10.0).mean_latency_s,
        SERF(Task(SPACE, machine=MACHINE), SERFSettings(queue=Queue.MM_C)).predicted(10.0).mean_latency_s,
    )


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_on_a_cluster_it_takes_the_nodes_of_a_unit_by_the_cluster_rule(share: float) -> None:
    """λ = λ_all/(N/C_inter). Without it a unit of four nodes looks best, though few units are left then."""
    rate_per_s = share * serving_units.LARGEST_PER_S
    means_ms = serving_units.mean_latencies_ms(rate_per_s)
    space, machine = serving_units.SPACE, serving_units.MACHINE
    agent, blind = (
        SERF(Task(space, cores=serving_units.CORES, machine=machine, nodes=nodes))
        for nodes in (serving_units.NODES, None)
    )
    assert means_ms[agent.best(rate_per_s)] <= 1.05 * means_ms.min()
    if share >= 0.5:
        assert means_ms[blind.best(rate_per_s)] > 2.0 * means_ms.min()


def test_no_unit_has_more_nodes_than_the_cluster() -> None:
    space, machine = serving_units.SPACE, serving_units.MACHINE
    agent = SERF(Task(space, machine=machine, nodes=3))
    assert set(space.values[agent.numbers][:, 2]) == {1, 2}
    assert chosen(agent, 0.1)["nodes_per_unit"] == 2
