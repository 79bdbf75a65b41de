"""The typed messages between the front, a zygote and its workers, and their wire form.

    front -> zygote   BuildModels, then any number of ForkWorker and SignalWorker
    zygote -> front   ModelDescription or BuildError, then a Forked for every ForkWorker
    worker -> front   WorkerReady or BuildError, then a BatchOutputs or BatchError for every batch
    both, on a cluster  ClusterReport and NodeEnded, too
    front -> worker   RunBatch

Each message is one JSON object in a packet of `serving_adapter.messages`. Tensors travel through arenas.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from serving_adapter import messages as packets
from serving_adapter.server.statistics.model_statistics import ComputeTimes
from serving_adapter.server.workers.arena import Placed
from serving_adapter.server.workers.parallelism import ANYWHERE, NodePlacement, UnitMember
from serving_adapter.server.workers.tenant import Tenant
from serving_adapter.tensors import TensorSpec

MAX_NODES = 256  # of one message

Wire = Mapping[str, Any]
"""A message as a JSON object."""


class Message(Protocol):
    def to_wire(self) -> dict[str, Any]: ...


M = TypeVar("M")


def send(sock: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    packets.send(sock, message.to_wire(), descriptors)


def receive(sock: socket.socket, parse: Callable[[Wire], M]) -> M | None:
    """The next message as `parse` reads it; None when the other side is gone."""
    wire = packets.receive(sock)
    return None if wire is None else parse(wire)


# --- building a model ------------------------------------------------------------------------------


class ModelReference(NamedTuple):
    """What a zygote builds a model from; the options are pairs, so that references can be keys."""

    reference: str
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BuildModels:
    """Has a zygote build models; it describes the first one."""

    models: tuple[ModelReference, ...]
    device: str
    store_patience_s: float  # that it may wait for the model store, in all

    def to_wire(self) -> dict[str, Any]:
        return {"models": self.models, "device": self.device, "store_patience_s": self.store_patience_s}

    @classmethod
    def from_wire(cls, wire: Wire) -> BuildModels:
        models = (
            ModelReference(reference, tuple((key, value) for key, value in options))
            for reference, options in wire["models"]
        )
        return cls(tuple(models), wire["device"], wire["store_patience_s"])


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What the front must know of a model; output dimensions that follow a variable input are -1."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    has_parallel_branches: bool
    max_rows: int | None = None  # of a batch
    parts: int = 1  # the nodes that run a batch together must divide it; 1 where none can

    def may_be_of_one_with(self, other: ModelDescription) -> bool:
        """Whether one model may be described so and as the other.

        Sizes of outputs are told by examples. Where a model draws them, examples may tell another each time.
        """
        return (
            replace(self, outputs=()) == replace(other, outputs=())
            and len(self.outputs) == len(other.outputs)
            and all(map(TensorSpec.may_be_one_with, self.outputs, other.outputs))
        )

    def to_wire(self) -> dict[str, Any]:
        return {
            "inputs": [vars(spec) for spec in self.inputs],
            "outputs": [vars(spec) for spec in self.outputs],
            "has_parallel_branches": self.has_parallel_branches,
            "max_rows": self.max_rows,
            "parts": self.parts,
        }

    @classmethod
    def from_wire(cls, wire: Wire) -> ModelDescription:
        return cls(
            _specs(wire["inputs"]),
            _specs(wire["outputs"]),
            wire["has_parallel_branches"],
            wire["max_rows"],
            wire["parts"],
        )


@dataclass(frozen=True, slots=True)
class BuildError:
    """Why a model could not be built or warmed up, in one sentence for the user."""

    error: str

    def to_wire(self) -> dict[str, Any]:
        return {"error": self.error}


BuildReply = ModelDescription | BuildError


def parse_build_reply(wire: Wire) -> BuildReply:
    return BuildError(wire["error"]) if "error" in wire else ModelDescription.from_wire(wire)


# --- forking and signalling workers ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForkWorker:
    """Has a zygote fork a worker with these thread pools; its channel and arenas ride along.

    So does the socket at which the first member of a unit listens for the others. The answer is a Forked.
    """

    inter_op_threads: int
    intra_op_threads: int
    instances: int = 1  # that there are to be; a cluster needs a processor for each
    placement: NodePlacement = ANYWHERE  # there
    member: UnitMember | None = None  # what it is of a unit

    def to_wire(self) -> dict[str, Any]:
        return {
            "inter_op_threads": self.inter_op_threads,
            "intra_op_threads": self.intra_op_threads,
            "instances": self.instances,
            "placement": self.placement,
            "member": self.member,
        }


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A new worker has warmed up and waits for batches."""

    pid: int

    def to_wire(self) -> dict[str, Any]:
        return {"pid": self.pid}

    @classmethod
    def from_wire(cls, wire: Wire) -> WorkerReady:
        return cls(wire["pid"])


def parse_worker_start(wire: Wire) -> WorkerReady | BuildError:
    if "node_ended" in wire:
        return BuildError("its node ended while it warmed up")
    return BuildError(wire["error"]) if "error" in wire else WorkerReady.from_wire(wire)


@dataclass(frozen=True, slots=True)
class Forked:
    """A zygote has forked a worker, whose pidfd rides along if there are such; or it could not."""

    pid: int
    error: str = ""
    node: str = ""  # of a cluster; empty for this machine
    more_nodes: tuple[str, ...] = ()  # of the other members, where it is a unit

    def to_wire(self) -> dict[str, Any]:
        return {"pid": self.pid, "error": self.error, "node": self.node, "more_nodes": self.more_nodes}

    @classmethod
    def from_wire(cls, wire: Wire) -> Forked:
        return cls(wire["pid"], wire["error"], wire["node"], tuple(wire["more_nodes"]))


