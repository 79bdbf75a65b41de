"""The resilience mode `parity` (ParM): batches are coded together, and late answers are reconstructed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from serving_adapter.parity.coding import Encoder
from serving_adapter.parity.groups import CodingGroup, CodingGroups, Member, Tensors
from serving_adapter.server.redundancy.lane import BatchInputs, Lane
from serving_adapter.server.redundancy.modes import NS_PER_US, Host, Lateness, ResilienceMode, call_after
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.requests import RECONSTRUCTED, Batch, joined
from serving_adapter.server.workers.arena import Arena, lasting, place
from serving_adapter.server.workers.aside import MOST_BYTES_ON_LOOP, in_a_thread
from serving_adapter.server.workers.messages import ModelReference

log = logging.getLogger(__name__)


class Parity(ResilienceMode):
    """Codes k consecutive batches together and reconstructs late answers (sections 4.1, 4.2 and 7).

    An answer counts as unavailable when its batch is late or its worker has died. It is reconstructed as soon
    as the other answers of its group and enough parity answers are there. With a `late_percentile` of 0, the
    paper's first rule, every batch is late at once. Then many answers are reconstructed that would have come
    a moment later.

    A parity query is encoded when a worker is free for it, straight into that worker's memory. If its
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
        self._decoding: set[CodingGroup] = set()  # in threads

    @property
    def shared_models(self) -> list[ModelReference]:
        return [lane.model for lane in self.lanes] if self.settings.overflow else []

    # --- what happens to batches -----------------------------------------------------------------------

    def batch_dispatched(self, batch: Batch) -> None:
        """Grouping and encoding wait until everything that can be dispatched is."""
        asyncio.get_running_loop().call_soon(self._group, batch)

    def _group(self, batch: Batch) -> None:
        if not batch.copies:  # answered or lost meanwhile
            return
        member = Member(batch.rows, partial(joined, batch.parts(self._host.inputs)))
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
        self._groups.member_answered(member, lasting(outputs))
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

    def encode(self, group: CodingGroup, row: int, arena: Arena) -> BatchInputs:
        specs = self._host.inputs.values()
        shapes = [(group.rows, *spec.shape) for spec in specs]
        placed, needed_bytes = place(
            (spec.name, spec.datatype, shape, spec.codec.size_bytes(shape))
            for spec, shape in zip(specs, shapes, strict=True)
        )
        arena.ensure_for_batch(needed_bytes)
        parity_query = {tensor.name: arena.array(tensor) for tensor in placed}
        encode = partial(_encode, group, row, self._encoder, parity_query)
        if group.k * needed_bytes > MOST_BYTES_ON_LOOP:
            return BatchInputs(placed, encode)
        encode()
        return BatchInputs(placed)

    def parity_answered(self, group: CodingGroup, row: int, outputs: dict[str, np.ndarray]) -> None:
        group.parities[row] = lasting(outputs)
        self._reconstruct(group)

    def _reconstruct(self, group: CodingGroup) -> None:
        """Answers the group's unavailable batches, if that is possible now and anybody waits for them.

        A group may hold requests of several clients. A query of one client may be no number, or so large that
        it swallows the rest. What then decodes to no numbers, or to nothing, is left to the exact answers.
        """
        timer = self._late_timers.pop(group, None)
        if timer is not None:
            timer.cancel()
        if group in self._decoding or not group.is_decodable or not self.needs_parity(group):
            return
        now_ns = self._host.surroundings.now_ns()
        is_due = any(due_ns <= now_ns for due_ns in self._unavailable_ns(group).values())
        if is_due and self._bytes_to_decode(group) > MOST_BYTES_ON_LOOP:
            decoding = in_a_thread(partial(_decode, group))
            if decoding is not None:
                self._decoding.add(group)
                decoding.add_done_callback(partial(self._was_decoded, group))
                return
        if is_due:
            self._approximate(group, _decode(group))
        self._reconstruct_later(group)

    def _was_decoded(self, group: CodingGroup, decoding: asyncio.Future[dict[Member, Tensors]]) -> None:
        self._decoding.discard(group)
        if decoding.cancelled():
            return
        if decoding.exception() is not None:
            log.warning("answers could not be reconstructed: %r", decoding.exception())
            return
        self._approximate(group, decoding.result())
        self._reconstruct_later(group)

    def _approximate(self, group: CodingGroup, decoded: Mapping[Member, Tensors]) -> None:
        """Answers what is unavailable, of all that could be decoded."""
        now_ns = self._host.surroundings.now_ns()
        for member, due_ns in self._unavailable_ns(group).items():
            if member in decoded and due_ns <= now_ns:
                self._host.answers.approximate_batch(self._batches[member], decoded[member], RECONSTRUCTED)

    def _reconstruct_later(self, group: CodingGroup) -> None:
        """Looks again when the next of the missing answers becomes unavailable."""
        now_ns = self._host.surroundings.now_ns()
        later = [due_ns for due_ns in self._unavailable_ns(group).values() if due_ns > now_ns]
        if later:
            self._late_timers[group] = call_after(min(later) - now_ns, self._reconstruct, group)

    def _unavailable_ns(self, group: CodingGroup) -> dict[Member, int]:
        """The time from which on each answer that is out counts as unavailable."""
        batches = {member: self._batches[member] for member in group.missing if member in self._batches}
        return {
            member: 0 if batch.losses else batch.dispatched_ns + self._lateness.late_ns
            for member, batch in batches.items()
        }

    def _bytes_to_decode(self, group: CodingGroup) -> int:
        """Of the queries, whose sizes are compared, and the outputs."""
        query_bytes = sum(spec.dtype.itemsize * math.prod(spec.shape) for spec in self._host.inputs.values())
        parity = next(parity for parity in group.parities if parity is not None)
        return group.k * (group.rows * query_bytes + sum(array.nbytes for array in parity.values()))

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

    def write(self, arena: Arena) -> BatchInputs:
        return self._parity.encode(self._group, self._row, arena)

    def lane_answered(self, outputs: dict[str, np.ndarray]) -> None:
        self._parity.parity_answered(self._group, self._row, outputs)


def _encode(group: CodingGroup, row: int, encoder: Encoder, parity_query: Tensors) -> None:
    for name, array in parity_query.items():
        group.encode(row, name, encoder, array)


def _decode(group: CodingGroup) -> dict[Member, Tensors]:
    return {member: outputs for member, outputs in group.reconstruct().items() if _are_numbers(outputs)}


def _are_numbers(outputs: Mapping[str, np.ndarray]) -> bool:
    return all(np.isfinite(array).all() for array in outputs.values())
