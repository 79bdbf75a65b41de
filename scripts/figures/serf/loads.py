"""Measures every configuration of a workload at the same loads, from which Figs. 2, 9 and 12 are drawn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rrl.queueing.interference import capacity_per_s
from scripts.figures.serf.profiling import AS_THE_RANGES, exact_times_s, profiled_times_s
from scripts.figures.serf.workloads import DNN, enough_requests, measured_means_s

HIGHEST_UTILISATION = 0.95  # beyond it no run is long enough to measure the mean


class MeasuredLoads(NamedTuple):
    times_s: np.ndarray  # (K, c_max) the light profile, from which the models predict
    instances: np.ndarray  # (K,)
    rates_per_s: np.ndarray  # (loads,)
    measured_s: np.ndarray  # (loads, K) mean latency; infinite where ρ exceeds `HIGHEST_UTILISATION`


def landscape(workload: DNN, seed: int, loads: np.ndarray) -> MeasuredLoads:
    """Measures at `loads`, shares of the largest capacity. At each load all see the same arrivals."""
    machine = workload.machine(seed)
    capacities_per_s = capacity_per_s(exact_times_s(workload.configurations, machine), workload.instances)
    rates_per_s = np.asarray(loads) * capacities_per_s.max()
    measured_s = np.full((len(loads), len(capacities_per_s)), np.inf)
    for row, rate_per_s in enumerate(rates_per_s):
        utilisation = rate_per_s / capacities_per_s
        for k in np.flatnonzero(utilisation <= HIGHEST_UTILISATION):
            configuration = workload.configurations[k]
            scv = AS_THE_RANGES.scv(configuration["inter_op_threads"])
            requests = enough_requests(float(utilisation[k]))
            measured_s[row, k] = measured_means_s(
                machine, configuration, rate_per_s, requests, seed, scv=scv
            ).latency_s
    times_s = profiled_times_s(workload.configurations, machine, seed)
    return MeasuredLoads(times_s, workload.instances, rates_per_s, measured_s)
