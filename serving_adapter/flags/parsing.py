"""Command lines: a frozen dataclass makes the flags, and `--config FILE.yaml` sets them from a file.

The file's keys are the flag names in snake_case; a flag on the command line overrides the file. A class
of options is flat, and its `__post_init__` raises ValueError with one sentence where a value is no good.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, get_type_hints

import tyro

from serving_adapter.flags.faults import fault_in
from serving_adapter.flags.help_pages import page_for
from serving_adapter.flags.value_types import as_list, described, fitted
from serving_adapter.sentences import printable
from serving_adapter.standard_streams import open_closed_streams
from serving_adapter.yaml_text import yaml_file

WRONG_USE = 2  # the exit code of wrong use and bad input
COMPLETION = "--tyro-print-completion"

Options = TypeVar("Options")


def fail(message: str) -> NoReturn:
    """Ends the command for wrong use: one sentence and the page about it on standard error, no traceback."""
    print(f"{printable(message)} (see {page_for(message)})", file=sys.stderr)
    raise SystemExit(WRONG_USE)


def in_a_sentence(error: Exception) -> str:
    """What a user should read of an error in files or options."""
    if isinstance(error, OSError) and error.filename is not None:
        return printable(f"cannot read or write {error.filename}: {error.strerror}")
    return printable(str(error))


def parse(
    options_class: type[Options],
    argv: Sequence[str] | None = None,
    defaults: Callable[[list[str], Mapping[str, Any]], Mapping[str, Any]] = lambda arguments, configured: {},
    command: str = "",
) -> Options:
    """The options of a command from its arguments (default: the process's own).

    `command` is the name of one of a program's commands: help and refusals then name it.

    `defaults` gives values, by name, to those that neither the arguments nor their --config set. It is called
    with the arguments and the values of --config.
    """
    open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        path = looked_ahead(arguments, "--config")
        configured = {} if path is None else read_options_file(Path(path), options_class)
        values = {**defaults(arguments, configured), **configured}
        for name in _given(arguments):
            values.pop(name, None)  # To a default, tyro would add what a flag that may be repeated gives.
        flags = _flags_class(options_class)
        required = {f.name: tyro.MISSING for f in dataclasses.fields(flags) if _is_required(f)}
        program = f"{Path(sys.argv[0]).name} {command}".strip()  # A shell completes programs by this name.
        completes = arguments[:1] == [COMPLETION]
        fault = partial(fault_in, _hyphenated(arguments), flags, required.keys() - values.keys(), program)
        with _refusals_as_errors(fault), _helps_on_one_line() if completes else nullcontext():
            parsed = tyro.cli(flags, prog=program, args=arguments, default=flags(**(required | values)))
        names = [f.name for f in dataclasses.fields(options_class)]  # type: ignore[arg-type]
        return options_class(**{name: getattr(parsed, name) for name in names})
    except ValueError as error:
        fail(str(error))


@contextmanager
def _refusals_as_errors(fault: Callable[[], str]) -> Iterator[None]:
    """Where tyro refuses the arguments within: ValueError with the sentence of `fault` in place of its box.

    The box stays where there is no sentence.
    """
    told = io.StringIO()
    try:
        with redirect_stderr(told):
            yield
    except SystemExit as ended:
        if ended.code == WRONG_USE and (sentence := fault()):
            raise ValueError(sentence) from None
        sys.stderr.write(told.getvalue())
        raise
    sys.stderr.write(told.getvalue())


@contextmanager
def _helps_on_one_line() -> Iterator[None]:
    """Prints the script that tyro prints within. Each line of a flag's help would pass for another flag."""
    script = io.StringIO()
    try:
        with redirect_stdout(script):
            yield
    finally:
        for line in script.getvalue().splitlines():
            print(line.replace(r"\n", " ") if line.startswith("COMPLETION_SPEC") else line)


class Command(NamedTuple):
    """One of the commands of a program."""

    options_class: type
    run: Callable[..., None]  # of its options
    help: str


def parse_command(
    program: str, commands: Mapping[str, Command], argv: Sequence[str] | None = None
) -> Callable[[], None]:
    """The command that the first argument names, with its options, ready to run."""
    open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["-h"], ["--help"]):
        print(f"usage: {program} COMMAND [--help]\n")
        width = max(map(len, commands))
        for name, command in commands.items():
            print(f"  {name:{width}} {command.help}")
        raise SystemExit(0)
    if not arguments or arguments[0] not in commands:
        fail(f"usage: {program} COMMAND, with COMMAND one of {', '.join(commands)}")
    command = commands[arguments[0]]
    return partial(command.run, parse(command.options_class, arguments[1:], command=arguments[0]))


def read_options_file(path: Path, options_class: type) -> dict[str, Any]:
    """The values a YAML file gives to some of the fields; ValueError where it does not fit them."""
    document = yaml_file(path, "options file")
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ValueError(f"{path} must hold `key: value` lines, not a {type(document).__name__}")
    hints = get_type_hints(options_class, include_extras=False)
    names = [f.name for f in dataclasses.fields(options_class)]
    values = {}
    for key, value in document.items():
        if key not in names:
            raise ValueError(f"{path} sets the unknown option {key!r}; the options are {', '.join(names)}")
        try:
            values[key] = fitted(value, hints[key])
        except TypeError:
            expected = described(hints[key]) + as_list(value, hints[key])
            raise ValueError(f"the options file {path}: {key} must be {expected}, got {value!r}") from None
    return values


def looked_ahead(arguments: Sequence[str], *names: str) -> str | None:
    """The value of a flag before all are read: what its file says are the defaults of the flags proper."""
    ahead = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    ahead.add_argument(*names, nargs="?", dest="value")
    value: str | None = ahead.parse_known_args(_hyphenated(arguments))[0].value
    return value


def switched_ahead(arguments: Sequence[str], flag: str) -> bool | None:
    """Whether a flag without a value is on before all are read; None where it is not given."""
    ahead = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    ahead.add_argument(flag, action=argparse.BooleanOptionalAction, dest="value")
    value: bool | None = ahead.parse_known_args(_hyphenated(arguments))[0].value
    return value


def _given(arguments: Sequence[str]) -> set[str]:
    """The names of the fields whose flags are among the arguments."""
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    return {flag.removeprefix("--").replace("-", "_") for flag in flags}


def _hyphenated(arguments: Sequence[str]) -> list[str]:
    """The arguments with hyphens in the names of flags, where underscores are taken, too."""
    parts = [argument.partition("=") for argument in arguments]
    return [
        name.replace("_", "-") + equals + value if name.startswith("--") else name + equals + value
        for name, equals, value in parts
    ]


def _flags_class(options_class: Any) -> Any:
    """The class with a --config flag added and its own check left out.

    The check waits for the final values: tyro would wrap its sentence in a box, and would run it on the
    placeholders of required flags too. (tyro finds the fields' help in the source, so a class statement.)
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Flags(options_class):
        config: Path | None = None  # YAML file of options; flags override it

        def __post_init__(self) -> None:
            pass

    Flags.__doc__ = options_class.__doc__
    return Flags


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
