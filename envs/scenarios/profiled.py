"""Machines as they are: five models of `rrl-serve`, profiled on 2 cores. No prior is learned from them.

Seed k has the service times of the k-th model, counted round and round. It is slowed down or sped up until
the paper's load takes a share u in [0.25, 0.65] of its capacity with batches of up to 8 (`paper_load`). The
tables are of one intra-op thread or two, 1 .. 4 busy instances and batches of 1, 2, 4 and 8:

    rrl-serve --model minilm
    rrl-profile --target localhost:8500 --instances 1:4 --batch-sizes 1,2,4,8 --inter 1 --out minilm.npz

Their noise is that of 20 requests a point, on a virtual machine.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from envs.scenarios import paper_load
from rrl.queueing.machine import Machine

MODELS = ("minilm", "efficientnet_lite0", "deepspeech2", "inception_v3", "inception_resnet_v2")
CORES = 2
LARGEST_BATCH = 8

_FOLDER = Path(__file__).parent / "profiles"
_STREAM = int.from_bytes(b"prof")  # of random numbers


def profiled_machine(seed: int) -> tuple[Machine, int]:
    """The machine of this seed, and its cores."""
    utilisation = np.random.default_rng([seed, _STREAM]).uniform(*paper_load.UTILISATION)
    table = measured(MODELS[seed % len(MODELS)])
    return paper_load.at_utilisation(table, float(utilisation), LARGEST_BATCH), CORES


@cache
def measured(model: str) -> Machine:
    """The table of one of `MODELS`, at the speed that it was measured at."""
    return Machine.load(_FOLDER / f"{model}.npz")
