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
from rrl.space import ConfigurationSpace

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
