"""What waits for a worker: the requests of the first priority level, then those of the next.

Within a level they are served in the order in which they came. A level waits for as long as requests of the
levels before it are there, as in Triton.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from itertools import chain

from serving_adapter.server.requests import Request


class WaitingRequests:
    """A queue a level; how many may wait is the business of who adds them."""

    def __init__(self, levels: int = 1) -> None:
        self._levels: list[deque[Request]] = [deque() for _ in range(levels)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        """In the order in which they are served."""
        return chain.from_iterable(self._levels)

    def add(self, request: Request) -> None:
        self._levels[request.level].append(request)
        self._count += 1

    def take(self, count: int) -> list[Request]:
        """The first `count` requests, which wait no more; there are so many."""
        taken: list[Request] = []
        for level in self._levels:
            while level and len(taken) < count:
                taken.append(level.popleft())
        self._count -= len(taken)
        return taken

    def remove(self, request: Request) -> None:
        """A request waits no more, if it did."""
        with contextlib.suppress(ValueError):
            self._levels[request.level].remove(request)
            self._count -= 1

    def clear(self) -> list[Request]:
        """All requests, none of which waits any more."""
        return self.take(self._count)
