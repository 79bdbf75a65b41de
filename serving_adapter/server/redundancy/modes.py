"""The resilience modes: what is done about a batch beside running it once.

Each mode hears of every batch when it is dispatched, answered or lost, and may run it again or answer it
approximately. The first answer counts; a request that refuses approximation waits for the exact one.
`ServedModel` is the `Host`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from serving_adapter.parity.coding import Encoder
from serving_adapter.parity.groups import CodingGroup, CodingGroups, Member
from serving_adapter.server.batches import BACKUP, DEFAULT, RECONSTRUCTED, Batch, Request
from serving_adapter.server.redundancy.lane import Lane, LaneHost
from serving_adapter.server.redundancy.settings import Resilience
from serving_adapter.server.workers.arena import Arena, Placed, place
from serving_adapter.server.workers.pool import Parallelism

SERVICE_TIMES = 1000  # that the percentile is taken of
REFRESH = 50  # service times between two computations of it
NS_PER_US, NS_PER_MS = 1000, 1_000_000
FIRST_LATE_NS = 1_000_000_000  # from when on a batch is late until so many service times are known


class Host(LaneHost, Protocol):
    """What a mode needs of the model it protects."""

    def run_again(self, batch: Batch) -> None:
        """Queues another copy of a batch before what waits."""

    def approximate(self, batch: Batch, outputs: Mapping[str, np.ndarray], origin: str) -> None:
        """Answers those requests of a batch that take an approximation and have no answer yet."""

    def approximate_request(
        self, request: Request, outputs: Mapping[str, np.ndarray], origin: str
    ) -> None: ...


class Redundancy:
    """The modes `none` and `equal-resources`: a batch runs once; the latter has more workers for it."""

    def __init__(self, settings: Resilience) -> None:
        self.settings = settings
        self.lanes: list[Lane] = []

    def deployed_instances(self, instances: int) -> int:
        """Workers of the deployed model; redundant ones are the lanes', where there are lanes."""
        return instances if self.lanes else instances + self.settings.redundant(instances)

    async def reshape(self, parallelism: Parallelism) -> None:
        """Brings the redundant lanes' workers in line with the deployed ones."""
        redundant = self.settings.redundant(parallelism.instances)
        for lane in self.lanes:
            await lane.reshape(
                Parallelism(redundant, parallelism.intra_op_threads, parallelism.inter_op_threads)
            )

    def dispatch(self) -> None:
        """Gives free workers of the lanes what waits there, now that no deployed batch needs them."""
        for lane in self.lanes:
            lane.dispatch()

    @property
    def idle_lane(self) -> Lane | None:
        """One with a worker that may run a batch of the deployed model."""
        return next((lane for lane in self.lanes if lane.pool.idle), None) if self.settings.overflow else None

    def arrived(self, request: Request) -> None: ...

    def dispatched(self, batch: Batch) -> None:
        """A batch was handed to a worker for the first time."""

    def answered(self, batch: Batch, outputs: Mapping[str, np.ndarray], service_ns: int) -> None:
        """The deployed model answered, first or late; `outputs` are views that do not last."""

    def lost(self, batch: Batch) -> None:
        """A worker died with a batch, which runs again on another."""

    def forget(self, batch: Batch) -> None:
        """No answer of the deployed model will come: it refused the batch, or its workers ended."""

    def stop(self) -> None:
        """No batch comes any more; those that are out may still be answered."""


class Replication(Redundancy):
    """Every batch is queued twice; the copy of a batch that has its answer does not run."""

    def __init__(self, settings: Resilience, host: Host) -> None:
        super().__init__(settings)
        self._host = host

    def dispatched(self, batch: Batch) -> None:
        self._host.run_again(batch)


class Lateness:
    """From when on a batch is late: a set time, or a percentile of the recent service times."""

    def __init__(self, settings: Resilience) -> None:
        self._percentile = 0 if settings.late_after_us else settings.late_percentile
        self.late_ns = FIRST_LATE_NS if self._percentile else NS_PER_US * settings.late_after_us
        """After its dispatch."""
        self._service_ns: deque[int] = deque(maxlen=SERVICE_TIMES)
        self._seen = 0

    def observe(self, service_ns: int) -> None:
        self._service_ns.append(service_ns)
        self._seen += 1
        if self._percentile and self._seen % REFRESH == 0:
            self.late_ns = int(np.percentile(self._service_ns, self._percentile))


