"""The resilience mode `parity` (ParM): batches are coded together, and late answers are reconstructed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np

from serving_adapter.parity.coding import Encoder
from serving_adapter.parity.groups import CodingGroup, CodingGroups, Member
from serving_adapter.server.redundancy.lane import Lane
from serving_adapter.server.redundancy.modes import NS_PER_US, Host, Lateness, ResilienceMode, call_after
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.requests import RECONSTRUCTED, Batch
from serving_adapter.server.workers.arena import Arena, Placed, place


class Parity(ResilienceMode):
    """Codes k consecutive batches together and reconstructs late answers (sections 4.1, 4.2 and 7).

    An answer counts as unavailable when its batch is late or its worker has died. It is reconstructed as soon
    as the other answers of its group and enough parity answers are there. With a `late_percentile` of 0, the
    paper's first rule, every batch is late at once. Then many answers are reconstructed that would have come
    a moment later.

    A parity query is encoded when a parity worker is free for it, straight into that worker's memory. If its
    group has all answers by then, it is not encoded at all.
    """

    def __init__(
        self, settings: ResilienceSettings, host: Host, lanes: Sequence[Lane], encoder: Encoder
    ) -> None:
        super().__init__(settings)
        self._host, self.lanes, self._encoder = host, list(lanes), encoder
        self._groups = CodingGroups(settings.k, settings.r)
        self._lateness = Lateness(settings)
        self._batches: dict[Member, Batch] = {}  # of the members whose exact answer is out
        self._flush_timer: asyncio.TimerHandle | None = None
        self._late_timers: dict[CodingGroup, asyncio.TimerHandle] = {}

    # --- what happens to batches -----------------------------------------------------------------------

    def batch_dispatched(self, batch: Batch) -> None:
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
            self._flush_timer = call_after(NS_PER_US * self.settings.group_timeout_us, self._flush)

    def batch_answered(self, batch: Batch, outputs: Mapping[str, np.ndarray], service_ns: int) -> None:
        self._lateness.observe(service_ns)
        member = batch.member
        if member is None or member.outputs is not None:
            return
        self._groups.member_answered(member, {name: array.copy() for name, array in outputs.items()})
        self._batches.pop(member, None)
        if member.group is not None:
            self._reconstruct(member.group)
            if member.group.is_full and not member.group.missing:
                member.group.dissolve()

    def batch_lost(self, batch: Batch) -> None:
        if batch.member is not None and batch.member.group is not None:
            self._reconstruct(batch.member.group)

    def batch_given_up(self, batch: Batch) -> None:
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
        arena.ensure_for_batch(needed_bytes)
        for tensor in placed:
            group.encode(row, tensor.name, self._encoder, arena.array(tensor))
        return placed

    def parity_answered(self, group: CodingGroup, row: int, outputs: dict[str, np.ndarray]) -> None:
        group.parities[row] = {name: array.copy() for name, array in outputs.items()}
        self._reconstruct(group)

    def _reconstruct(self, group: CodingGroup) -> None:
        """Answers the group's unavailable batches, if that is possible now and anybody waits for them.

        A group may hold requests of several clients. A query of one client may be no number, or so large that
        it swallows the rest. What then decodes to no numbers, or to nothing, is left to the exact answers.
        """
        timer = self._late_timers.pop(group, None)
        if timer is not None:
            timer.cancel()
        if not group.is_decodable or not self.needs_parity(group):
            return
        now_ns = self._host.surroundings.now_ns()
        due = {member: self._unavailable_ns(member) for member in group.missing if member in self._batches}
        if any(due_ns <= now_ns for due_ns in due.values()):
            for member, outputs in group.reconstruct().items():
                if member in due and due[member] <= now_ns and _are_numbers(outputs):
                    self._host.answers.approximate_batch(self._batches[member], outputs, RECONSTRUCTED)
        later = [due_ns for due_ns in due.values() if due_ns > now_ns]
        if later:
            self._late_timers[group] = call_after(min(later) - now_ns, self._reconstruct, group)

    def _unavailable_ns(self, member: Member) -> int:
        """The time from which on a missing answer counts as unavailable."""
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

    def lane_answered(self, outputs: dict[str, np.ndarray]) -> None:
        self._parity.parity_answered(self._group, self._row, outputs)


def _are_numbers(outputs: Mapping[str, np.ndarray]) -> bool:
    return all(np.isfinite(array).all() for array in outputs.values())
