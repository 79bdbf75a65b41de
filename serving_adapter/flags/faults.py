"""What is wrong with a command line, in one sentence: which flag, what was given, and what was expected.

It is asked once the arguments have been refused. What reads them tells it in a box, and in terms of Python.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import types
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from tyro.conf import Positional, UseAppendAction

from serving_adapter.flags.value_types import described, text_fits

NEGATIVE_NUMBER = re.compile(r"-(?:[\d.].*|inf|infinity|nan)$", re.IGNORECASE)  # as tyro tells it from a flag


class _Fault(Exception):
    """Its text is the sentence."""


def fault_in(arguments: Sequence[str], flags_class: Any, needed: Collection[str], program: str) -> str:
    """The first fault that is found; empty where none is.

    Names of flags are written with hyphens. `needed` are the fields that the arguments must set.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser._negative_number_matcher = NEGATIVE_NUMBER
    hints = get_type_hints(flags_class, include_extras=True)
    flags: dict[str, _Flag] = {}
    for field in dataclasses.fields(flags_class):
        flag = _Flag(field.name, hints[field.name])
        flags["/".join(flag.add_to(parser))] = flag
    at = [*arguments, "--"].index("--")
    before, behind = list(arguments[:at]), arguments[at + 1 :]
    positionals = [flag for flag in flags.values() if flag.is_positional]
    try:
        given, unknown = parser.parse_known_args(before)
        if unknown:
            names = [name for names in flags for name in names.split("/") if name.startswith("-")]
            return _unknown(unknown, names, {each.name: each.shown for each in positionals}, program)
        free = [each for each in positionals if getattr(given, each.name) is None]
        if len(behind) > len(free):
            return _too_many(behind, len(free), program)
        for each, text in zip(free, behind, strict=False):
            setattr(given, each.name, each.checked(text))
    except _Fault as fault:
        return str(fault)
    except argparse.ArgumentError as error:  # of a number of values
        return flags[str(error.argument_name)].wrong_count()
    missing = [f.shown for f in flags.values() if f.name in needed and getattr(given, f.name) is None]
    return f"{' and '.join(missing)} must be given, as `{program} --help` says" if missing else ""


class _Flag:
    """One of a command, by its field and its type."""

    def __init__(self, name: str, hint: Any) -> None:
        self.name = name
        self._hint, *self._marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        self.is_positional = Positional in self._marks
        self._takes_several = get_origin(self._hint) is tuple
        self._of_one = get_args(self._hint)[0] if self._takes_several else self._hint
        self.shown = name.upper() if self.is_positional else f"--{name.replace('_', '-')}"

    def add_to(self, parser: argparse.ArgumentParser) -> Sequence[str]:
        """Returns the names that it has there."""
        if self.is_positional:
            parser.add_argument(self.name, nargs="?", type=self.checked)
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
            type=self.checked,
            action="append" if is_repeated else "store",
            nargs="*" if self._takes_several and not is_repeated else None,
        ).option_strings

    def wrong_count(self) -> str:
        """A sentence on the number of its values."""
        if self._hint is bool:
            return f"{self.shown} takes no value; --no-{self.shown.removeprefix('--')} is its opposite"
        return f"{self.shown} needs a value, which must be {self._expected}"

    def checked(self, text: str) -> str:
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


def _unknown(
    arguments: Sequence[str], flags: Sequence[str], positionals: Mapping[str, str], program: str
) -> str:
    """A sentence on arguments that belong to no flag; the value of an unknown flag stands behind it.

    `positionals` are what is given without a flag: the names of their fields, and how they are shown.
    """
    name = next((argument.partition("=")[0] for argument in arguments if _names_a_flag(argument)), "")
    if not name:
        return _unexpected(arguments[0], program)
    wanted, known = name.lstrip("-"), {flag.lstrip("-"): flag for flag in flags}
    if shown := positionals.get(wanted.replace("-", "_")):
        return f"unknown flag {name}; {shown} is given without a flag"
    near = [word for word in known if word.startswith(wanted)] or get_close_matches(wanted, known, n=1)
    nearest = f"the nearest is {known[near[0]]}" if near else f"`{program} --help` names all"
    return f"unknown flag {name}; {nearest}"


def _too_many(behind: Sequence[str], expected: int, program: str) -> str:
    """A sentence on more arguments behind `--` than are expected there."""
    name = next((argument.partition("=")[0] for argument in behind if _names_a_flag(argument)), "")
    if not name:
        return _unexpected(behind[expected], program)
    return f"{name} stands behind --, where no flags are read"


def _unexpected(argument: str, program: str) -> str:
    return f"unexpected argument {argument!r}; expected one of the flags that `{program} --help` names"


def _names_a_flag(argument: str) -> bool:
    return argument.startswith("-") and argument.lstrip("-")[:1].isalpha()
