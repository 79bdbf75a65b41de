"""What models are expected to slow each other by, each with the work that it has.

| symbol | here | meaning |
|---|---|---|
| a_m | `Work.in_service` | batches of model m in service on average, were it alone |
| g_m | | ln of how many times as long batches of m take beside the others (`neighbours`) |

As many are in service as they take longer: a_m exp(g_m). And g_m grows with what is in service of the others.
So both are found in turns, from g = 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rrl.belief import telemetry
from rrl.belief.belief import Work
from rrl.belief.several_models.joint_interval import LEAST_IN_SERVICE, beside_others
from rrl.belief.several_models.neighbours import Neighbours, shapes

ROUNDS = 2


def expected_log_slower(work: Sequence[Work], neighbours: Neighbours, cores: float) -> np.ndarray:
    """(K, M) g of K joint configurations, by the work of each model in its part of these."""
    in_service, instances, threads, slope = (np.stack(each, axis=1) for each in zip(*work, strict=True))
    g = np.zeros(in_service.shape)
    for _ in range(ROUNDS):
        busy = np.clip(in_service * np.exp(g), LEAST_IN_SERVICE, instances)
        own = threads * telemetry.busy_instances(busy, instances.astype(int))
        of_each = [
            shapes(beside_others(k, own, busy, instances, threads, slope[:, k]), cores)
            for k in range(len(work))
        ]
        g = np.stack([neighbours.log_slower(each) for each in of_each], axis=1)
    return g
