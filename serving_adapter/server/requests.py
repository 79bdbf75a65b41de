"""A request, the batch it is put into, and the tensors of both. When a batch is formed is in `batching`."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple, ParamSpec, Protocol

import numpy as np

from serving_adapter.parity.groups import Member
from serving_adapter.server.workers.arena import Arena, Placed, place
from serving_adapter.tensors import TensorSpec

log = logging.getLogger(__name__)

P = ParamSpec("P")
Specs = Mapping[str, TensorSpec]


class Overloaded(Exception):
    """There is no room for a request, or for its answer; the text is one sentence for the client."""


class InputTensor(NamedTuple):
    data: memoryview | bytes
    shape: tuple[int, ...]  # batch dimension included


class OutputTensor(NamedTuple):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


class Answer(NamedTuple):
    """What a request gets."""

    outputs: list[OutputTensor]
    origin: str
    """Where it comes from: one of the four below."""


EXACT = "model"  # from the deployed model
RECONSTRUCTED, BACKUP, DEFAULT = "reconstructed", "backup", "default"  # approximate; the response says which


HoldsAnswer = Callable[[int], None]
"""Notes that a client has yet to read an answer of so many bytes; Overloaded if it may not have it."""


def hold_any(answer_bytes: int) -> None:
    """Of a client that reads what it gets."""


class Request:
    """One inference request, from its arrival to its answer."""

    __slots__ = (
        "accepts_approximation",
        "arrived_ns",
        "batch",
        "future",
        "hold_answer",
        "inputs",
        "level",
        "rows",
        "settled",
        "shape_key",
        "size_bytes",
        "wanted",
    )

    def __init__(
        self,
        inputs: Sequence[InputTensor],
        shape_key: Hashable,
        future: asyncio.Future[Answer],
        arrived_ns: int,
        accepts_approximation: bool = True,
        wanted: Collection[str] = (),
        hold_answer: HoldsAnswer = hold_any,
        level: int = 0,
    ) -> None:
        self.inputs = inputs
        self.rows = inputs[0].shape[0]
        self.size_bytes = sum([len(tensor.data) for tensor in inputs])
        self.shape_key = shape_key
        self.accepts_approximation = accepts_approximation
        self.wanted = wanted  # the names of the outputs that are asked for; empty for all
        self.hold_answer = hold_answer
        self.level = level  # of priority: 0 is served first
        self.arrived_ns = arrived_ns
        self.future = future
        self.batch: Batch | None = None  # set from its dispatch until it is settled
        self.settled = False  # answered or failed, and counted as such


class BatchListener(Protocol):
    """Hears what becomes of a batch: a resilience mode."""

    def batch_dispatched(self, batch: Batch) -> None:
        """A batch was handed to a worker for the first time."""

    def batch_answered(self, batch: Batch, outputs: Mapping[str, np.ndarray], service_ns: int) -> None:
        """The deployed model answered, first or late; `outputs` are views that do not last."""

    def batch_lost(self, batch: Batch) -> None:
        """A worker died with a batch, which runs again on another."""

    def batch_given_up(self, batch: Batch) -> None:
        """The deployed model will not answer: it refused the batch, or too many of its workers died."""


class Unprotected:
    """Does nothing about a batch beside running it."""

    def batch_dispatched(self, batch: Batch) -> None: ...

    def batch_answered(self, batch: Batch, outputs: Mapping[str, np.ndarray], service_ns: int) -> None: ...

    def batch_lost(self, batch: Batch) -> None: ...

    def batch_given_up(self, batch: Batch) -> None: ...


UNPROTECTED = Unprotected()


def tell(hear: Callable[P, None], *arguments: P.args, **keywords: P.kwargs) -> None:
    """Tells a resilience mode or a recording something. Its errors are no reason to fail a request."""
    try:
        hear(*arguments, **keywords)
    except Exception:
        log.exception("%s failed; requests are served all the same", getattr(hear, "__qualname__", hear))


class Batch:
    """Requests that run together, on one worker or (redundantly, or again) on several."""

    __slots__ = (
        "copies",
        "dispatched_ns",
        "is_split",
        "listener",
        "losses",
        "member",
        "node_losses",
        "requests",
        "rows",
        "whole",
    )

    def __init__(self, requests: list[Request], listener: BatchListener) -> None:
        self.requests, self.listener = requests, listener
        for request in requests:
            request.batch = self
        self.rows = sum(request.rows for request in requests)
        self.copies = 0  # how many run, or wait to be run again
        self.losses = 0  # how many workers ended with it
        self.node_losses = 0  # how many of them because their node did
        self.dispatched_ns = 0  # when it was dispatched for the first time
        self.is_split = False  # it does not run again: its requests do, each in a part of its own
        self.whole: Batch | None = None  # of which it is a part
        self.member: Member | None = None  # its place in a coding group

    @classmethod
    def part(cls, whole: Batch, request: Request) -> Batch:
        """One request of a batch, to be run alone; no mode adds copies of what may be harmful."""
        part = cls([request], UNPROTECTED)
        part.whole, part.dispatched_ns = whole, whole.dispatched_ns
        part.losses, part.node_losses = whole.losses, whole.node_losses
        return part

    def is_wanted(self) -> bool:
        """Whether somebody waits for its run."""
        return not self.is_split and not all(request.future.done() for request in self.requests)

    def may_be_approximated(self) -> bool:
        """Whether somebody waits who would take an approximate answer."""
        return any(request.accepts_approximation and not request.future.done() for request in self.requests)

    def parts(self, specs: Specs) -> dict[str, list[np.ndarray]]:
        """Its inputs by name, (rows, *item) of each request. Coding takes models of one shape alone."""
        return {
            spec.name: [spec.codec.received(*request.inputs[i]) for request in self.requests]
            for i, spec in enumerate(specs.values())
        }

    def write(self, specs: Specs, arena: Arena) -> list[Placed]:
        """Puts its inputs into a worker's arena, padded to one shape."""
        inputs = list(zip(*(request.inputs for request in self.requests), strict=True))
        tensors = []
        for spec, parts in zip(specs.values(), inputs, strict=True):
            shape = (self.rows, *reduce(_larger, [part.shape[1:] for part in parts]))
            tensors.append((spec.name, spec.datatype, shape, spec.codec.batch_bytes(shape, parts)))
        placed, needed_bytes = place(tensors)
        arena.ensure_for_batch(needed_bytes)
        for spec, parts, tensor in zip(specs.values(), inputs, placed, strict=True):
            spec.codec.stack(parts, arena.bytes_of(tensor), tensor.shape, spec.filling)
        return placed


