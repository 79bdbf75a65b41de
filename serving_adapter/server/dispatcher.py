"""The way there: from the queue into a batch, and from there to a worker that is free.

Only the pure rule in `batching` decides what makes a batch and when. The way back is in `answers`.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from serving_adapter.server.answers import NOBODY_WAITS, Answers, Execution
from serving_adapter.server.configuration import Knobs
from serving_adapter.server.queue.batching import next_batch
from serving_adapter.server.queue.in_flight import InFlight
from serving_adapter.server.redundancy.lane import DEPLOYED_MODEL_INDEX, Slot
from serving_adapter.server.redundancy.modes import ResilienceMode
from serving_adapter.server.requests import Batch, Specs, fitting, tell
from serving_adapter.server.statistics.model_statistics import ModelStatistics
from serving_adapter.server.surroundings import Clock
from serving_adapter.server.workers.handles import WorkerHandle
from serving_adapter.server.workers.messages import ModelReference
from serving_adapter.server.workers.pool import WorkerPool

MAX_BATCH_BYTES = 64 << 20
"""Of the inputs of several requests, padded: the event loop copies so many in some 20 ms."""


class Dispatcher:
    """Gives the free workers of one model what there is to do."""

    def __init__(
        self,
        pool: WorkerPool,
        in_flight: InFlight,
        answers: Answers,
        inputs: Specs,
        statistics: ModelStatistics,
        now_ns: Clock,
    ) -> None:
        self._pool, self._in_flight, self._answers = pool, in_flight, answers
        self._inputs, self._statistics, self._now_ns = inputs, statistics, now_ns
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def put_in_force(self, knobs: Knobs, mode: ResilienceMode) -> None:
        """From now on batches are formed, run and protected so."""
        self._mode, self._batching = mode, knobs.batching
        self._instances, self._intra_op_threads = knobs.instances, knobs.intra_op_threads

    def dispatch(self) -> None:
        """Gives free instances what there is to do."""
        while (slot := self._free_slot()) is not None:
            if self._in_flight.again:
                self._run_copy(self._in_flight.again.popleft(), slot)
                continue
            decision = next_batch(self._in_flight.queue, self._batching, self._now_ns())
            if not decision.take:
                if decision.wait_until_ns is not None:
                    self._look_again_at(decision.wait_until_ns)
                break
            batch = Batch(self._in_flight.take(self._fitting(decision.take)), self._mode)
            batch.copies += 1
            if self._run(batch, slot):
                tell(batch.listener.batch_dispatched, batch)
        tell(self._mode.dispatch)

    def run_again(self, batch: Batch) -> None:
        """Has another copy of a batch run before what waits."""
        self._in_flight.run_again(batch)
        self.dispatch()

    def slot_to_lend(self, model: ModelReference) -> Slot | None:
        """A worker of the deployed model's own for a batch of this one, where no batch waits for it."""
        if model not in self._mode.shared_models or not self._has_idle_worker or self._in_flight.again:
            return None
        if next_batch(self._in_flight.queue, self._batching, self._now_ns()).take:
            return None
        if not self._pool.next_holds(model):
            return None
        return Slot(self._pool, self._pool.index_of(model))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fitting(self, take: int) -> int:
        """So many of the first requests that copying them keeps nobody waiting."""
        if take == 1:
            return 1
        return fitting(islice(self._in_flight.queue, take), self._inputs, MAX_BATCH_BYTES)

    @property
    def _has_idle_worker(self) -> bool:
        return bool(self._pool.idle) and self._pool.busy < self._mode.deployed_instances(self._instances)

    def _free_slot(self) -> Slot | None:
        """An idle worker of the deployed model's own, or of a lane that may help out.

        Lanes do not help to form batches of several requests. These would be small ones, since others still
        come while all workers are busy, and the parity queries would wait behind them. A batch that runs
        again is formed already.
        """
        if self._has_idle_worker:
            return Slot(self._pool, 0)
        if self._batching.max_batch_size > 1 and not self._in_flight.again:
            return None
        lane = self._mode.idle_lane
        return None if lane is None else Slot(lane.pool, DEPLOYED_MODEL_INDEX)

    def _run_copy(self, batch: Batch, slot: Slot) -> None:
        if batch.is_wanted():
            self._statistics.copies_count += self._run(batch, slot)
            return
        batch.copies -= 1
        if not batch.copies:
            self._answers.give_up(batch, NOBODY_WAITS)

    def _run(self, batch: Batch, slot: Slot) -> bool:
        """Hands a batch to an idle worker; False, its requests failed, if it does not fit in memory."""
        worker = self._take_idle(slot.pool)
        try:
            placed = batch.write(self._inputs, worker.inputs)
        except Exception as error:  # no memory, most likely; whatever it is, the worker is still there
            slot.pool.idle.append(worker)
            batch.copies -= 1
            if not batch.copies:
                sentence = f"the batch does not fit in shared memory ({error!r}); send smaller requests"
                self._answers.failed(batch, sentence)
            return False
        now_ns = self._now_ns()
        busy_ns = self._in_flight.started(now_ns)
        execution = Execution(self._answers, batch, self._in_flight.running, now_ns, busy_ns, worker.node)
        batch.dispatched_ns = batch.dispatched_ns or execution.dispatched_ns
        slot.pool.run(worker, execution, placed, self._intra_op_threads, slot.model)
        return True

    def _take_idle(self, pool: WorkerPool) -> WorkerHandle:
        """The last one, since its caches are warm; on a cluster one of the node that is through first."""
        if pool.idle[-1].node:
            return pool.idle.pop(self._statistics.nodes.best(pool.idle, pool.workers))
        return pool.idle.pop()

    def _look_again_at(self, when_ns: int) -> None:
        if self._timer is not None and not self._timer.cancelled() and self._timer_ns == when_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, (when_ns - self._now_ns()) * 1e-9)
        self._timer_ns = when_ns
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.dispatch()
