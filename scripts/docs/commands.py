"""The reference page of every command and flag, written from the option classes themselves."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import NamedTuple

from baselines.comparison.bench_command import BenchOptions
from baselines.comparison.options import CompareOptions
from baselines.training_options import OfflineTrainingOptions
from envs.offline_data import ExportOptions
from envs.profile_options import ProfileOptions
from envs.scenarios.bench import BENCHES
from rrl.command_line.first_options import InitOptions
from rrl.command_line.options.options import TuneOptions
from rrl.command_line.options.watch_options import WatchOptions
from rrl.command_line.what_if import WhatIfOptions
from scripts.benchmarks.__main__ import BENCHMARKS
from scripts.docs.option_fields import OptionField, default_in_words, option_fields, type_in_words
from scripts.figures.__main__ import FIGURES, ReproduceOptions
from scripts.triton_server.__main__ import TritonOptions
from serving_adapter.load.options import LoadOptions
from serving_adapter.model_store import command_line as store
from serving_adapter.parity import command_line as parity
from serving_adapter.server.options import ServeOptions
from serving_adapter.tap.command_line import TapOptions

HEAD = """\
# Commands and flags

This page lists every flag of every command, as the present code has them. `make docs` writes it anew.

Each command prints the same with `--help`, and its version with `--version`. Each also takes
`--config FILE.yaml`. [A shell can complete the flags](../how-to/install.md#complete-flags-by-tab).
[The YAML file](yaml.md) says how such a file looks. A flag on the command line overrides the file.
[Exit codes](exit-codes.md) are the same for all.
"""


class Documented(NamedTuple):
    """A command with options of one class."""

    name: str
    options_class: type


COMMANDS = (
    Documented("rrl-tune", TuneOptions),
    Documented("rrl-tune init", InitOptions),
    Documented("rrl-tune watch", WatchOptions),
    Documented("rrl-tune what-if", WhatIfOptions),
    Documented("rrl-serve", ServeOptions),
    Documented("rrl-load", LoadOptions),
    Documented("rrl-tap", TapOptions),
    Documented("rrl-profile", ProfileOptions),
    Documented("rrl-train", OfflineTrainingOptions),
    Documented("rrl-compare", CompareOptions),
    *(Documented(f"rrl-bench {version}", BenchOptions) for version in BENCHES),
    Documented("rrl-export", ExportOptions),
    *(Documented(f"rrl-store {name}", command.options_class) for name, command in store.COMMANDS.items()),
    *(Documented(f"rrl-parity {name}", command.options_class) for name, command in parity.COMMANDS.items()),
    Documented("scripts/triton", TritonOptions),
    Documented("scripts/reproduce", ReproduceOptions),
)


def documented() -> list[Documented]:
    """Every command that has options, the benchmarks that have some included."""
    modules = {
        name: importlib.import_module(f"scripts.benchmarks.{found.module}")
        for name, found in BENCHMARKS.items()
    }
    benchmarks = [
        Documented(f"scripts/bench {name}", module.Options)
        for name, module in modules.items()
        if hasattr(module, "Options")
    ]
    return [*COMMANDS, *benchmarks]


def commands_page() -> str:
    """The whole page."""
    sections = [_section(command) for command in COMMANDS]
    figures = _named("scripts/reproduce FIGURE", {name: found.text for name, found in FIGURES.items()})
    benchmarks = _named("scripts/bench NAME", {name: found.text for name, found in BENCHMARKS.items()})
    of_benchmarks = [_section(command) for command in documented() if command not in COMMANDS]
    return "\n".join([HEAD, *sections, figures, benchmarks, *of_benchmarks])


def _section(command: Documented) -> str:
    head = f"## {command.name}\n\n{inspect.getdoc(command.options_class)}\n\n"
    if alike := next((c for c in COMMANDS if c.options_class in command.options_class.__mro__[1:]), None):
        return f"{head}Its flags are those of `{alike.name}`.\n"
    rows = "\n".join(_row(field) for field in option_fields(command.options_class))
    return f"{head}| flag | value | default | meaning |\n|---|---|---|---|\n{rows}\n"


def _row(field: OptionField) -> str:
    cells = (f"`{field.flag}`", type_in_words(field.hint), default_in_words(field), field.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _named(title: str, named: Mapping[str, str]) -> str:
    rows = "\n".join(f"| `{name}` | {text} |" for name, text in named.items())
    return f"## {title}\n\n`{title.split()[0]} --list` names them.\n\n| name | what |\n|---|---|\n{rows}\n"