def fitting(requests: Iterable[Request], specs: Specs, most_bytes: int) -> int:
    """How many of the first requests make a batch of at most so many bytes, as padded; at least one."""
    itemsizes = [spec.codec.itemsize for spec in specs.values()]
    unpadded = [i for i, itemsize in enumerate(itemsizes) if not itemsize]
    count, rows, row_bytes, unpadded_bytes = 0, 0, 0, 0
    largest: list[tuple[int, ...]] = []
    for request in requests:
        shapes = [tensor.shape[1:] for tensor in request.inputs]
        if shapes != largest:
            largest = [_larger(*pair) for pair in zip(largest or shapes, shapes, strict=True)]
            row_bytes = sum(n * math.prod(shape) for n, shape in zip(itemsizes, largest, strict=True))
        rows += request.rows
        if unpadded:
            unpadded_bytes += sum(len(request.inputs[i].data) for i in unpadded)
        if count and rows * row_bytes + unpadded_bytes > most_bytes:
            break
        count += 1
    return count


def _larger(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """What both shapes are padded to."""
    return tuple(map(max, shape, other))


def joined(parts: Mapping[str, Sequence[np.ndarray]]) -> dict[str, np.ndarray]:
    """The inputs of a batch by name, (rows, *item)."""
    return {name: part[0] if len(part) == 1 else np.concatenate(part) for name, part in parts.items()}


def cut_bytes(
    outputs: Mapping[str, np.ndarray], specs: Specs, first_row: int, rows: int, wanted: Collection[str] = ()
) -> int:
    """The size of what `cut` gives."""
    return sum(
        specs[name].codec.cut_bytes(array[first_row : first_row + rows])
        for name, array in outputs.items()
        if not wanted or name in wanted
    )


def cut(
    outputs: Mapping[str, np.ndarray], specs: Specs, first_row: int, rows: int, wanted: Collection[str] = ()
) -> list[OutputTensor]:
    """The rows of one request out of a batch's outputs, in memory that lasts."""
    return [
        OutputTensor(
            name,
            specs[name].datatype,
            (rows, *array.shape[1:]),
            specs[name].codec.cut(array, first_row, rows),
        )
        for name, array in outputs.items()
        if not wanted or name in wanted
    ]
