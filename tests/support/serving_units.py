"""A small cluster whose nodes can serve a batch together, and what its configurations really cost."""

from __future__ import annotations

from functools import cache

import numpy as np

from envs.scenarios.cluster import ClusterNature, SimulatedCluster
from rrl.queueing.inter_node import InterNodeCost, over_nodes
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace

NODES, CORES = 8, 8  # of the cluster, of a node
SPACE = ConfigurationSpace.of(instances=[1, 2, 3], intra_op_threads=[1, 2, 4, 8], nodes_per_unit=[1, 2, 4])
MACHINE = over_nodes(
    Machine.invent(
        0,
        cores=CORES,
        roughness=0.0,
        inter_op_threads=[1],
        intra_op_threads=[1, 2, 4, 8],
        busy_instances=[1, 2, 3],
        batch_size=[1],
    ),
    [1, 2, 4],
    InterNodeCost(communication_share=0.03),
)
CALM = ClusterNature(nodes=NODES, speed_sd=0.0, drift_sd=0.0, up_time=1e12, requests_per_node=400)
LARGEST_PER_S = 20.3  # that a node bears as its share, under the best configuration


def cluster(rate_per_s: float, nature: ClusterNature = CALM) -> SimulatedCluster:
    """It gets so many requests by node."""
    return SimulatedCluster(MACHINE, SPACE, rate_per_s, CORES, nature)


@cache
def mean_latencies_ms(rate_per_s: float, intervals: int = 3) -> np.ndarray:
    """(size,) measured under each configuration where all nodes are alike and none fails."""
    found = np.empty(len(SPACE))
    for number in range(len(SPACE)):
        env = cluster(rate_per_s)
        env.reset(seed=5, options={"configuration": SPACE.configuration(number)})
        steps = [env.step(SPACE.action(number))[4]["measurement"] for _ in range(intervals)]
        found[number] = np.mean([measurement.latency.mean_ms for measurement in steps])
    return found
