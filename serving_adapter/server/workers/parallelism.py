"""The knobs that workers are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

SPREAD, PACK = STRATEGIES = ("spread", "pack")


class NodePlacement(NamedTuple):
    """On which nodes of a cluster workers may be; at home it says nothing."""

    nodes: int = 0  # at most; 0 for all
    strategy: str = SPREAD
    nodes_per_unit: int = 1  # that run each batch together: SERF's C_inter


ANYWHERE = NodePlacement()


class UnitMember(NamedTuple):
    """A worker's place in a unit: workers that run each batch together (SERF, section III)."""

    rank: int  # 0 for the first, who gets the batches
    size: int  # members
    host: str  # its own
    meeting_host: str  # where the first one listens for the others
    meeting_port: int


@dataclass(frozen=True)
class Parallelism:
    """How many workers there are, where, and with how many threads each."""

    instances: int = 1
    intra_op_threads: int = 1
    inter_op_threads: int = 1
    placement: NodePlacement = ANYWHERE

    def worker_kind(self, has_parallel_branches: bool) -> tuple[object, ...]:
        """What cannot change inside a running worker.

        The intra-op setting reaches the thread that runs the batch at once. The threads of the inter-op
        pool read it only when they start. So for a model that uses that pool it is part of the kind.
        """
        threads = self.intra_op_threads if has_parallel_branches else 0
        return (self.inter_op_threads, threads, *(() if self.placement == ANYWHERE else self.placement))
