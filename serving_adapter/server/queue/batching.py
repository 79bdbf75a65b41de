"""When to form a batch, and of what: pure functions of (queue, configuration, now).

The simulator shares this rule. With an instance free, the head of the queue is dispatched as soon as its
batch is full or one of the batch has waited `max_queue_delay`. In a queue of one priority (FCFS) that one is
the head. The batch is the head and the requests behind it, in order, that fit. A batch is full when the next
request would not fit: it has too many rows, or a shape that cannot be padded to the batch's. A request with
more rows than `max_batch_size` runs alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Queued(Protocol):
    """What batching needs to know of a waiting request."""

    rows: int  # items in the request
    shape_key: Hashable  # requests with equal keys can share a batch
    arrived_ns: int


@dataclass(frozen=True)
class Batching:
    """The two batching knobs."""

    max_batch_size: int = 1
    max_queue_delay_ns: int = 0


class Decision(NamedTuple):
    """Dispatch the first `take` requests now, or (take = 0) look again at `wait_until_ns`."""

    take: int = 0
    wait_until_ns: int | None = None


def next_batch(queue: Iterable[Queued], batching: Batching, now_ns: int) -> Decision:
    """Decides for one free instance; `Decision()` when the queue is empty."""
    requests = iter(queue)
    head = next(requests, None)
    if head is None:
        return Decision()
    take, rows, full = 1, head.rows, head.rows >= batching.max_batch_size
    oldest_ns = head.arrived_ns
    if not full:
        for request in requests:
            fits = rows + request.rows <= batching.max_batch_size and request.shape_key == head.shape_key
            if not fits:
                full = True
                break
            take, rows = take + 1, rows + request.rows
            oldest_ns = min(oldest_ns, request.arrived_ns)
            if rows == batching.max_batch_size:
                full = True
                break
    due_ns = oldest_ns + batching.max_queue_delay_ns
    if full or now_ns >= due_ns:
        return Decision(take=take)
    return Decision(wait_until_ns=due_ns)
