"""The simulated stand-ins for SERF's three workloads, and the simulation that stands for its testbed.

SERF (SC 2016) ran CIFAR-10, ImageNet-1K and ImageNet-22K on 20 nodes of 8 cores (section V-A). What matters
to its model is how service times depend on the parallelism. Each stand-in draws that by seed:

    S[a, n, 1] = work · (σ + (1 - σ)/a) · (1 + μ·max(0, n - 2)) · max(1, n·a/8)^1.2 · e^ε
    S[a, n, u] = the law of `rrl.queueing.inter_node` for u nodes · e^ε

| symbol | drawn from | meaning |
|---|---|---|
| σ | [0.03, 0.12] | serial fraction of an operator |
| μ | the workload's range | interference of each further request once two fit the cache (Figs. 3 and 6) |
| γ, κ | `InterNodeCost.drawn` | what nodes send each other, and what caches gain |
| ε | normal, standard deviation 0.01 | roughness |

The inter-node parallelism of the paper is u, `nodes_per_unit`. A cluster of N nodes has N/u units, and each
gets λ = λ_all/(N/u) of its arrivals (section IV-C). Rates of the figures are by node, λ_all/N. Configurations
are those with c·a at most 8: 20, 40 and 80 of them, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from envs.simulated import lognormal_factors
from rrl.queueing.inter_node import InterNodeCost, over_nodes
from rrl.queueing.interference import capacity_per_s
from rrl.queueing.machine import Machine
from rrl.queueing.serving_units import unit_rate_per_s
from rrl.queueing.simulator import Discipline, Simulation

NODES = 20  # of the cluster
CORES = 8  # of a node
FIT_THE_CACHE = 2  # requests in service before they interfere
LOADS = np.linspace(0.09, 0.9, 10)  # "10 load levels evenly spread across low load to high load"


@dataclass(frozen=True)
class DNN:
    """One workload of the paper."""

    name: str
    inter: tuple[int, ...]  # degrees of inter-node parallelism that the paper tries, from 1 on
    work_s: float  # of a request on one core
    interference: tuple[float, float]  # range of μ

    def machine(self, seed: int) -> Machine:
        rng = np.random.default_rng([seed, len(self.inter)])
        sigma, _, mu = rng.uniform([0.03, 0.5, self.interference[0]], [0.12, 0.9, self.interference[1]])
        axes = [np.array([1]), np.arange(1, CORES + 1), np.arange(1, CORES + 1), np.array([1])]
        _, a, n, _ = np.meshgrid(*(axis.astype(float) for axis in axes), indexing="ij")
        time_s = self.work_s * (sigma + (1 - sigma) / a)
        time_s *= 1 + mu * np.maximum(0.0, n - FIT_THE_CACHE)
        time_s *= np.maximum(1.0, n * a / CORES) ** 1.2
        roughness = rng.standard_normal((len(self.inter), CORES, CORES))
        one_node = Machine(axes[0], axes[1], axes[2], axes[3], time_s)
        machine = over_nodes(one_node, self.inter, InterNodeCost.drawn(rng))
        rough_s = machine.service_time_s * np.exp(0.01 * np.moveaxis(roughness, 0, -1)[None, :, :, None])
        return replace(machine, service_time_s=rough_s)

    @cached_property
    def configurations(self) -> tuple[dict[str, int], ...]:
        return tuple(
            {"instances": c, "nodes_per_unit": u, "intra_op_threads": a}
            for u in self.inter
            for c in range(1, CORES + 1)
            for a in range(1, CORES // c + 1)
        )

    @cached_property
    def instances(self) -> np.ndarray:
        """(K,) c of each configuration."""
        return np.array([configuration["instances"] for configuration in self.configurations])

    @cached_property
    def unit_loads(self) -> np.ndarray:
        """(K,) the rate of a serving unit over that of a node."""
        return unit_loads_of(self.configurations)


CIFAR_10 = DNN("CIFAR-10", (1,), 0.005, (0.0, 0.03))
IMAGENET_1K = DNN("ImageNet-1K", (1, 2), 0.15, (0.1, 0.3))
IMAGENET_22K = DNN("ImageNet-22K", (1, 2, 3, 4), 1.3, (0.5, 0.9))
WORKLOADS = (CIFAR_10, IMAGENET_1K, IMAGENET_22K)


def unit_loads_of(configurations: Sequence[dict[str, int]]) -> np.ndarray:
    """(K,) the rate of a serving unit over that of a node."""
    return unit_rate_per_s(float(NODES), NODES, np.array([each["nodes_per_unit"] for each in configurations]))


def node_capacities_per_s(times_s: np.ndarray, configurations: Sequence[dict[str, int]]) -> np.ndarray:
    """(K,) the rate by node from which each is unstable, by (K, c_max) service times of a unit."""
    instances = np.array([configuration["instances"] for configuration in configurations])
    return capacity_per_s(times_s, instances) / unit_loads_of(configurations)


def name_of(configuration: dict[str, int]) -> str:
    """A configuration as (service, inter, intra), in the paper's order."""
    return "({instances}, {nodes_per_unit}, {intra_op_threads})".format(**configuration)


def enough_requests(utilisation: float) -> int:
    """The requests for a mean latency with about 1 % of noise. A busier queue needs more of them."""
    return int(np.clip(4000 / (1 - utilisation) ** 2, 20_000, 400_000))


class MeasuredMeans(NamedTuple):
    service_s: float
    wait_s: float

    @property
    def latency_s(self) -> float:
        return self.service_s + self.wait_s


def measured_means_s(
    machine: Machine,
    configuration: dict[str, int],
    rate_per_s: float,
    requests: int,
    seed: int | list[int],
    discipline: Discipline = "fcfs",
    scv: float = 0.0,
) -> MeasuredMeans:
    """Means of a long simulation of one unit from an empty one; `scv` is that of the service times.

    `rate_per_s` is that of the unit.
    """
    rng = np.random.default_rng(seed)
    arrivals_s = np.cumsum(rng.exponential(1 / rate_per_s, requests))
    factors = lognormal_factors(math.sqrt(math.log(1 + scv)), rng)
    simulation = Simulation(machine, discipline=discipline, service_factors=factors)
    outcome = simulation.run(arrivals_s, None, configuration, math.inf)
    return MeasuredMeans(
        float(np.mean(outcome.finish_s - outcome.start_s)),
        float(np.mean(outcome.start_s - outcome.arrival_s)),
    )
