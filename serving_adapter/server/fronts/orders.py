"""What the other fronts are started with; it reaches their nodes by Ray, and them by standard input."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from serving_adapter.server.options import ServeOptions


@dataclass(frozen=True)
class FrontOrder:
    """One of the other fronts; its secret and its key stand in no command line."""

    number: int  # from 1; the first front is 0
    arguments: tuple[str, ...]  # of rrl-serve
    first_host: str
    first_port: int
    secret: str  # which the first front asks for
    control_key: str | None

    def to_text(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_text(cls, text: str) -> FrontOrder:
        wire = json.loads(text)
        return cls(**wire | {"arguments": tuple(wire["arguments"])})


def as_arguments(options: ServeOptions) -> tuple[str, ...]:
    """A command line of these options, without those that are at their defaults."""
    arguments: list[str] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if value != field.default:
            arguments += _arguments(f"--{field.name.replace('_', '-')}", value)
    return tuple(arguments)


def _arguments(flag: str, value: Any) -> list[str]:
    if isinstance(value, tuple):
        return [f"{flag}={each}" for each in value]
    return [flag] if value is True else [f"{flag}={value}"]
