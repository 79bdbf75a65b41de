"""What parallelism does to the service time, simulated and of five served models (Figs. 3, 4, 6).

The real tables are those of `envs.scenarios.profiled`: five models of `rrl-serve`, by `rrl-profile` on two
cores.
A row of the simulated testbed that shows what its law assumes is "not comparable" with the paper's.
"""

from __future__ import annotations

import numpy as np

from envs.scenarios.profiled import CORES, MODELS, measured
from rrl.queueing.machine import Machine
from scripts.figures.result import FAILS, PARTLY, REPRODUCES
from scripts.figures.serf.workloads import DNN

ALMOST = 0.05  # a service time that differs by less is "almost constant"


def simulated_times_s(
    workload: DNN, seeds: int, *, inter: int = 1, intra: int = 1, most: int = 8
) -> np.ndarray:
    """(seeds, most) service times with 1 .. most requests in service."""
    configuration = {"nodes_per_unit": inter, "intra_op_threads": intra, "instances": most}
    return np.array([workload.machine(seed).table(configuration)[:, 0] for seed in range(seeds)])


def served_times_s(intra: int, most: int = CORES) -> np.ndarray:
    """(models, most) the same of the served models, as measured; no more in service than there are cores."""
    return np.array([_one_by_one(measured(model), intra)[:most] for model in MODELS])


def _one_by_one(machine: Machine, intra: int) -> np.ndarray:
    most = int(machine.busy_instances[-1])
    return machine.table({"intra_op_threads": intra, "instances": most})[:, 0]


def almost_constant(growth: float) -> str:
    """The verdict on a service time that should hardly grow, from its growth as a share."""
    return REPRODUCES if growth <= ALMOST else PARTLY if growth <= 3 * ALMOST else FAILS
