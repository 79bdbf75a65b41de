"""`rrl-store run -- PROGRAM ...`: a program of Python with the store, and its children, without a change."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from serving_adapter.flags.parsing import fail
from serving_adapter.model_store.endpoint import FOLDER_VARIABLE
from serving_adapter.model_store.unchanged_programs import on_path

SEPARATOR = "--"
PATH_VARIABLE = "PYTHONPATH"


@dataclass(frozen=True)
class RunOptions:
    """Runs the program behind `--` so that it, and what it starts, read weight files through the store."""

    folder: Path | None = None
    """Where the store's sockets are (default: $RRL_STORE, or a folder of this user)."""


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command's own arguments, and those behind the first `--`."""
    if SEPARATOR not in arguments:
        return list(arguments), []
    at = list(arguments).index(SEPARATOR)
    return list(arguments[:at]), list(arguments[at + 1 :])


def environment_for(options: RunOptions, variables: Mapping[str, str]) -> dict[str, str]:
    """The program's variables: Python looks into our folder first, for its `sitecustomize`."""
    folder = str(Path(on_path.__file__).parent)
    before = variables.get(PATH_VARIABLE)
    theirs = [each for each in before.split(os.pathsep) if each != folder] if before else []
    environment = {**variables, PATH_VARIABLE: os.pathsep.join([folder, *theirs])}
    if options.folder is not None:
        environment[FOLDER_VARIABLE] = str(options.folder.absolute())
    return environment


def run_program(options: RunOptions) -> NoReturn:
    """Becomes the program, so signals and the exit status are its own."""
    _, program = split(sys.argv[1:])
    if not program:
        fail("rrl-store run needs a program behind --, as in: rrl-store run -- python app.py")
    try:
        os.execvpe(program[0], program, environment_for(options, os.environ))
    except OSError as error:
        fail(f"{program[0]} cannot be run: {error.strerror}")
