"""The way back: what workers answer is cut into rows and settles the requests, or their batch runs again.

The way there is in `dispatcher`. The first answer to a request counts, whoever gives it: the deployed model,
or a resilience mode with an approximation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from serving_adapter.server.in_flight import InFlight
from serving_adapter.server.requests import EXACT, Answer, Batch, Request, Specs, cut
from serving_adapter.server.statistics import ComputeTimes, ModelStatistics
from serving_adapter.server.surroundings import Clock
from serving_adapter.server.workers.arena import read_outputs
from serving_adapter.server.workers.handles import WorkerHandle
from serving_adapter.server.workers.messages import BatchError, BatchReply

NOT_COMPUTED = ComputeTimes(0, 0, 0)  # the deployed model spent no time on an approximate answer
NOBODY_WAITS = "the client did not wait for the answer"


class InferenceFailed(Exception):
    """The server could not answer a request; the text is one sentence for the client."""


class Answers:
    """Settles every request of one model once: with an answer, or with a sentence why there is none."""

    def __init__(
        self,
        in_flight: InFlight,
        statistics: ModelStatistics,
        outputs: Specs,
        max_attempts: int,
        now_ns: Clock,
    ) -> None:
        self._in_flight, self._statistics = in_flight, statistics
        self._outputs, self._max_attempts, self._now_ns = outputs, max_attempts, now_ns

    # --- from workers of the deployed model --------------------------------------------------------

    def worker_answered(self, execution: Execution, worker: WorkerHandle, reply: BatchReply) -> None:
        """A worker ran a batch, or its model refused it."""
        batch, now_ns = execution.batch, self._now_ns()
        service_ns = now_ns - execution.dispatched_ns
        busy_ns = self._in_flight.busy_ns(now_ns) - execution.busy_ns
        self._left_worker(batch, now_ns)
        if isinstance(reply, BatchError):
            if not batch.copies:
                self.give_up(batch, reply.error)
            return
        mean_busy = busy_ns / service_ns if service_ns else float(execution.busy_instances)
        self._statistics.record_batch(
            batch.rows, execution.busy_instances, mean_busy, service_ns, reply.compute
        )
        outputs = read_outputs(reply.outputs, worker.outputs)
        for request, first_row in _waiting(batch):
            self._settle(request, batch.dispatched_ns, outputs, first_row, EXACT, reply.compute)
        self._finish(batch)
        batch.listener.batch_answered(batch, outputs, service_ns)

    def worker_died(self, batch: Batch) -> None:
        """A worker ended with a batch, which runs again unless it has ended too many workers."""
        self._left_worker(batch, self._now_ns())
        batch.losses += 1
        if not batch.finished and not batch.is_wanted():
            self.give_up(batch, NOBODY_WAITS)
            return
        batch.listener.batch_lost(batch)
        if batch.copies:  # another worker has it, or will have it
            return
        if batch.finished:
            batch.listener.batch_given_up(batch)
        elif batch.losses < self._max_attempts:
            self._in_flight.run_again(batch)
        else:
            workers = f"{batch.losses} workers ended while they ran this batch"
            self.give_up(batch, f"{workers}; check the model and the inputs")

    def handed_back(self, batch: Batch) -> None:
        """A worker that is not needed any more ended before it answered a batch, which runs elsewhere."""
        self._left_worker(batch, self._now_ns())
        if batch.copies:
            return
        if batch.finished:
            batch.listener.batch_given_up(batch)
        else:
            self._in_flight.run_again(batch)

    def _left_worker(self, batch: Batch, now_ns: int) -> None:
        self._in_flight.ended(now_ns)
        batch.copies -= 1

    # --- from resilience modes ---------------------------------------------------------------------

    def approximate_batch(self, batch: Batch, outputs: Mapping[str, np.ndarray], origin: str) -> None:
        """Answers those requests of a batch that take an approximation and have no answer yet."""
        for request, first_row in _waiting(batch):
            if request.accepts_approximation:
                self._settle(request, batch.dispatched_ns, outputs, first_row, origin, NOT_COMPUTED)
        self._finish_if_settled(batch)

    def approximate_request(self, request: Request, outputs: Mapping[str, np.ndarray], origin: str) -> None:
        """Answers one request, which may still be queued."""
        if request.batch is None:
            self._in_flight.withdraw(request)
            self._settle(request, self._now_ns(), outputs, 0, origin, NOT_COMPUTED)
        else:
            self._settle(request, request.batch.dispatched_ns, outputs, 0, origin, NOT_COMPUTED)
            self._finish_if_settled(request.batch)

    # --- to requests -------------------------------------------------------------------------------

    def give_up(self, batch: Batch, sentence: str) -> None:
        """Fails those requests of a batch that have no answer; none will come."""
        self.fail(batch.requests, sentence)
        self._finish(batch)
        batch.listener.batch_given_up(batch)

    def fail(self, requests: Sequence[Request], sentence: str) -> None:
        now_ns = self._now_ns()
        for request in requests:
            if request.settled:
                continue
            request.settled = True
            self._statistics.record_failure(now_ns - request.arrived_ns)
            if not request.future.done():
                request.future.set_exception(InferenceFailed(sentence))

    def _settle(
        self,
        request: Request,
        dispatched_ns: int,
        outputs: Mapping[str, np.ndarray],
        first_row: int,
        origin: str,
        compute: ComputeTimes,
    ) -> None:
        request.settled = True
        queue_ns = dispatched_ns - request.arrived_ns
        service_ns = self._now_ns() - dispatched_ns
        self._statistics.record_success(request.rows, queue_ns, service_ns, compute, origin)
        if not request.future.done():
            tensors = cut(outputs, self._outputs, first_row, request.rows)
            request.future.set_result(Answer(tensors, origin))

    def _finish_if_settled(self, batch: Batch) -> None:
        if all(request.settled for request in batch.requests):
            self._finish(batch)

    def _finish(self, batch: Batch) -> None:
        if not batch.finished:
            batch.finished = True
            for request in batch.requests:
                request.batch = None  # they refer to each other no longer, so their memory is free at once
            self._in_flight.executed(len(batch.requests))


class Execution:
    """A batch on a worker that runs the deployed model: the `Job` of that worker."""

    __slots__ = ("_answers", "batch", "busy_instances", "busy_ns", "dispatched_ns")

    def __init__(
        self, answers: Answers, batch: Batch, busy_instances: int, dispatched_ns: int, busy_ns: int
    ) -> None:
        """`busy_ns` is that of `InFlight` when it was dispatched, before it counted itself."""
        self._answers, self.batch, self.busy_instances = answers, batch, busy_instances
        self.dispatched_ns, self.busy_ns = dispatched_ns, busy_ns

    def worker_answered(self, worker: WorkerHandle, reply: BatchReply) -> None:
        self._answers.worker_answered(self, worker, reply)

    def worker_died(self) -> None:
        self._answers.worker_died(self.batch)

    def handed_back(self) -> None:
        self._answers.handed_back(self.batch)


def _waiting(batch: Batch) -> Iterator[tuple[Request, int]]:
    """The requests of a batch that have no answer yet, each with its first row."""
    first_row = 0
    for request in batch.requests:
        if not request.settled:
            yield request, first_row
        first_row += request.rows
