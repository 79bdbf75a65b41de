"""SERF's cluster rule: what one serving unit gets of the load, and what it then takes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rrl.queueing.inter_node import InterNodeCost, over_nodes
from rrl.queueing.interference import predict
from rrl.queueing.machine import Machine
from rrl.queueing.serving_units import serving_units, unit_loads, unit_rate_per_s, units_fit
from rrl.queueing.simulator import Simulation
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2], nodes_per_unit=[1, 2, 3, 4])


def test_a_unit_gets_the_clusters_rate_over_the_number_of_units() -> None:
    """λ = λ_all/(N/C_inter)."""
    rates_per_s = unit_rate_per_s(60.0, 12, np.array([1, 2, 3, 4, 6, 12]))
    np.testing.assert_allclose(rates_per_s, 60.0 / (12 / np.array([1, 2, 3, 4, 6, 12])))


def test_nodes_that_are_left_over_serve_nothing() -> None:
    assert serving_units(20, np.array([3, 7, 20])).tolist() == [6, 2, 1]
    assert unit_rate_per_s(60.0, 20, 3) == 10.0


@pytest.mark.parametrize("nodes_per_unit", [0, 5])
def test_a_unit_that_cannot_be_is_refused_in_one_sentence(nodes_per_unit: int) -> None:
    with pytest.raises(ValueError, match=r"must lie in 1 \.\. 4, the nodes of the cluster, got"):
        serving_units(4, nodes_per_unit)


def test_loads_and_fits_of_a_grid() -> None:
    assert unit_loads(SPACE, None).tolist() == [1.0] * 8
    assert unit_loads(SPACE, 4).tolist() == [1.0, 2.0, 4.0, 4.0] * 2
    assert units_fit(SPACE, 3).tolist() == [True, True, True, False] * 2
    assert unit_loads(SPACE, 3).tolist() == [1.0, 3.0, 3.0, 3.0] * 2
    assert units_fit(SPACE, None).all()
    assert units_fit(ConfigurationSpace.of(instances=[1, 2]), 1).all()
    with pytest.raises(ValueError, match="beyond the 1 nodes of the cluster: widen the space"):
        units_fit(ConfigurationSpace.of(nodes_per_unit=[2, 4]), 1)


@pytest.mark.parametrize("nodes_per_unit", [1, 2, 4])
def test_the_latency_of_the_cluster_is_that_of_one_unit_at_its_rate(nodes_per_unit: int) -> None:
    """A dispatcher splits the cluster's arrivals by chance; every unit is simulated."""
    nodes, instances = 8, 2
    one = Machine.invent(1, inter_op_threads=[1], intra_op_threads=[4], batch_size=[1])
    machine = over_nodes(one, [1, 2, 4], InterNodeCost(0.05))
    configuration = {"instances": instances, "intra_op_threads": 4, "nodes_per_unit": nodes_per_unit}
    times_s = machine.table(configuration)[:, 0]
    units = nodes // nodes_per_unit
    cluster_rate_per_s = 0.6 * units * instances / times_s[-1]
    rng = np.random.default_rng(0)
    arrivals_s = np.cumsum(rng.exponential(1 / cluster_rate_per_s, 200_000))
    unit_of = rng.integers(units, size=len(arrivals_s))
    latencies_s = []
    for unit in range(units):
        outcome = Simulation(machine).run(arrivals_s[unit_of == unit], None, configuration, math.inf)
        latencies_s.append(outcome.finish_s - outcome.arrival_s)
    rate_per_s = unit_rate_per_s(cluster_rate_per_s, nodes, nodes_per_unit)
    found = predict(times_s[None], np.array([instances]), float(rate_per_s))
    assert found.mean_latency_s[0] == pytest.approx(np.concatenate(latencies_s).mean(), rel=0.05)
