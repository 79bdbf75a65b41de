"""Invented machines of several nodes: the shape of SERF's Figs. 3 and 4."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.queueing.inter_node import InterNodeCost, over_nodes
from rrl.queueing.machine import Machine

ONE = Machine.invent(2, inter_op_threads=[1, 2], busy_instances=[1, 2, 4], batch_size=[1, 8])
U = [1, 2, 4, 8]


def service_s(machine: Machine, nodes: int, intra: int = 1) -> float:
    return float(machine.table({"nodes_per_unit": nodes, "intra_op_threads": intra})[0, 0])


def test_one_node_serves_as_before() -> None:
    machine = over_nodes(ONE, U, InterNodeCost(0.01, 0.7))
    np.testing.assert_array_equal(machine.service_time_s[..., 0], ONE.service_time_s)
    np.testing.assert_array_equal(machine.of_unit(1).service_time_s, ONE.service_time_s)


@pytest.mark.parametrize("seed", range(5))
def test_speed_ups_by_nodes_have_the_shape_of_the_papers(seed: int) -> None:
    machine = over_nodes(ONE, U, InterNodeCost.drawn(np.random.default_rng(seed)))
    two, four, eight = (service_s(machine, 1) / service_s(machine, nodes) for nodes in U[1:])
    assert two == pytest.approx(2.0, rel=0.05)
    assert four / two > 2.0  # super-linear: the part of a node fits its cache
    assert 1.0 < eight / four < 2.0  # what is sent begins to dominate


def test_threads_gain_less_with_more_nodes() -> None:
    machine = over_nodes(ONE, U, InterNodeCost(0.01))
    gains = [service_s(machine, nodes) / service_s(machine, nodes, intra=8) for nodes in U]
    assert np.all(np.diff(gains) < 0)


def test_without_communication_and_caches_nodes_divide_the_time() -> None:
    machine = over_nodes(ONE, U, InterNodeCost(0.0))
    np.testing.assert_allclose(machine.service_time_s, ONE.service_time_s[..., None] / np.array(U))


def test_constants_and_machines_that_cannot_be_are_refused_in_one_sentence() -> None:
    for wrong in ({"communication_share": -0.1}, {"cache_gain": 0.0}, {"fits_from": 0}):
        with pytest.raises(ValueError, match="must not be negative"):
            InterNodeCost(**({"communication_share": 0.01} | wrong))
    with pytest.raises(ValueError, match="has an axis for nodes_per_unit already"):
        over_nodes(over_nodes(ONE, U, InterNodeCost(0.0)), U, InterNodeCost(0.0))
