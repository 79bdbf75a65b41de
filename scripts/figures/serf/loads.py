"""Measures every configuration of a workload at the same loads, from which Figs. 2, 9 and 12 are drawn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scripts.figures.serf.profiling import AS_THE_RANGES, exact_times_s, profiled_times_s
from scripts.figures.serf.workloads import DNN, enough_requests, measured_means_s, node_capacities_per_s

HIGHEST_UTILISATION = 0.95  # beyond it no run is long enough to measure the mean


class MeasuredLoads(NamedTuple):
    times_s: np.ndarray  # (K, c_max) the light profile, from which the models predict
    instances: np.ndarray  # (K,)
    unit_loads: np.ndarray  # (K,) the rate of a serving unit over that of a node
    rates_per_s: np.ndarray  # (loads,) by node
    measured_s: np.ndarray  # (loads, K) mean latency; infinite where ρ exceeds `HIGHEST_UTILISATION`


def landscape(workload: DNN, seed: int, loads: np.ndarray) -> MeasuredLoads:
    """Measures at `loads`, shares of the largest capacity. At each load all see the same arrivals by node."""
    machine = workload.machine(seed)
    exact_s = exact_times_s(workload.configurations, machine)
    capacities_per_s = node_capacities_per_s(exact_s, workload.configurations)
    rates_per_s = np.asarray(loads) * capacities_per_s.max()
    measured_s = np.full((len(loads), len(capacities_per_s)), np.inf)
    for row, rate_per_s in enumerate(rates_per_s):
        utilisation = rate_per_s / capacities_per_s
        for k in np.flatnonzero(utilisation <= HIGHEST_UTILISATION):
            configuration = workload.configurations[k]
            scv = AS_THE_RANGES.scv(configuration["nodes_per_unit"])
            requests = enough_requests(float(utilisation[k]))
            measured_s[row, k] = measured_means_s(
                machine, configuration, workload.unit_loads[k] * rate_per_s, requests, seed, scv=scv
            ).latency_s
    times_s = profiled_times_s(workload.configurations, machine, seed)
    return MeasuredLoads(times_s, workload.instances, workload.unit_loads, rates_per_s, measured_s)
