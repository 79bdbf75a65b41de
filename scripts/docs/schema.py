"""The JSON schema of `rrl-tune --config FILE.yaml`, written from the options of `rrl-tune`."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from baselines import AGENTS, NEED_HINDSIGHT
from rrl.command_line.options.options import TuneOptions
from rrl.objective import OBJECTIVES
from scripts.docs.option_fields import OptionField, option_fields

DIALECT = "https://json-schema.org/draft/2020-12/schema"
JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", Path: "string"}
KNOWN = {
    "agent": [name for name in AGENTS if name not in NEED_HINDSIGHT],
    "objective": list(OBJECTIVES),
}


def tune_schema() -> dict[str, Any]:
    """The schema: a flat mapping of snake_case keys, none of them required, none unknown."""
    return {
        "$schema": DIALECT,
        "title": "rrl-tune --config FILE.yaml",
        "type": "object",
        "additionalProperties": False,
        "properties": {field.name: _property(field) for field in option_fields(TuneOptions)},
    }


def _property(field: OptionField) -> dict[str, Any]:
    known = {"enum": KNOWN[field.name]} if field.name in KNOWN else {}
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return {"description": field.help} | _value(field.hint) | known | {"default": default}


def _value(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if known := next((a for a in arguments if get_origin(a) is Literal), None):
            return {"enum": [*get_args(known), None]}
        return {"type": ["null" if a is type(None) else JSON_TYPES[a] for a in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _value(arguments[0])}
    return {"type": JSON_TYPES[hint]}
