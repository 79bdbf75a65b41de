"""One call of a fuzz run, and what its answer may be."""

from __future__ import annotations

import enum
from dataclasses import dataclass

SERVICE = "/inference.GRPCInferenceService/"
INFER = f"{SERVICE}ModelInfer"
LOAD = f"{SERVICE}RepositoryModelLoad"
BOUND_S = 120.0  # an answer that takes longer has hung, on a machine that has other work too

Metadata = tuple[tuple[str, str | bytes], ...]


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
