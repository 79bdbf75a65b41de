"""The way back: what workers answer is cut into rows and settles the requests, or their batch runs again.

The way there is in `dispatcher`. The first answer to a request counts, whoever gives it: the deployed model,
or a resilience mode with an approximation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from serving_adapter.server.configuration import Protection
from serving_adapter.server.failure_log import FailureLog
from serving_adapter.server.queue.in_flight import InFlight
from serving_adapter.server.requests import EXACT, Answer, Batch, Overloaded, Request, cut, cut_bytes, tell
from serving_adapter.server.statistics.model_statistics import ComputeTimes, FailureReason, ModelStatistics
from serving_adapter.server.surroundings import Clock
from serving_adapter.server.workers.arena import Memory, read_outputs
from serving_adapter.server.workers.messages import BatchError, BatchOutputs, BatchReply
from serving_adapter.tensors import TensorSpec

log = logging.getLogger(__name__)

NOT_COMPUTED = ComputeTimes(0, 0, 0)  # the deployed model spent no time on an approximate answer
NOBODY_WAITS = "the client did not wait for the answer"


class InferenceFailed(Exception):
    """The server could not answer a request; the text is one sentence for the client."""


class Answers:
    """Settles every request of one model once: with an answer, or with a sentence why there is none.

    A batch of several requests that fails, or ends its worker, runs again request by request. So a request
    that the model cannot bear fails alone.
    """

    def __init__(
        self,
        in_flight: InFlight,
        statistics: ModelStatistics,
        outputs: dict[str, TensorSpec],
        protection: Protection,
        now_ns: Clock,
        failures: FailureLog,
    ) -> None:
        self._in_flight, self._statistics, self._failures = in_flight, statistics, failures
        self._outputs, self._protection, self._now_ns = outputs, protection, now_ns

    # --- from workers of the deployed model --------------------------------------------------------

    def worker_answered(self, execution: Execution, memory: Memory, reply: BatchReply) -> None:
        """A worker ran a batch, or its model refused it."""
        batch, now_ns = execution.batch, self._now_ns()
        busy_ns = self._in_flight.busy_ns(now_ns) - execution.busy_ns
        self._left_worker(batch, now_ns)
        if isinstance(reply, BatchOutputs):
            try:
                self._answer_batch(execution, memory, reply, now_ns, busy_ns)
                return
            except Exception as error:  # whatever it is, nobody may be left waiting for it
                log.exception("the outputs of a batch could not be read")
                reply = BatchError(f"the server could not read the model's outputs ({error!r})")
        if reply.worker_is_broken:
            self._lost(batch, reply.error)
        elif not batch.copies:
            self.failed(batch, reply.error)

    def _answer_batch(
        self, execution: Execution, memory: Memory, reply: BatchOutputs, now_ns: int, busy_ns: int
    ) -> None:
        batch, service_ns = execution.batch, now_ns - execution.dispatched_ns
        outputs = read_outputs(reply.outputs, memory)
        self._learn_sizes(outputs)
        for request, first_row in _waiting(batch):
            self._answer(request, batch.dispatched_ns, outputs, first_row, EXACT, reply.compute)
        mean_busy = busy_ns / service_ns if service_ns else float(execution.busy_instances)
        self._statistics.record_batch(
            batch.rows, execution.busy_instances, mean_busy, service_ns, reply.compute
        )
        if execution.node:
            self._statistics.nodes.learn(execution.node, batch.rows, service_ns)
        tell(batch.listener.batch_answered, batch, outputs, service_ns)
        self._over(batch)

    def _learn_sizes(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Sizes are known from examples. One that an answer disproves is described as varying."""
        for name, array in outputs.items():
            described, size = self._outputs[name], array.shape[1:]
            if size != described.shape and not described.covers(size):
                self._outputs[name] = described.widened(size)
                log.info(
                    "an item of output %r is %s here and %s for the example input; it is described as %s",
                    *(name, list(size), list(described.shape), list(self._outputs[name].shape)),
                )

    def worker_died(self, batch: Batch, with_node: bool) -> None:
        """A worker ended with a batch, which runs again unless it has ended too many workers.

        Of nodes that are cut together each is missed at another moment. So a batch may be lost with several,
        and that is no attempt at it.
        """
        self._left_worker(batch, self._now_ns())
        batch.node_losses += with_node
        self._lost(batch, "")

    def handed_back(self, batch: Batch) -> None:
        """A worker that is not needed any more ended before it answered a batch, which runs elsewhere."""
        self._left_worker(batch, self._now_ns())
        if not batch.copies:
            self._run_again(batch)

    def _left_worker(self, batch: Batch, now_ns: int) -> None:
        self._in_flight.ended(now_ns)
        batch.copies -= 1

    def _lost(self, batch: Batch, reason: str) -> None:
        """A worker is of no use since it ran this batch."""
        batch.losses += 1
        if batch.is_wanted():
            tell(batch.listener.batch_lost, batch)
        if batch.copies:  # another worker has it, or will have it
            return
        attempts = batch.losses - batch.node_losses
        if attempts < self._protection.max_attempts and batch.node_losses < self._protection.max_node_losses:
            self._run_again(batch)
            return
        workers = f"{batch.losses} workers ended while they ran this batch"
        told = f", the last with: {reason}" if reason else ""
        self.give_up(batch, f"{workers}{told}; check the model and the inputs")

    def failed(self, batch: Batch, reason: str) -> None:
        """A batch cannot be run as it is."""
        if len(batch.requests) == 1 or not batch.is_wanted():
            self.give_up(batch, reason)
            return
        self._failures.note(f"a batch of several requests runs again request by request: {reason}")
        tell(batch.listener.batch_given_up, batch)
        self._run_apart(batch)

    def _run_again(self, batch: Batch) -> None:
        """What runs again after a loss runs alone, since one of the requests may be what ends workers."""
        if not batch.is_wanted():
            self.give_up(batch, NOBODY_WAITS)
        elif batch.losses and len(batch.requests) > 1:
            self._run_apart(batch)
        else:
            self._in_flight.run_again(batch)

    def _run_apart(self, batch: Batch) -> None:
        batch.is_split = True
        for request, _ in list(_waiting(batch)):
            self._in_flight.run_again(Batch.part(batch, request))

    def _over(self, batch: Batch) -> None:
        """A batch will not run any more. If it was the last part of another one, neither will that."""
        whole = batch.whole
        if whole is not None and all(request.settled for request in whole.requests):
            tell(whole.listener.batch_given_up, whole)

    # --- from resilience modes ---------------------------------------------------------------------

    def approximate_batch(self, batch: Batch, outputs: Mapping[str, np.ndarray], origin: str) -> None:
        """Answers those requests of a batch that take an approximation and have no answer yet."""
        for request, first_row in _waiting(batch):
            if request.accepts_approximation:
                self._answer(request, batch.dispatched_ns, outputs, first_row, origin, NOT_COMPUTED)

    def approximate_request(self, request: Request, outputs: Mapping[str, np.ndarray], origin: str) -> None:
        """Answers one request, which may still wait, by itself or in a batch that no worker has taken yet."""
        now_ns = self._now_ns()
        dispatched_ns = now_ns if request.batch is None else request.batch.dispatched_ns or now_ns
        self._answer(request, dispatched_ns, outputs, 0, origin, NOT_COMPUTED)

    # --- to requests -------------------------------------------------------------------------------

    def give_up(self, batch: Batch, sentence: str) -> None:
        """Fails those requests of a batch that have no answer; none will come."""
        if batch.is_wanted():
            self._failures.note(sentence)
        self.fail(batch.requests, sentence, FailureReason.BACKEND)
        tell(batch.listener.batch_given_up, batch)
        self._over(batch)

    def fail(self, requests: Iterable[Request], sentence: str, reason: FailureReason) -> None:
        for request in requests:
            if request.future.done():
                self.abandon(request)
            else:
                self._fail(request, sentence, reason)

    def _fail(self, request: Request, sentence: str, reason: FailureReason) -> None:
        self._settle_failed(request, reason)
        request.future.set_exception(InferenceFailed(sentence))

    def abandon(self, request: Request) -> None:
        """The client went away, or its deadline passed: nobody waits for an answer."""
        if not request.settled:
            self._settle_failed(request, FailureReason.CANCELED)

    def _settle_failed(self, request: Request, reason: FailureReason) -> None:
        self._in_flight.leave(request)
        self._statistics.record_failure(self._now_ns() - request.arrived_ns, reason)

    def _answer(
        self,
        request: Request,
        dispatched_ns: int,
        outputs: Mapping[str, np.ndarray],
        first_row: int,
        origin: str,
        compute: ComputeTimes,
    ) -> None:
        if request.future.done():
            self.abandon(request)
            return
        size_bytes = cut_bytes(outputs, self._outputs, first_row, request.rows, request.wanted)
        if size_bytes > self._protection.max_answer_bytes:
            sentence = _too_large(size_bytes, self._protection.max_answer_bytes)
            self._failures.note(sentence)
            self._fail(request, sentence, FailureReason.BACKEND)
            return
        try:
            request.hold_answer(size_bytes)
        except Overloaded as full:
            self._settle_failed(request, FailureReason.REJECTED)
            request.future.set_exception(full)
            return
        answer = Answer(cut(outputs, self._outputs, first_row, request.rows, request.wanted), origin)
        self._in_flight.leave(request)
        queue_ns = dispatched_ns - request.arrived_ns
        service_ns = self._now_ns() - dispatched_ns
        self._statistics.record_success(request.rows, queue_ns, service_ns, compute, origin)
        request.future.set_result(answer)


