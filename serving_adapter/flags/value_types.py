"""The types of options: what fits them, in a YAML file or on a command line, and what they are in words."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin


def fitted(value: Any, hint: Any) -> Any:
    """The YAML value as the field's type; TypeError where it is of another type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _fitted_to_any(value, arguments)
    if origin is Literal:
        if value in arguments:
            return value
    elif origin in (tuple, list) and isinstance(value, list):
        return origin(fitted(item, arguments[0]) for item in value)
    elif hint is Path and isinstance(value, str):
        return Path(value)
    elif hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML 1.1 reads 1e-3 (without a point) as text
        except (ValueError, OverflowError):
            raise TypeError from None
    elif hint in (int, str, bool, type(None)) and type(value) is hint:
        return value
    raise TypeError


def text_fits(text: str, hint: Any) -> bool:
    """Whether a command line may give this for one value of the type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(text_fits(text, argument) for argument in arguments)
    if origin is Literal:
        return text in map(str, arguments)
    if hint is type(None):
        return text == "None"
    try:
        hint(text)
    except ValueError:
        return False
    return True


def _fitted_to_any(value: Any, hints: tuple[Any, ...]) -> Any:
    for hint in hints:
        try:
            return fitted(value, hint)
        except TypeError:
            continue
    raise TypeError


def as_list(value: Any, hint: Any) -> str:
    """An example, where only the list is missing around the value."""
    try:
        fitted([value], hint)
    except TypeError:
        return ""
    return f", such as {json.dumps([value], ensure_ascii=False)}"


def described(hint: Any) -> str:
    """A type in words, for an error message."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(described(argument) for argument in arguments)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (tuple, list):
        return f"a list, each item {described(arguments[0])}"
    words = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        Path: "a path",
        type(None): "null",
    }
    return words.get(hint, str(hint))
