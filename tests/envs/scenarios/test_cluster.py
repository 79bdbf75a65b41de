"""A simulated cluster: what its configurations cost, and what a failure of a node does to an interval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.scenarios.cluster import ClusterNature, SimulatedCluster, of_mean_node
from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import scenarios
from rrl.measurement import Measurement, ServiceTimes
from rrl.objective import MeanLatency
from rrl.queueing.interference import predict
from rrl.queueing.serving_units import unit_rate_per_s
from rrl.space import ConfigurationSpace
from tests.support import serving_units

SPACE = ConfigurationSpace.parse("instances=1:3,intra_op_threads=1,2,4")
RATE_PER_S = 9.0
CALM = ClusterNature(nodes=40, drift_sd=0.0, up_time=1e12, requests_per_node=2000)
BRITTLE = ClusterNature(nodes=8, up_time=6.0, down_time=3.0)


def cluster(nature: ClusterNature) -> SimulatedCluster:
    (scenario,) = scenarios("family:0", "backlog")
    return SimulatedCluster(scenario.machine, SPACE, RATE_PER_S, scenario.cores, nature)


def measured(env: SimulatedCluster, number: int, intervals: int, seed: int = 1) -> list[Measurement]:
    """Those of consecutive intervals under one configuration."""
    action = SPACE.action(number)
    _, info = env.reset(seed=seed, options={"configuration": SPACE.configuration(number)})
    return [info["measurement"], *(env.step(action)[4]["measurement"] for _ in range(intervals - 1))]


@pytest.mark.parametrize("speed_sd", [0.0, 0.3])
def test_what_a_configuration_costs_is_known_from_one_server(speed_sd: float) -> None:
    env = cluster(replace(CALM, speed_sd=speed_sd))
    (scenario,) = scenarios("family:0", "backlog")
    number = int(np.argmin(ExpectedCosts(scenario, SPACE, MeanLatency()).costs(RATE_PER_S)))
    found = measured(env, number, 3)[1:]
    expected = ExpectedCosts(scenario, SPACE, MeanLatency()).costs(env.effective_rate_per_s)[number]
    assert np.mean([each.latency.mean_ms for each in found]) == pytest.approx(
        env.slowness * expected, rel=0.04
    )


def test_an_agent_is_told_the_rate_of_one_node() -> None:
    assert measured(cluster(CALM), 0, 1)[0].arrival_rate_per_s == pytest.approx(RATE_PER_S, rel=0.03)


def test_a_node_that_fails_loses_no_request() -> None:
    env = cluster(replace(BRITTLE, up_time=3.0))
    _, info = env.reset(seed=2)
    answered = arrived = 0
    failures = 0
    for _ in range(60):
        before = env.up
        info = env.step(SPACE.action(len(SPACE) - 1))[4]
        units, measurement = int(env.up.sum()), info["measurement"]
        answered += units * (measurement.completions + measurement.backlog_growth)
        arrived += units * measurement.arrivals
        failures += int((before & ~env.up).sum())
        assert not any(env._simulations[node].backlog for node in np.flatnonzero(~env.up))
    assert failures > 20
    assert answered == pytest.approx(arrived, abs=60 * 1.5 * BRITTLE.nodes)  # each is rounded to a node's


def test_an_interval_teaches_nothing_once_too_much_of_the_capacity_came_or_went() -> None:
    for gap_share, gaps in ((0.0, True), (1.0, False)):
        env = cluster(replace(BRITTLE, gap_share=gap_share))
        env.reset(seed=3)
        for _ in range(30):
            before = env.up
            measurement = env.step(SPACE.action(0))[4]["measurement"]
            assert bool(measurement.gap) == (gaps and bool((before != env.up).any()))


def test_the_same_seed_is_the_same_cluster() -> None:
    first, again = (measured(cluster(BRITTLE), 4, 5) for _ in range(2))
    assert first == again


def test_telemetry_of_nodes_is_that_of_the_mean_one_by_busy_instances_and_batch_size() -> None:
    one = (ServiceTimes(1, 1, 2, 0.25, 1.0), ServiceTimes(2, 1, 1, 0.3, 1.5))
    other = (ServiceTimes(1, 1, 4, 1.0, 2.5),)
    assert of_mean_node([one, other], 2) == (ServiceTimes(1, 1, 3, 0.625, 2.0),)
    both = (ServiceTimes(1, 1, 6, 1.25, 2.0), ServiceTimes(2, 1, 1, 0.3, 1.5))
    assert of_mean_node([one, other], 1) == both


def test_the_mean_node_has_run_the_batches_of_its_own_requests() -> None:
    for measurement in measured(cluster(CALM), 0, 3):
        ran = sum(row.count * row.batch_size for row in measurement.telemetry)
        assert ran == pytest.approx(measurement.completions, rel=0.02)
        assert sum(row.total_s for row in measurement.telemetry) < 1.01 * measurement.duration_s


def test_delays_of_batches_are_refused() -> None:
    space = ConfigurationSpace.parse("max_batch_size=1,8,max_queue_delay_us=0,1000")
    (scenario,) = scenarios("family:0", "backlog")
    with pytest.raises(ValueError, match="leave it out of the space"):
        SimulatedCluster(scenario.machine, space, RATE_PER_S)


@pytest.mark.parametrize("nodes_per_unit", [1, 2, 4])
def test_units_of_several_nodes_get_their_nodes_share_of_the_load(nodes_per_unit: int) -> None:
    """λ = λ_all/(N/C_inter): the mean latency is that of one unit at its rate."""
    nodes, rate_per_s = serving_units.NODES, 0.4 * serving_units.LARGEST_PER_S
    configuration = {"instances": 2, "intra_op_threads": 4, "nodes_per_unit": nodes_per_unit}
    times_s = serving_units.MACHINE.table(configuration)[:, 0]
    unit_per_s = float(unit_rate_per_s(nodes * rate_per_s, nodes, nodes_per_unit))
    expected_ms = 1e3 * predict(times_s[None], np.array([2]), unit_per_s).mean_latency_s[0]
    found_ms = serving_units.mean_latencies_ms(rate_per_s)[serving_units.SPACE.number(configuration)]
    assert found_ms == pytest.approx(expected_ms, rel=0.1)


def test_a_unit_is_as_fast_as_its_slowest_node() -> None:
    env = serving_units.cluster(2.0, replace(serving_units.CALM, speed_sd=0.5))
    configuration = {"instances": 1, "intra_op_threads": 8, "nodes_per_unit": 4}
    env.reset(seed=0, options={"configuration": configuration})
    assert env.unit_speeds.tolist() == [env.speeds[:4].min(), env.speeds[4:].min()]


def test_all_is_told_by_node_whatever_the_units_are() -> None:
    for nodes_per_unit in (1, 2, 4):
        env = serving_units.cluster(4.0)
        configuration = {"instances": 3, "intra_op_threads": 2, "nodes_per_unit": nodes_per_unit}
        _, info = env.reset(seed=0, options={"configuration": configuration})
        measurement = info["measurement"]
        assert measurement.arrival_rate_per_s == pytest.approx(4.0, rel=0.05)
        assert sum(row.count for row in measurement.telemetry) == pytest.approx(
            measurement.completions, abs=3
        )
        busy_s = 2 * nodes_per_unit * sum(row.total_s for row in measurement.telemetry)
        assert measurement.cpu_utilisation * 8 * measurement.duration_s == pytest.approx(busy_s, rel=0.02)


def test_units_that_lose_a_node_or_change_their_size_lose_no_request() -> None:
    env = serving_units.cluster(12.0, replace(BRITTLE, requests_per_node=50))
    env.reset(seed=2)
    rng = np.random.default_rng(0)
    answered = arrived = 0
    for _ in range(60):
        number = int(rng.integers(len(serving_units.SPACE)))
        measurement = env.step(serving_units.SPACE.action(number))[4]["measurement"]
        nodes = int(env.up.sum())
        answered += nodes * (measurement.completions + measurement.backlog_growth)
        arrived += nodes * measurement.arrivals
        together = [node for unit in env._units.values() for node in unit]
        assert len(together) == len(set(together))
        assert set(together) <= set(np.flatnonzero(env.up).tolist())
        held = {node for node, each in enumerate(env._simulations) if each.backlog}
        assert held <= set(env._units)
    assert answered == pytest.approx(arrived, abs=60 * 1.5 * BRITTLE.nodes)


def test_more_nodes_a_unit_than_the_cluster_has_are_refused() -> None:
    with pytest.raises(ValueError, match="nodes_per_unit=4 is more than the cluster has: give at most 3"):
        serving_units.cluster(2.0, replace(serving_units.CALM, nodes=3))