class Execution:
    """A batch on a worker that runs the deployed model: the `Job` of that worker."""

    __slots__ = ("_answers", "batch", "busy_instances", "busy_ns", "dispatched_ns", "node")

    def __init__(
        self,
        answers: Answers,
        batch: Batch,
        busy_instances: int,
        dispatched_ns: int,
        busy_ns: int,
        node: str,
    ) -> None:
        """`busy_ns` is that of `InFlight` when it was dispatched, before it counted itself."""
        self._answers, self.batch, self.busy_instances, self.node = answers, batch, busy_instances, node
        self.dispatched_ns, self.busy_ns = dispatched_ns, busy_ns

    def worker_answered(self, outputs: Memory, reply: BatchReply) -> None:
        self._answers.worker_answered(self, outputs, reply)

    def worker_died(self, with_node: bool = False) -> None:
        self._answers.worker_died(self.batch, with_node)

    def handed_back(self) -> None:
        self._answers.handed_back(self.batch)


def _too_large(size_bytes: int, most_bytes: float) -> str:
    return (
        f"the answer would have {size_bytes} bytes, the server gives at most {most_bytes:.0f}; "
        "ask for fewer rows or outputs, or start the server with a larger --max-message-bytes"
    )


def _waiting(batch: Batch) -> Iterator[tuple[Request, int]]:
    """The requests of a batch that have no answer yet, each with its first row."""
    first_row = 0
    for request in batch.requests:
        if not request.settled:
            yield request, first_row
        first_row += request.rows
