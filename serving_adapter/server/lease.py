"""Who may tune a model, and until when: see `serving_adapter.lease`."""

from __future__ import annotations

import time
from collections.abc import Callable

from serving_adapter.lease import DURATION_PARAMETER, MAX_DURATION_MS, MAX_OWNER_CHARACTERS, OWNER_PARAMETER


class LeaseHeld(Exception):
    """Another owner holds the lease; the text is one sentence for the client."""


class ModelLease:
    """The lease on one model. It ends by itself, so an owner that is gone locks nobody out for long."""

    def __init__(self, model: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._model, self._clock_s = model, clock_s
        self._owner, self._ends_s = "", -float("inf")

    def take(self, owner: str, duration_ms: int) -> None:
        """Takes, prolongs or (for 0 ms) gives back the lease; LeaseHeld if it is another's.

        ValueError, in one sentence, for an owner or a duration that cannot be.
        """
        if not 0 < len(owner) <= MAX_OWNER_CHARACTERS or not owner.isprintable():
            raise ValueError(f"{OWNER_PARAMETER} must be a line of 1 to {MAX_OWNER_CHARACTERS} characters")
        if not 0 <= duration_ms <= MAX_DURATION_MS:
            raise ValueError(f"{DURATION_PARAMETER} must be from 0 to {MAX_DURATION_MS}, got {duration_ms}")
        now_s = self._clock_s()
        if owner != self._owner and now_s < self._ends_s:
            raise LeaseHeld(
                f"model {self._model!r} is leased to {self._owner}, for another {self._ends_s - now_s:.0f} s "
                "unless it prolongs that; wait for it to end, or stop it"
            )
        self._owner, self._ends_s = owner, now_s + 1e-3 * duration_ms