class Hedging(Redundancy):
    """A batch that is late runs again elsewhere."""

    def __init__(self, settings: Resilience, host: Host) -> None:
        super().__init__(settings)
        self._host = host
        self._lateness = Lateness(settings)
        self._timers: dict[Batch, asyncio.TimerHandle] = {}

    def dispatched(self, batch: Batch) -> None:
        self._timers[batch] = _later(self._lateness.late_ns, self._hedge, batch)

    def _hedge(self, batch: Batch) -> None:
        del self._timers[batch]
        if batch.is_wanted():
            self._host.run_again(batch)

    def answered(self, batch: Batch, outputs: Mapping[str, np.ndarray], service_ns: int) -> None:
        self._lateness.observe(service_ns)
        self.forget(batch)

    def forget(self, batch: Batch) -> None:
        timer = self._timers.pop(batch, None)
        if timer is not None:
            timer.cancel()


class DefaultAnswer(Redundancy):
    """A request that has no answer `late_after_us` after its arrival gets the default one.

    `default` has one row of each output (as Clipper's default predictions).
    """

    def __init__(self, settings: Resilience, host: Host, default: Mapping[str, np.ndarray]) -> None:
        super().__init__(settings)
        self._host, self._default = host, default

    def arrived(self, request: Request) -> None:
        if request.accepts_approximation:
            timer = _later(NS_PER_US * self.settings.late_after_us, self._answer, request)
            request.future.add_done_callback(lambda _: timer.cancel())

    def _answer(self, request: Request) -> None:
        if not request.future.done():
            outputs = {name: np.repeat(row, request.rows, axis=0) for name, row in self._default.items()}
            self._host.approximate_request(request, outputs, DEFAULT)


class ApproximateBackup(Redundancy):
    """Every batch also runs on a cheaper model of its own lane (section 6.2.6)."""

    def __init__(self, settings: Resilience, host: Host, lane: Lane) -> None:
        super().__init__(settings)
        self._host, self.lanes = host, [lane]

    def dispatched(self, batch: Batch) -> None:
        self.lanes[0].put(BackupCopy(self._host, batch))


class BackupCopy:
    """A batch as the backup model's lane runs it."""

    def __init__(self, host: Host, batch: Batch) -> None:
        self._host, self._batch = host, batch

    def is_wanted(self) -> bool:
        return self._batch.may_be_approximated()

    def write(self, arena: Arena) -> list[Placed]:
        return self._batch.write(self._host.inputs, arena)

    def answered(self, outputs: dict[str, np.ndarray]) -> None:
        self._host.approximate(self._batch, outputs, BACKUP)


