"""What can be set about a served model: its knobs, which change live, and its protection."""

from __future__ import annotations

import math
from dataclasses import dataclass

from serving_adapter.server.batching import Batching
from serving_adapter.server.workers.pool import Parallelism

NS_PER_US = 1000


@dataclass(frozen=True)
class Knobs:
    """The five knobs of a served model (docs/architecture.md)."""

    instances: int = 1
    intra_op_threads: int = 1
    inter_op_threads: int = 1
    max_batch_size: int = 1
    max_queue_delay_us: int = 0

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(self.instances, self.intra_op_threads, self.inter_op_threads)

    @property
    def batching(self) -> Batching:
        return Batching(self.max_batch_size, NS_PER_US * self.max_queue_delay_us)


@dataclass(frozen=True)
class Protection:
    """What protects the server from its clients and from its workers."""

    max_queue_size: int = 2048  # requests that may wait
    max_held_bytes: float = math.inf  # inputs of the requests that wait or are being run
    max_answer_bytes: float = math.inf  # outputs of one request
    worker_timeout_s: float = 60.0  # a worker that holds a batch for longer counts as hung
    max_attempts: int = 3  # a batch that has ended this many workers is given up
