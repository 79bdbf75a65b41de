"""What is wrong with a command line, in one sentence: which flag, what was given, and what was expected.

It is asked once the arguments have been refused. What reads them tells it in a box, and in terms of Python.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from tyro.conf import Positional, UseAppendAction

from serving_adapter.option_types import described, text_fits


class _Fault(Exception):
    """Its text is the sentence."""


def fault_in(arguments: Sequence[str], flags_class: Any, needed: Collection[str], program: str) -> str:
    """The first fault that is found; empty where none is.

    Names of flags are written with hyphens. `needed` are the fields that the arguments must set.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    hints = get_type_hints(flags_class, include_extras=True)
    flags: dict[str, _Flag] = {}
    for field in dataclasses.fields(flags_class):
        flag = _Flag(field.name, hints[field.name])
        flags["/".join(flag.add_to(parser))] = flag
    try:
        given, unknown = parser.parse_known_args(list(arguments))
    except _Fault as fault:
        return str(fault)
    except argparse.ArgumentError as error:  # of a number of values
        return flags[str(error.argument_name)].wrong_count()
    if unknown:
        return _unknown(unknown, [name for names in flags for name in names.split("/")], program)
    missing = [f.shown for f in flags.values() if f.name in needed and getattr(given, f.name) is None]
    return f"{' and '.join(missing)} must be given, as `{program} --help` says" if missing else ""


class _Flag:
    """One of a command, by its field and its type."""

    def __init__(self, name: str, hint: Any) -> None:
        self.name = name
        self._hint, *self._marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        self._is_positional = Positional in self._marks
        self._takes_several = get_origin(self._hint) is tuple
        self._of_one = get_args(self._hint)[0] if self._takes_several else self._hint
        self.shown = name.upper() if self._is_positional else f"--{name.replace('_', '-')}"

    def add_to(self, parser: argparse.ArgumentParser) -> Sequence[str]:
        """Returns the names that it has there."""
        if self._is_positional:
            parser.add_argument(self.name, nargs="?", type=self._checked)
            return [self.name]
        aliases = [name for mark in self._marks for name in getattr(mark, "aliases", None) or ()]
        names = [self.shown, *aliases]
        if self._hint is bool:
            return parser.add_argument(
                *names, dest=self.name, action=argparse.BooleanOptionalAction
            ).option_strings
        is_repeated = UseAppendAction in self._marks
        return parser.add_argument(
            *names,
            dest=self.name,
            type=self._checked,
            action="append" if is_repeated else "store",
            nargs="*" if self._takes_several and not is_repeated else None,
        ).option_strings

    def wrong_count(self) -> str:
        """A sentence on the number of its values."""
        if self._hint is bool:
            return f"{self.shown} takes no value; --no-{self.shown.removeprefix('--')} is its opposite"
        return f"{self.shown} needs a value, which must be {self._expected}"

    def _checked(self, text: str) -> str:
        if not text_fits(text, self._of_one):
            raise _Fault(f"{self.shown} must be {self._expected}, got {text!r}")
        return text

    @property
    def _expected(self) -> str:
        """One value in words; that an option may be left out is no value."""
        hint = self._of_one
        if get_origin(hint) in (Union, types.UnionType):
            return " or ".join(described(each) for each in get_args(hint) if each is not type(None))
        return described(hint)


def _unknown(arguments: Sequence[str], flags: Sequence[str], program: str) -> str:
    """A sentence on arguments that belong to no flag; the value of an unknown flag stands behind it."""
    name = next((argument.partition("=")[0] for argument in arguments if argument.startswith("-")), "")
    if not name:
        return (
            f"unexpected argument {arguments[0]!r}; expected one of the flags that `{program} --help` names"
        )
    wanted, known = name.lstrip("-"), {flag.lstrip("-"): flag for flag in flags}
    near = [word for word in known if word.startswith(wanted)] or get_close_matches(wanted, known, n=1)
    nearest = f"the nearest is {known[near[0]]}" if near else f"`{program} --help` names all"
    return f"unknown flag {name}; {nearest}"
