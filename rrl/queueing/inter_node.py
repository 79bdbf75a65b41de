"""What it gains and costs to serve a batch on several nodes at once: a law for invented machines.

    S[i, a, n, b, u] = S[i, a, n, b] · κ(u)/u + γ · (u - 1) · S[1, 1, 1, b]

| symbol | here | meaning |
|---|---|---|
| u | `nodes_per_unit` | nodes that serve the batch together (SERF's C_inter) |
| κ(u) | `cache_gain` from `fits_from` nodes on, else 1 | a part of the model fits a node's cache |
| γ | `communication_share` | what each further node sends, over the time of the batch on one thread |

The shape is that of Fig. 3 in SERF (Yan et al., SC 2016), for ImageNet-22K. Two nodes speed a request up by
2, as "communication time grows marginally". From 2 to 4 nodes the speed-up is "super-linear due to caching
effects". From 4 to 8 it is smaller, "as communication starts to dominate service time". Threads speed the
computation up and not what is sent. So they gain less with more nodes, which is SERF's Fig. 4. The paper
prints no values. Those of γ and κ are ours, chosen to give these statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rrl.queueing.machine import Machine

COMMUNICATION_SHARES = (0.005, 0.015)  # the range of γ among machines
CACHE_GAINS = (0.65, 0.8)  # the range of κ, once the part of a node fits its cache


@dataclass(frozen=True)
class InterNodeCost:
    """The law's constants for one machine."""

    communication_share: float  # γ
    cache_gain: float = 1.0  # κ
    fits_from: int = 4  # nodes: between 2 and 4 the paper's speed-up is super-linear

    def __post_init__(self) -> None:
        if self.communication_share < 0 or not 0 < self.cache_gain <= 1 or self.fits_from < 1:
            raise ValueError(
                "communication_share must not be negative, cache_gain must lie in (0, 1] and fits_from must "
                f"be at least 1, got {self}"
            )

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> InterNodeCost:
        """Of a large model, whose part fits the cache from four nodes on."""
        return cls(float(rng.uniform(*COMMUNICATION_SHARES)), float(rng.uniform(*CACHE_GAINS)))


def over_nodes(machine: Machine, nodes_per_unit: Sequence[int], cost: InterNodeCost) -> Machine:
    """The machine whose batches are served by one node or by several; the times of one node stay as they are.

    ValueError for a machine that has such an axis already. Times after a rest are left out.
    """
    if machine.nodes_per_unit is not None:
        raise ValueError("the machine has an axis for nodes_per_unit already; give one of a single node")
    u = np.asarray(nodes_per_unit)
    one_s = machine.service_time_s[..., None]
    alone_s = one_s[:1, :1, :1]  # of a batch on one thread, beside no other
    gain = np.where(u >= cost.fits_from, cost.cache_gain, 1.0)
    sent_s = cost.communication_share * (u - 1) * alone_s
    times_s = np.where(u == 1, one_s, one_s * gain / u + sent_s)
    return replace(machine, service_time_s=times_s, rested_time_s=None, nodes_per_unit=u)
