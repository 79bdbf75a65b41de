"""What can be set about a served model: its knobs, which change live, and its protection."""

from __future__ import annotations

import math
from dataclasses import dataclass

from serving_adapter.server.queue.batching import Batching
from serving_adapter.server.workers.parallelism import ANYWHERE, NodePlacement, Parallelism

NS_PER_US = 1000
MAX_LEVELS = 1000


@dataclass(frozen=True)
class Knobs:
    """The five knobs of a served model (docs/architecture.md), and where its workers are on a cluster."""

    instances: int = 1
    intra_op_threads: int = 1
    inter_op_threads: int = 1
    max_batch_size: int = 1
    max_queue_delay_us: int = 0
    placement: NodePlacement = ANYWHERE

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(self.instances, self.intra_op_threads, self.inter_op_threads, self.placement)

    @property
    def batching(self) -> Batching:
        return Batching(self.max_batch_size, NS_PER_US * self.max_queue_delay_us)


@dataclass(frozen=True)
class Priorities:
    """The levels by which requests are queued: those of level 1 are served first, as in Triton."""

    levels: int = 0  # 0: in the order in which requests come
    default: int = 0  # of requests that name none

    @classmethod
    def of(cls, levels: int, default: int) -> Priorities:
        """The default of 0 is the last level."""
        return cls(levels, default or levels)


NO_PRIORITIES = Priorities()


@dataclass(frozen=True)
class Protection:
    """What protects the server from its clients and from its workers."""

    max_queue_size: int = 2048  # requests that may wait
    max_held_bytes: float = math.inf  # inputs of the requests that wait or are being run
    max_answer_bytes: float = math.inf  # outputs of one request
    worker_timeout_s: float = 60.0  # a worker that holds a batch for longer counts as hung
    max_attempts: int = 3  # a batch that has ended this many workers is given up
    max_node_losses: int = 10  # so is one with which this many nodes ended, which may be what ends them
