"""What becomes of a batch that fails: how often it runs again, and what its requests are counted as."""

from __future__ import annotations

import asyncio

import pytest

from serving_adapter.server.answers import Answers, InferenceFailed
from serving_adapter.server.configuration import Protection
from serving_adapter.server.failure_log import FailureLog
from serving_adapter.server.queue.in_flight import InFlight
from serving_adapter.server.requests import DEFAULT, UNPROTECTED, Answer, Batch, InputTensor, Request
from serving_adapter.server.statistics.model_statistics import ModelStatistics

PROTECTION = Protection(max_attempts=3, max_node_losses=10)


class Running:
    """One request on one worker after the other."""

    def __init__(self) -> None:
        self.in_flight = InFlight()
        self.answers = Answers(
            self.in_flight, ModelStatistics(), {}, PROTECTION, lambda: 0, FailureLog("model", lambda: 0)
        )
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.in_flight.add(Request([InputTensor(b"", (1,))], None, self.answer, 0))
        self.batch = Batch(self.in_flight.take(1), UNPROTECTED)
        self.batch.copies = 1
        self.in_flight.started(0)

    def worker_dies(self, with_node: bool) -> bool:
        """Whether the batch runs again, which it then does at once."""
        self.answers.worker_died(self.batch, with_node)
        if not self.in_flight.again:
            return False
        assert self.in_flight.again.popleft() is self.batch
        self.in_flight.started(0)
        return True


def test_nodes_that_are_cut_together_are_no_attempts_at_a_batch() -> None:
    async def scenario() -> None:
        running = Running()
        assert all(running.worker_dies(with_node=True) for _ in range(PROTECTION.max_attempts))
        assert running.worker_dies(with_node=False)
        assert running.worker_dies(with_node=True)
        assert running.worker_dies(with_node=False)
        assert not running.worker_dies(with_node=False)
        with pytest.raises(InferenceFailed, match=r"^7 workers ended while they ran this batch; check"):
            running.answer.result()

    asyncio.run(scenario())


def test_a_batch_that_may_be_what_ends_nodes_is_given_up() -> None:
    async def scenario() -> None:
        running = Running()
        again = [running.worker_dies(with_node=True) for _ in range(PROTECTION.max_node_losses)]
        assert again == [True] * (PROTECTION.max_node_losses - 1) + [False]
        assert isinstance(running.answer.exception(), InferenceFailed)

    asyncio.run(scenario())


def test_a_request_in_a_batch_that_no_worker_could_take_has_waited_until_its_default_answer() -> None:
    async def scenario() -> None:
        arrived_ns, now_ns = 2_000_000_000, 5_000_000_000
        in_flight, statistics = InFlight(), ModelStatistics()
        failures = FailureLog("model", lambda: now_ns)
        answers = Answers(in_flight, statistics, {}, PROTECTION, lambda: now_ns, failures)
        futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
        for future in futures:
            in_flight.add(Request([InputTensor(b"", (1,))], None, future, arrived_ns))
        requests = in_flight.take(2)
        answers.failed(Batch(requests, UNPROTECTED), "no memory")
        for request in requests:
            answers.approximate_request(request, {}, DEFAULT)
        assert [future.result().origin for future in futures] == [DEFAULT] * 2
        assert statistics.queue.ns == statistics.success.ns == 2 * (now_ns - arrived_ns)

    asyncio.run(scenario())
