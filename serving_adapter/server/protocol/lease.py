"""Who may tune a model, and until when: see `serving_adapter.lease`."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tritonclient.grpc import service_pb2 as pb

from serving_adapter.lease import (
    DURATION_PARAMETER,
    MAX_DURATION_MS,
    MAX_OWNER_CHARACTERS,
    OWNER_PARAMETER,
    PROLONGS_PARAMETER,
)
from serving_adapter.server.surroundings import Clock

NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000
LEASE_PARAMETERS = {
    OWNER_PARAMETER: "string_param",
    DURATION_PARAMETER: "int64_param",
    PROLONGS_PARAMETER: "bool_param",
}


class LeaseHeld(Exception):
    """Another owner holds the lease, or held it since; the text is one sentence for the client."""


class LeaseRequest(NamedTuple):
    """What a load asks for."""

    owner: str
    duration_ms: int  # 0 gives it back
    prolongs: bool = False  # its owner has had it: refused if another has had it since

    @classmethod
    def of(cls, request: pb.RepositoryModelLoadRequest) -> LeaseRequest | None:
        """None where a load asks for no lease; ValueError for another kind of value."""
        given = request.parameters
        if not LEASE_PARAMETERS.keys() & set(given):
            return None
        for name, form in LEASE_PARAMETERS.items():
            may_lack = name == PROLONGS_PARAMETER and name not in given
            if not may_lack and (name not in given or not given[name].HasField(form)):
                raise ValueError(f"a lease needs the parameter {name!r} as {form}")
        prolongs = PROLONGS_PARAMETER in given and given[PROLONGS_PARAMETER].bool_param
        return cls(given[OWNER_PARAMETER].string_param, given[DURATION_PARAMETER].int64_param, prolongs)


class ModelLease:
    """The lease on one model. It ends by itself, so an owner that is gone locks nobody out for long.

    It does not end before the changes of its owner have: what takes long must not come into force under
    another's lease.
    """

    def __init__(self, model: str, now_ns: Clock) -> None:
        self._model, self._now_ns = model, now_ns
        self._owner, self._ends_ns = "", now_ns()  # whoever had it last
        self._changing: set[asyncio.Future[None]] = set()

    def take(self, owner: str, duration_ms: int, prolongs: bool = False) -> None:
        """Takes, prolongs or (for 0 ms) gives back the lease; LeaseHeld if it is another's.

        An owner that `prolongs` it is refused as well where another has had it since. ValueError, in one
        sentence, for an owner or a duration that cannot be.
        """
        if not 0 < len(owner) <= MAX_OWNER_CHARACTERS or not owner.isprintable():
            raise ValueError(f"{OWNER_PARAMETER} must be a line of 1 to {MAX_OWNER_CHARACTERS} characters")
        if not 0 <= duration_ms <= MAX_DURATION_MS:
            raise ValueError(f"{DURATION_PARAMETER} must be from 0 to {MAX_DURATION_MS}, got {duration_ms}")
        now_ns = self._now_ns()
        if owner != self._owner and (now_ns < self._ends_ns or self._changing):
            left_s = max(0, self._ends_ns - now_ns) / NS_PER_S
            raise LeaseHeld(
                f"model {self._model!r} is leased to {self._owner}, for another {left_s:.0f} s "
                "unless it prolongs that; wait for it to end, or stop it"
            )
        if prolongs and self._owner not in ("", owner):
            raise LeaseHeld(
                f"model {self._model!r} was leased to {self._owner} since the lease of this tuner ran out"
            )
        self._owner, self._ends_ns = owner, now_ns + NS_PER_MS * duration_ms

    def last_until(self, changing: asyncio.Future[None]) -> None:
        """A change of the owner is under way; nobody else gets the lease before its end."""
        self._changing.add(changing)
        changing.add_done_callback(self._changing.discard)
