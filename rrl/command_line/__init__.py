"""`rrl-tune` tunes a running inference server, and `rrl-tune watch` goes on with it.

Everything is put together here, and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from rich.console import Console

from baselines import AGENTS, NEED_HINDSIGHT, called_now, unknown_agent, use_one_thread
from rrl.command_line.advise import advise_on
from rrl.command_line.at_each_concurrency import tune_at_each
from rrl.command_line.dry_run import show_plan
from rrl.command_line.ending import DONE, INTERRUPTED, ends_all, of_all
from rrl.command_line.exporting import export_again, make_console
from rrl.command_line.first_options import InitOptions, write_first_options
from rrl.command_line.opening.given_files import check_given_files
from rrl.command_line.opening.several_models import SharedByModels, check_each
from rrl.command_line.options import from_model_analyzer
from rrl.command_line.options.option_values import (
    change_limits,
    check_given_once,
    for_each_model,
    models_of,
    with_run_folders,
)
from rrl.command_line.options.options import TuneOptions
from rrl.command_line.options.watch_options import WatchOptions, going_on
from rrl.command_line.what_if import WhatIfOptions, what_if
from rrl.tuning.stop import STOPPING, Stop, Stopped
from serving_adapter.flags.parsing import fail, in_a_sentence, parse

__all__ = ["main"]

COMMANDS = ("init", "watch", "what-if")  # without one, it tunes


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    _check_command(arguments)
    if arguments[:1] == ["init"]:
        write_first_options(parse(InitOptions, arguments[1:], command="init"))
        raise SystemExit(DONE)
    if arguments[:1] == ["what-if"]:
        what_if(parse(WhatIfOptions, arguments[1:], command="what-if"))
        raise SystemExit(DONE)
    options_class: type[TuneOptions] = TuneOptions
    command = ""
    try:
        check_given_once(arguments)
        if arguments[:1] == ["watch"]:
            options_class, command, arguments = WatchOptions, "watch", arguments[1:]
        options = parse(options_class, arguments, from_model_analyzer.defaults, command)
        options = going_on(with_run_folders(replace(options, agent=called_now(options.agent))))
    except ValueError as error:
        fail(str(error))
    _check_agent(options.agent)
    use_one_thread()
    if options.export is not None:
        export_again(options.export, options.json)
    try:
        check_given_files(options)
    except (ValueError, OSError) as error:
        fail(in_a_sentence(error))
    console = make_console(on_stderr=options.json)
    stop = Stop(console.print)
    console.reader_gone = stop.set
    with stop.on_signals():
        try:
            code = _each_model(options, console, stop)
        except (Stopped, KeyboardInterrupt):
            code = INTERRUPTED
    raise SystemExit(code)


def _each_model(options: TuneOptions, console: Console, stop: Stop) -> int:
    """Tunes the models in turn, or advises on them. One that fails, or is interrupted, ends the command."""
    runs, limits = for_each_model(options), change_limits(options)
    put_back = check_each(runs, console) if len(runs) > 1 and not options.dry_run else {}
    codes = []
    for one in runs:
        if stop.is_set():  # The one before was about to end by itself.
            return INTERRUPTED
        stop.says = STOPPING
        if len(runs) > 1:
            console.rule(f"{one.model}: {runs.index(one) + 1} of {len(runs)} models")
        others = [] if options.jointly else models_of(options)
        beside = [other for other in others if other != one.model]
        shared = SharedByModels(limits, beside, put_back.get(str(one.model)))
        if options.dry_run:
            code = show_plan(one, console, shared)
        elif options.advise:
            code = advise_on(one, console, stop, shared)
        else:
            code = tune_at_each(one, console, stop, shared)
        codes.append(code)
        if ends_all(code):
            return code
    return of_all(codes)


def _check_command(arguments: Sequence[str]) -> None:
    """Only a command is given without a hyphen at the first place."""
    first = arguments[0] if arguments else "-"
    if first.startswith("-") or first in COMMANDS:
        return
    near = get_close_matches(first, COMMANDS, n=1)
    known = f"the nearest is {near[0]}" if near else f"expected {', '.join(COMMANDS)} or a flag"
    fail(f"unknown command {first!r}; {known}")


def _check_agent(name: str) -> None:
    if name in NEED_HINDSIGHT:
        fail(f"agent {name!r} needs the true cost of every configuration, which only a simulation knows; "
             "use rrl-compare")  # fmt: skip
    if name not in AGENTS:
        fail(unknown_agent(name, (agent for agent in AGENTS if agent not in NEED_HINDSIGHT)))
