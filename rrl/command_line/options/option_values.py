"""What follows from the options of `rrl-tune`: models, folders, lengths, limits."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from rrl.command_line.options.flags import TuneFlags
from rrl.command_line.options.pins import for_model
from rrl.journal import folder_of, has_begun
from rrl.records import NO_END
from rrl.tuning.change_limits import ChangeLimits, ChangeWindow
from rrl.tuning.settings import baseline_for
from serving_adapter.load.concurrencies import parse_concurrencies

DEFAULT_INTERVALS = 50
Options = TypeVar("Options", bound=TuneFlags)
FLAGS_GIVEN_ONCE = ("--knobs", "--change-window", "--forbid", "--pin")  # Several values follow one flag.


def models_of(options: TuneFlags) -> list[str]:
    """The models named. None are where the server is to be asked which it has."""
    return [] if options.model is None else [name.strip() for name in options.model.split(",")]


def for_each_model(options: Options) -> list[Options]:
    """The options of each model's run: one folder for all, with a folder for each where there are several."""
    models = models_of(options)
    if len(models) < 2 or options.jointly:
        return [options]
    folder = options.out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    return [
        dataclasses.replace(options, model=model, out=folder / model, pin=for_model(options.pin, model))
        for model in models
    ]


def concurrency_of(options: TuneFlags) -> int | None:
    """That of a run under a closed loop; None under any other load."""
    levels = parse_concurrencies(options.concurrency)
    return levels[0] if levels else None


def run_folder(options: TuneFlags) -> Path:
    """The folder that the run writes to. ValueError if it holds another run's journal."""
    folder = options.resume or options.out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if options.resume is None and has_begun(folder):
        raise ValueError(f"{folder} holds a run: continue it with --resume {folder}, or name another --out")
    return folder


def journal_tells_rest(options: TuneFlags) -> bool:
    """Whether the run goes on with an earlier one, or shows it: options left away are then its journal's.

    A watch goes on with the run in its own folder.
    """
    goes_on = options.watches and options.out is not None and has_begun(options.out)
    return goes_on or options.resume is not None or options.export is not None


def with_run_folders(options: Options) -> Options:
    """The same, with the folder of each earlier run whose journal is named instead."""
    runs = (options.resume, options.export, options.agent_from)
    resume, export, agent_from = (None if run is None else folder_of(run) for run in runs)
    return dataclasses.replace(options, resume=resume, export=export, agent_from=agent_from)


def check_given_once(arguments: Sequence[str]) -> None:
    """ValueError for a flag given twice: the second would silently replace the first."""
    names = [argument.split("=")[0].replace("_", "-") for argument in arguments]
    for flag in FLAGS_GIVEN_ONCE:
        if names.count(flag) > 1:
            raise ValueError(f"{flag} is given twice: give it once, with all its values behind it")


def change_limits(options: TuneFlags) -> ChangeLimits:
    """How often and at which hours the run may change the configuration."""
    return ChangeLimits(options.max_changes_per_hour, ChangeWindow.parse(options.change_window))


def forbidden_knobs(forbid: Sequence[str]) -> set[str]:
    """The names given, which may be separated by commas or spaces."""
    return {name for text in forbid for name in text.replace(",", " ").split()}


def seconds(text: float | str) -> float:
    """`300`, `300s`, `5m` or `1.5h` in seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(text))
    if match is None or float(match.group(1)) <= 0:
        raise ValueError(f"cannot read --duration {text!r}: expected seconds, or e.g. 5m or 2h")
    return float(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[match.group(2)]


def tuning_intervals(options: TuneFlags) -> int:
    """How many intervals the run tunes for. A duration covers those of the start and the validation, too."""
    if options.duration is None:
        return options.intervals or (NO_END if options.watches else DEFAULT_INTERVALS)
    others = baseline_for(options.validation) + 2 * options.validation
    return max(1, round(seconds(options.duration) / options.interval_s) - others)
