"""One call of a fuzz run, and what its answer may be."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import grpc

SERVICE = "/inference.GRPCInferenceService/"
INFER = f"{SERVICE}ModelInfer"
LOAD = f"{SERVICE}RepositoryModelLoad"
BOUND_S = 120.0  # an answer that takes longer has hung, on a machine that has other work too
CODES_OF_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
}
CODES_OF_IMPATIENCE = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}

Metadata = tuple[tuple[str, str | bytes], ...]
Headers = tuple[tuple[str, str], ...]


class Fate(enum.Enum):
    """What must become of a call."""

    ANSWERED = "answered"  # it is well-formed
    REFUSED = "refused"  # it is not, and says so in a known way
    EITHER = "either"  # damaged at random: answered if it happens to be well-formed


@dataclass(frozen=True)
class FuzzCall:
    """A call's bytes as they go over the wire."""

    method: str
    data: bytes
    fate: Fate
    kind: str  # what of the grammar it is, for tables
    metadata: Metadata = ()
    deadline_s: float | None = None  # the client's own, shorter than the bound
    cancelled_after_s: float | None = None  # the client gives up then
    compressed: bool = False

    @property
    def size_bytes(self) -> int:
        """Of what goes over the wire."""
        return len(self.data)


@dataclass(frozen=True)
class RestCall(FuzzCall):
    """A request over HTTP. `data` is the same request as gRPC has it, where the oracle is to judge."""

    verb: str = "POST"
    """Empty where `body` is all that goes over a connection of its own."""
    path: str = ""
    """As it is on the wire."""
    headers: Headers = ()
    body: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.body)
