"""Parameters in JSON as those of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving_adapter.server.protocol.refusals import invalid

FIELD_OF = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
LEAST, MOST = -(1 << 63), (1 << 63) - 1


def put(given: Any, into: Any, of: str) -> None:
    """Puts a JSON object into a map of parameters; Refused, in one sentence, where it is none."""
    if not isinstance(given, Mapping):
        raise invalid(f"the parameters of {of} must be an object of names and values")
    for name, value in given.items():
        field = FIELD_OF.get(type(value))
        if field is None or not into[name].DESCRIPTOR.fields_by_name.get(field):
            raise invalid(f"the parameter {name!r} of {of} must be a string, a number, true or false")
        if isinstance(value, int) and not LEAST <= value <= MOST:
            raise invalid(f"the parameter {name!r} of {of} must be a number of 64 bits, got {value}")
        setattr(into[name], field, value)
