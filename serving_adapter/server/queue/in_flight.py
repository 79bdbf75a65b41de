"""Everything between its arrival and its answer: what waits for a worker, and how much runs."""

from __future__ import annotations

import asyncio
from collections import deque

from serving_adapter.server.queue.waiting_requests import WaitingRequests
from serving_adapter.server.requests import Batch, Request


class InFlight:
    """The queue of requests, the batches that run again before them, and counts of what runs."""

    def __init__(self, priority_levels: int = 1) -> None:
        self.queue = WaitingRequests(priority_levels)
        self.again: deque[Batch] = deque()  # batches whose worker died, and copies for redundancy
        self.executing = 0  # requests whose batch has been dispatched, without an answer
        self.running = 0  # batches on workers
        self.held_bytes = 0  # inputs of the requests that wait or are being run
        self._busy_ns = self._changed_ns = 0  # batches on workers, summed over time; until when
        self._none = asyncio.Event()
        self._none.set()

    @property
    def requests(self) -> int:
        return len(self.queue) + self.executing

    def add(self, request: Request) -> None:
        self.queue.add(request)
        self.held_bytes += request.size_bytes
        self._none.clear()

    def take(self, count: int) -> list[Request]:
        """The first `count` requests, which leave the queue to be executed."""
        self.executing += count
        return self.queue.take(count)

    def leave(self, request: Request) -> None:
        """A request is settled, wherever it is. It lets go of its batch, so that memory is free at once."""
        if not request.settled:
            request.settled = True
            self.held_bytes -= request.size_bytes
        if request.batch is not None:
            request.batch = None
            self.executing -= 1
        else:
            self.queue.remove(request)
        if self.requests == 0:
            self._none.set()

    def withdraw_all(self) -> list[Request]:
        """Empties the queue."""
        return self.queue.clear()

    def run_again(self, batch: Batch) -> None:
        """Queues another copy of a batch before the requests that wait."""
        batch.copies += 1
        self.again.append(batch)

    def started(self, now_ns: int) -> int:
        """A batch was given to a worker. Returns what `busy_ns` is then."""
        self._busy_ns = self.busy_ns(now_ns)
        self._changed_ns = now_ns
        self.running += 1
        return self._busy_ns

    def ended(self, now_ns: int) -> None:
        """A worker has a batch no more."""
        self._busy_ns = self.busy_ns(now_ns)
        self._changed_ns = now_ns
        self.running -= 1

    def busy_ns(self, now_ns: int) -> int:
        """Batches on workers, summed over time: what it grows by in a while tells how many there were."""
        return self._busy_ns + self.running * (now_ns - self._changed_ns)

    async def until_none(self) -> None:
        await self._none.wait()
