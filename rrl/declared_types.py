"""Whether values that were read from a file are of the types that their fields declare."""

from __future__ import annotations

import types
from dataclasses import fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints


def mistyped(instance: Any) -> str:
    """Which field of a dataclass has a value of another type; empty if none has.

    Fields of classes that are no tuples are not looked at: whoever makes these has read them.
    """
    for name, hint in _declared(type(instance)).items():
        if not fits(value := getattr(instance, name), hint):
            return f"{name} is {value!r}"[:200]
    return ""


def fits(value: Any, hint: Any) -> bool:
    """True if a value read from JSON is of a field's type."""
    if isinstance(hint, types.UnionType):
        return any(fits(value, each) for each in get_args(hint))
    if get_origin(hint) is dict:
        of = get_args(hint)[1]
        return isinstance(value, dict) and (of is Any or all(fits(each, of) for each in value.values()))
    if get_origin(hint) is tuple:  # as many as there are, all of one type
        return isinstance(value, tuple) and all(fits(each, get_args(hint)[0]) for each in value)
    if _is_named_tuple(hint):
        return isinstance(value, hint) and all(map(fits, value, _hints(hint).values()))
    if hint is bool:
        return isinstance(value, bool)
    return isinstance(value, (int, float) if hint is float else hint) and not isinstance(value, bool)


def _declared(of: Any) -> dict[str, Any]:
    return _checkable(of, tuple(field.name for field in fields(of)))


@cache
def _checkable(of: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields whose types are Python's own, or tuples."""
    hints = {name: _hints(of)[name] for name in names}
    hints = {name: str if get_origin(hint) is Literal else hint for name, hint in hints.items()}
    return {
        name: hint
        for name, hint in hints.items()
        if hint in (int, float, str, bool) or get_origin(hint) in (dict, tuple) or _is_named_tuple(hint)
    }


@cache
def _hints(of: Any) -> dict[str, Any]:
    return get_type_hints(of)


def _is_named_tuple(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")
