"""A tuner's side of the lease on a model: see `serving_adapter.lease`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TunerLease:
    """Nobody else may take the model until `duration_s` after the last load that carried this."""

    owner: str
    """One line, told to whoever comes second; a tuner that comes back with it gets its own lease."""
    duration_s: float
    prolongs: bool = False
    """The owner has had it: it is refused to it where another has had it since."""