class WorkerSignal(StrEnum):
    KILL = "kill"
    STOP = "stop"
    RESUME = "resume"


SIGNALS = {
    WorkerSignal.KILL: signal.SIGKILL,
    WorkerSignal.STOP: signal.SIGSTOP,
    WorkerSignal.RESUME: signal.SIGCONT,
}


@dataclass(frozen=True, slots=True)
class SignalWorker:
    """Has a zygote signal one of its workers; it ignores processes that are not its own."""

    what: WorkerSignal
    pid: int

    def to_wire(self) -> dict[str, Any]:
        return {"signal": self.what, "pid": self.pid}


ZygoteOrder = ForkWorker | SignalWorker


def parse_zygote_order(wire: Wire) -> ZygoteOrder:
    if "signal" in wire:
        return SignalWorker(WorkerSignal(wire["signal"]), wire["pid"])
    return ForkWorker(
        wire["inter_op_threads"],
        wire["intra_op_threads"],
        wire["instances"],
        NodePlacement(*wire["placement"]),
        None if wire["member"] is None else UnitMember(*wire["member"]),
    )


# --- nodes of a cluster ----------------------------------------------------------------------------


class NodeUse(NamedTuple):
    """One node that serves."""

    name: str
    cpus: float  # that it has
    workers: int
    store_hits: int
    store_misses: int


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What a cluster is and uses by now; sent again and again, in parts that fit into a packet."""

    nodes: tuple[NodeUse, ...]
    cpu_s: float  # processor time of all agents and workers so far, those that ended included
    goes_on: bool = False  # the next part has more of the nodes

    def to_wire(self) -> dict[str, Any]:
        return {"nodes": self.nodes, "cpu_s": self.cpu_s, "goes_on": self.goes_on}

    @classmethod
    def from_wire(cls, wire: Wire) -> ClusterReport:
        return cls(tuple(NodeUse(*node) for node in wire["nodes"]), wire["cpu_s"], wire["goes_on"])

    def parts(self) -> list[ClusterReport]:
        """The same, a message each."""
        count = len(self.nodes)
        return [
            ClusterReport(self.nodes[first : first + MAX_NODES], self.cpu_s, first + MAX_NODES < count)
            for first in range(0, max(1, count), MAX_NODES)
        ]


def parse_zygote_answer(wire: Wire) -> Forked | ClusterReport:
    return ClusterReport.from_wire(wire) if "nodes" in wire else Forked.from_wire(wire)


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """A worker's last message: a node of it is gone, and with it all workers that had a part there."""

    node: str

    def to_wire(self) -> dict[str, Any]:
        return {"node_ended": self.node}


# --- running batches -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Has a worker run the batch that lies in its input arena."""

    model: int  # index among the models that the worker holds
    inputs: list[Placed]
    capacity_bytes: int  # of the input arena, which may have grown
    intra_op_threads: int
    slow_ms: float = 0.0  # extra time, an injected fault
    number: int = 0  # which the answer repeats, so that no other can be taken for it
    tenant: Tenant | None = None  # with whom it shares its machine, an injected fault

    def to_wire(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "model": self.model,
            "inputs": self.inputs,
            "capacity": self.capacity_bytes,
            "intra_op_threads": self.intra_op_threads,
            "slow_ms": self.slow_ms,
            "tenant": self.tenant,
        }

    @classmethod
    def from_wire(cls, wire: Wire) -> RunBatch:
        return cls(
            wire["model"],
            _placed(wire["inputs"]),
            wire["capacity"],
            wire["intra_op_threads"],
            wire["slow_ms"],
            wire["number"],
            None if wire["tenant"] is None else Tenant(*wire["tenant"]),
        )


@dataclass(frozen=True, slots=True)
class BatchOutputs:
    """A batch has run, and its outputs lie in the worker's output arena."""

    outputs: list[Placed]
    capacity_bytes: int  # of the output arena, which may have grown
    compute: ComputeTimes
    number: int = 0  # of the batch

    @property
    def size_bytes(self) -> int:
        return sum([tensor.size_bytes for tensor in self.outputs])

    def to_wire(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "outputs": self.outputs,
            "capacity": self.capacity_bytes,
            "compute_ns": self.compute,
        }


@dataclass(frozen=True, slots=True)
class BatchError:
    """The model refused a batch; the text is one sentence for the client."""

    error: str
    worker_is_broken: bool = False  # no other batch can run on this worker either
    number: int = 0  # of the batch

    def to_wire(self) -> dict[str, Any]:
        return {"number": self.number, "error": self.error, "worker_is_broken": self.worker_is_broken}


BatchReply = BatchOutputs | BatchError


def parse_worker_message(wire: Wire) -> BatchReply | NodeEnded:
    return NodeEnded(wire["node_ended"]) if "node_ended" in wire else parse_batch_reply(wire)


def parse_batch_reply(wire: Wire) -> BatchReply:
    if "error" in wire:
        return BatchError(wire["error"], wire["worker_is_broken"], wire["number"])
    compute = ComputeTimes(*wire["compute_ns"])
    return BatchOutputs(_placed(wire["outputs"]), wire["capacity"], compute, wire["number"])


def _placed(wire: Iterable[list[Any]]) -> list[Placed]:
    return [
        Placed(name, datatype, tuple(shape), offset, size_bytes)
        for name, datatype, shape, offset, size_bytes in wire
    ]


def _specs(wire: Iterable[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(**fields | {"shape": tuple(fields["shape"])}) for fields in wire)
