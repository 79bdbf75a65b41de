"""Light profiling of the simulated testbed, with the noise and the cost that it has (SERF, section IV-B).

Each parallelism tuple (n in service, inter, intra) is run with n requests at once, in rounds, until 10
requests have been served (section V-D). Service times vary, so their mean is off by chance. A round ends with
its slowest request, and the next begins. That is what the profile costs.

How much they vary is told by Fig. 5, which contradicts itself. It prints squared coefficients of variation
(SCV) of 0.03 for (2, 1, 4) and 0.09 for (4, 4, 2). It also says that most requests take 330 to 340 and 130 to
160 ms. With SCVs like these few would (`fig5` counts). With 0.03 and 0.09 as plain coefficients of
variation more do. So the figures take that reading, and Fig. 11 shows both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from baselines.serf import PROFILE_REQUESTS
from rrl.queueing.machine import Machine


class Variation(NamedTuple):
    """How much the service times of one parallelism tuple vary: their SCV."""

    name: str
    on_one_node: float
    across_nodes: float

    def scv(self, nodes: int) -> float:
        return self.on_one_node if nodes == 1 else self.across_nodes


AS_THE_RANGES = Variation("variation as Fig. 5's ranges", 0.03**2, 0.09**2)
AS_PRINTED = Variation("variation as Fig. 5's SCVs", 0.03, 0.09)
ALIKE = Variation("no variation", 0.0, 0.0)


class Profiled(NamedTuple):
    machine: Machine  # its times are means of a few requests
    cost_s: float  # how long all of that took


def light_profile(
    configurations: Sequence[dict[str, int]],
    machine: Machine,
    seed: int,
    variation: Variation = AS_THE_RANGES,
) -> Profiled:
    """Profiles the tuple of every configuration; other entries of the table stay exact."""
    rng = np.random.default_rng([seed, len(configurations), PROFILE_REQUESTS])
    times_s, cost_s = machine.service_time_s.copy(), 0.0
    for configuration in configurations:
        n = configuration["instances"]
        rounds = -(-PROFILE_REQUESTS // n)
        scv = variation.scv(configuration["nodes_per_unit"])
        factors = np.exp(np.sqrt(np.log1p(scv)) * rng.standard_normal((rounds, n)) - np.log1p(scv) / 2)
        values = {**configuration, "busy_instances": n}
        cell = tuple(
            int(np.searchsorted(getattr(machine, axis), values.get(axis, 1))) for axis in machine.axes
        )
        cost_s += float(times_s[cell] * factors.max(axis=1).sum())
        times_s[cell] *= factors.mean()
    return Profiled(replace(machine, service_time_s=times_s), cost_s)


def exact_times_s(configurations: Sequence[dict[str, int]], machine: Machine) -> np.ndarray:
    """(K, c_max) seconds a request takes with 1 .. c_max in service, under each configuration."""
    most = max(configuration["instances"] for configuration in configurations)
    return np.array([machine.table(each | {"instances": most})[:, 0] for each in configurations])


def profiled_times_s(
    configurations: Sequence[dict[str, int]],
    machine: Machine,
    seed: int,
    variation: Variation = AS_THE_RANGES,
) -> np.ndarray:
    """The same from a light profile."""
    return exact_times_s(configurations, light_profile(configurations, machine, seed, variation).machine)
