"""Reads a command's options: every flag with its type, default and help.

The help of a field is the string literal that stands behind it in the class, so it is read from the source.
Where it is computed, it is a mark of the type (`tyro.conf.arg`).
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from tyro import conf

# Defaults that differ from one machine to the next, in words, by command class and option.
COMPUTED_DEFAULTS = {
    ("TrainBaseOptions", "device"): "`cuda` where there is one, else `cpu`",
    ("ParityTrainOptions", "device"): "`cuda` where there is one, else `cpu`",
    ("EvaluateOptions", "device"): "`cuda` where there is one, else `cpu`",
    ("TritonOptions", "folder"): "`.triton` in the checkout",
}

WORDS = {int: "whole number", float: "number", str: "text", bool: "yes or no", Path: "path"}


class OptionField(NamedTuple):
    """One option of a command."""

    owner: str  # the class of the command's options
    name: str  # the key of a YAML file; the flag is the same with hyphens
    hint: Any  # its type, without tyro's marks
    default: Any  # dataclasses.MISSING where a value must be given
    help: str
    positional: bool

    @property
    def flag(self) -> str:
        return self.name.upper() if self.positional else f"--{self.name.replace('_', '-')}"


def option_fields(options_class: type) -> list[OptionField]:
    """The options of a command, in the order in which its class names them."""
    helps = _helps(options_class)
    hints = get_type_hints(options_class, include_extras=True)
    return [
        OptionField(
            options_class.__name__,
            field.name,
            _unmarked(hints[field.name]),
            _default(field),
            _help_of_marks(hints[field.name]) or helps.get(field.name, ""),
            conf.Positional in _marks(hints[field.name]),
        )
        for field in dataclasses.fields(options_class)
    ]


def type_in_words(hint: Any) -> str:
    """A type as the reference names it; that an option may be left out shows in its default."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(type_in_words(a) for a in arguments if a is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(f"`{a}`" for a in arguments if a != "")
    if origin is tuple:
        return f"{type_in_words(arguments[0])}, any number"
    return WORDS[hint]


def default_in_words(field: OptionField) -> str:
    if (field.owner, field.name) in COMPUTED_DEFAULTS:
        return COMPUTED_DEFAULTS[field.owner, field.name]
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default is None or field.default in ((), ""):
        return ""
    if isinstance(field.default, bool):
        return "yes" if field.default else "no"
    values = field.default if isinstance(field.default, tuple) else (field.default,)
    return " ".join(f"`{value}`" for value in values)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _helps(options_class: type) -> dict[str, str]:
    """The help of every field, those of base classes included."""
    helps: dict[str, str] = {}
    for part in reversed(options_class.__mro__):
        if dataclasses.is_dataclass(part):
            helps |= _helps_of_body(ast.parse(textwrap.dedent(inspect.getsource(part))).body[0])
    return helps


def _helps_of_body(definition: ast.stmt) -> dict[str, str]:
    assert isinstance(definition, ast.ClassDef)
    helps = {}
    for statement, after in zip(definition.body, definition.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            helps[statement.target.id] = " ".join(str(after.value.value).split())
    return helps


def _marks(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _help_of_marks(hint: Any) -> str:
    return next((text for mark in _marks(hint) if isinstance(text := getattr(mark, "help", None), str)), "")


def _unmarked(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint
