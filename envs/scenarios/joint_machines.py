"""Random machines that two models share, such as `scripts/bench joint` meets.

    A_m = S_m · a^ε_m · b^β_m,  slowed by the other batches in service (`rrl.queueing.shared_machine`)

| symbol | drawn from | meaning |
|---|---|---|
| C | 2, 4 or 8 | cores |
| S_m | [5, 40] ms | a batch of one of model m, alone, on one thread |
| a, b | 1 .. 4, 1 .. 8 | intra-op threads, batch size |
| ε_m | [-0.9, -0.1] | speed-up by more threads |
| β_m | [0.5, 0.9] | growth by the size of a batch |
| ω, μ | [1, 1.2], [0.1, 0.5] | loss by over-subscription; interference by memory |
| λ_m | [0.4, 0.85] of what the start alone serves | requests per s |

Both models start with one instance, half of the cores as its threads, and no batches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rrl.joint import JointSpace, of_models
from rrl.queueing.machine import Machine
from rrl.queueing.shared_machine import Contention
from rrl.space import ConfigurationSpace

MODELS = ("first", "second")
THREADS, BATCHES = np.array([1, 2, 4]), np.array([1, 2, 4, 8])


class JointScenario(NamedTuple):
    """A machine, its models and their load."""

    machines: dict[str, Machine]  # what batches take alone
    rates: dict[str, float]  # requests per s
    space: ConfigurationSpace  # joint
    contention: Contention
    start: dict[str, int]

    @property
    def cores(self) -> int:
        return int(self.contention.cores)


def random_joint_machine(seed: int) -> JointScenario:
    """The machine of a seed."""
    rng = np.random.default_rng([seed, 77])
    cores = int(rng.choice([2, 4, 8]))
    contention = Contention(float(cores), *rng.uniform([1.0, 0.1], [1.2, 0.5]).tolist())
    threads = [int(a) for a in THREADS if a <= max(1, cores // 2)]
    start = {"instances": 1, "intra_op_threads": threads[-1], "max_batch_size": 1}
    member = ConfigurationSpace.of(
        instances=range(1, min(cores, 4) + 1), intra_op_threads=threads, max_batch_size=[1, 4, 8]
    )
    machines, rates = {}, {}
    for model in MODELS:
        s1, ε, β = rng.uniform([5e-3, -0.9, 0.5], [40e-3, -0.1, 0.9])
        a, b = np.meshgrid(THREADS.astype(float), BATCHES.astype(float), indexing="ij")
        table_s = s1 * a**ε * b**β
        one = np.array([1])
        machines[model] = Machine(one, THREADS, one, BATCHES, table_s[None, :, None, :])
        alone_s = float(machines[model].table(start)[0, 0])
        rates[model] = round(float(rng.uniform(0.4, 0.85)) / alone_s, 1)
    joint = JointSpace(dict.fromkeys(MODELS, member))
    found = of_models(dict.fromkeys(MODELS, start))
    return JointScenario(machines, rates, joint.space, contention, found)
