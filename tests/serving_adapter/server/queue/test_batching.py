"""The batching rule, as properties over any queue."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.server.queue.batching import Batching, Decision, next_batch


@dataclass
class Waiting:
    rows: int
    arrived_ns: int
    shape_key: object = None


queues = st.lists(
    st.builds(Waiting, st.integers(1, 6), st.integers(0, 1000), st.sampled_from(["a", "b"])), max_size=12
)
"""In any order: where there are priorities, the head need not be the oldest."""
batchings = st.builds(Batching, st.integers(1, 8), st.integers(0, 500))


def test_an_empty_queue_gives_nothing_to_do():
    assert next_batch([], Batching(), now_ns=5) == Decision(take=0, wait_until_ns=None)


def test_without_delay_the_head_goes_at_once_with_what_fits():
    queue = [Waiting(1, 0), Waiting(1, 1), Waiting(1, 2)]
    assert next_batch(queue, Batching(max_batch_size=2), now_ns=2).take == 2


def test_a_partial_batch_waits_until_its_oldest_request_is_due():
    queue = [Waiting(1, 100), Waiting(1, 300)]
    batching = Batching(max_batch_size=4, max_queue_delay_ns=500)
    assert next_batch(queue, batching, now_ns=599) == Decision(wait_until_ns=600)
    assert next_batch(queue, batching, now_ns=600) == Decision(take=2)


def test_a_request_larger_than_the_batch_size_runs_alone():
    queue = [Waiting(5, 0), Waiting(1, 0)]
    assert next_batch(queue, Batching(max_batch_size=2, max_queue_delay_ns=10**9), now_ns=0).take == 1


def test_a_batch_that_cannot_grow_does_not_wait():
    queue = [Waiting(1, 0, "a"), Waiting(1, 0, "b")]
    assert next_batch(queue, Batching(max_batch_size=8, max_queue_delay_ns=10**9), now_ns=0).take == 1


@given(queues, batchings, st.integers(0, 3000))
def test_batches_respect_size_shape_order_and_delay(queue, batching, now_ns):
    decision = next_batch(queue, batching, now_ns)
    batch, rest = queue[: decision.take], queue[decision.take :]
    if not queue:
        assert decision == Decision()
    elif decision.take:
        rows = sum(request.rows for request in batch)
        assert rows <= batching.max_batch_size or len(batch) == 1
        assert len({request.shape_key for request in batch}) == 1
        could_grow = rest and (
            rows + rest[0].rows <= batching.max_batch_size and rest[0].shape_key == batch[0].shape_key
        )
        assert not could_grow
    else:
        oldest_ns = min(request.arrived_ns for request in queue)
        assert decision.wait_until_ns == oldest_ns + batching.max_queue_delay_ns
        assert now_ns < decision.wait_until_ns


@given(queues, batchings)
def test_every_queue_drains_once_due(queue, batching):
    now_ns = 10_000
    while queue:
        take = next_batch(queue, batching, now_ns).take
        assert take >= 1
        queue = queue[take:]