class Parity(Redundancy):
    """Coding groups of k consecutive batches, r parity lanes, and reconstruction (sections 4.1, 4.2 and 7).

    An answer is unavailable when its group's others and the parity are there before it and its batch is late,
    or its worker is known to be dead. With a `late_percentile` of 0, the paper's first rule, every batch is
    late at once, and many answers are reconstructed that would have come a moment later.

    A parity query is encoded when a parity worker is free for it, straight into that worker's memory, and not
    at all if its group has all answers by then.
    """

    def __init__(self, settings: Resilience, host: Host, lanes: Sequence[Lane], encoder: Encoder) -> None:
        super().__init__(settings)
        self._host, self.lanes, self._encoder = host, list(lanes), encoder
        self._groups = CodingGroups(settings.k, settings.r)
        self._lateness = Lateness(settings)
        self._batches: dict[Member, Batch] = {}  # of members whose exact answer is still out
        self._flush_timer: asyncio.TimerHandle | None = None
        self._late_timers: dict[CodingGroup, asyncio.TimerHandle] = {}

    # --- what happens to batches -----------------------------------------------------------------------

    def dispatched(self, batch: Batch) -> None:
        """Grouping and encoding wait until everything that can be dispatched is."""
        asyncio.get_running_loop().call_soon(self._group, batch)

    def _group(self, batch: Batch) -> None:
        if not batch.copies:  # answered or lost meanwhile
            return
        member = Member(batch.queries(self._host.inputs))
        batch.member = member
        self._batches[member] = batch
        group = self._groups.add(member)
        if group is not None:
            self._cancel_flush()
            self._protect(group)
        elif self._flush_timer is None and self.settings.group_timeout_us:
            self._flush_timer = _later(NS_PER_US * self.settings.group_timeout_us, self._flush)

    def answered(self, batch: Batch, outputs: Mapping[str, np.ndarray], service_ns: int) -> None:
        self._lateness.observe(service_ns)
        member = batch.member
        if member is None or member.outputs is not None:
            return
        self._groups.answered(member, {name: array.copy() for name, array in outputs.items()})
        self._batches.pop(member, None)
        if member.group is not None:
            self._reconstruct(member.group)
            if member.group.is_full and not member.group.missing:
                member.group.dissolve()

    def lost(self, batch: Batch) -> None:
        if batch.member is not None and batch.member.group is not None:
            self._reconstruct(batch.member.group)

    def forget(self, batch: Batch) -> None:
        if batch.member is None:
            return
        self._batches.pop(batch.member, None)
        group = batch.member.group
        if group is not None and group.is_full and not any(m in self._batches for m in group.missing):
            group.dissolve()

    # --- groups ----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._flush_timer = None
        group = self._groups.flush()
        if group is not None:
            self._protect(group)

    def _protect(self, group: CodingGroup) -> None:
        """Has the group's parity batches run."""
        for row, lane in enumerate(self.lanes):
            lane.put(ParityBatch(self, group, row))

    def needs_parity(self, group: CodingGroup) -> bool:
        batches = (self._batches.get(member) for member in group.missing)
        return any(batch is not None and batch.may_be_approximated() for batch in batches)

    def encode(self, group: CodingGroup, row: int, arena: Arena) -> list[Placed]:
        specs = self._host.inputs.values()
        placed, needed_bytes = place((s.name, s.datatype, (group.rows, *s.shape)) for s in specs)
        arena.ensure(needed_bytes)
        for tensor in placed:
            group.encode(row, tensor.name, self._encoder, arena.array(tensor))
        return placed

    def parity_answered(self, group: CodingGroup, row: int, outputs: dict[str, np.ndarray]) -> None:
        group.parities[row] = {name: array.copy() for name, array in outputs.items()}
        self._reconstruct(group)

    def _reconstruct(self, group: CodingGroup) -> None:
        """Answers the group's unavailable batches, if that is possible now and anybody waits for them.

        A group may be of several clients' requests, so one that decodes to no numbers (a query of another
        client was none, or was so large that it swallowed the rest) is left to the exact answers.
        """
        timer = self._late_timers.pop(group, None)
        if timer is not None:
            timer.cancel()
        if not group.is_decodable or not self.needs_parity(group):
            return
        now_ns = time.monotonic_ns()
        due = {member: self._unavailable_ns(member) for member in group.missing if member in self._batches}
        if any(due_ns <= now_ns for due_ns in due.values()):
            for member, outputs in group.reconstruct().items():
                if member in due and due[member] <= now_ns and _are_numbers(outputs):
                    self._host.approximate(self._batches[member], outputs, RECONSTRUCTED)
        later = [due_ns for due_ns in due.values() if due_ns > now_ns]
        if later:
            self._late_timers[group] = _later(min(later) - now_ns, self._reconstruct, group)

    def _unavailable_ns(self, member: Member) -> int:
        """From when on a missing answer counts as unavailable."""
        batch = self._batches[member]
        return 0 if batch.losses else batch.dispatched_ns + self._lateness.late_ns

    def _cancel_flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def stop(self) -> None:
        """What is out may still be reconstructed; an open group is filled up now, since nobody else will."""
        self._cancel_flush()
        self._flush()


class ParityBatch:
    """A coding group's parity batch for one parity model, as its lane runs it."""

    def __init__(self, parity: Parity, group: CodingGroup, row: int) -> None:
        self._parity, self._group, self._row = parity, group, row

    def is_wanted(self) -> bool:
        return self._parity.needs_parity(self._group)

    def write(self, arena: Arena) -> list[Placed]:
        return self._parity.encode(self._group, self._row, arena)

    def answered(self, outputs: dict[str, np.ndarray]) -> None:
        self._parity.parity_answered(self._group, self._row, outputs)


def _later(delay_ns: int, call: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
    """Never early: the event loop's clock ticks in milliseconds."""
    return asyncio.get_running_loop().call_later(math.ceil(delay_ns / NS_PER_MS) * 1e-3, call, *arguments)


def _are_numbers(outputs: Mapping[str, np.ndarray]) -> bool:
    return all(np.isfinite(array).all() for array in outputs.values())
