"""`rrl-tune` tunes a running inference server. Everything is put together here, and nowhere else."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from threadpoolctl import threadpool_limits

from baselines import AGENTS, NEED_HINDSIGHT, called_now, unknown_agent
from rrl.command_line import model_analyzer
from rrl.command_line.advise import advise_on
from rrl.command_line.dry_run import show_plan
from rrl.command_line.ending import DONE, INTERRUPTED
from rrl.command_line.exporting import export_again, make_console
from rrl.command_line.first_options import InitOptions, write_first_options
from rrl.command_line.options import TuneOptions, change_limits, check_given_once, for_each_model, models_of
from rrl.command_line.several_models import SharedByModels, check_each
from rrl.command_line.tune import tune
from rrl.tuning.stop import STOPPING, Stop, Stopped
from serving_adapter.options import fail, looked_ahead, parse, printable

__all__ = ["main"]


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["init"]:
        write_first_options(parse(InitOptions, arguments[1:]))
        raise SystemExit(DONE)
    try:
        check_given_once(arguments)
    except ValueError as error:
        fail(str(error))
    options = parse(TuneOptions, argv, _of_model_analyzer)
    options = replace(options, agent=called_now(options.agent))
    _check_agent(options.agent)
    torch.set_num_threads(1)  # The cores are the server's.
    threadpool_limits(1)  # NumPy's threads, too.
    if options.export is not None:
        export_again(options.export)
    console = make_console()
    stop = Stop(console.print)
    console.reader_gone = stop.set
    with stop.on_signals():
        try:
            code = _each_model(options, console, stop)
        except (Stopped, KeyboardInterrupt):
            code = INTERRUPTED
    raise SystemExit(code)


def _each_model(options: TuneOptions, console: Console, stop: Stop) -> int:
    """Tunes the models in turn, or advises on them. The first one that does not end well ends the command."""
    runs, limits = for_each_model(options), change_limits(options)
    put_back = check_each(runs, console) if len(runs) > 1 and not options.dry_run else {}
    for one in runs:
        stop.says = STOPPING
        if len(runs) > 1:
            console.rule(f"{one.model}: {runs.index(one) + 1} of {len(runs)} models")
        beside = [other for other in models_of(options) if other != one.model]
        shared = SharedByModels(limits, beside, put_back.get(str(one.model)))
        if options.dry_run:
            code = show_plan(one, console, shared)
        elif options.advise:
            code = advise_on(one, console, stop, shared)
        else:
            code = tune(one, console, stop, shared)
        if code != DONE:
            return code
    return DONE


def _of_model_analyzer(arguments: list[str]) -> dict[str, Any]:
    """The options that --from-model-analyzer stands for; says what it leaves out."""
    path = looked_ahead(arguments, "--from-model-analyzer")
    if path is None:
        return {}
    taken = model_analyzer.read(Path(path), looked_ahead(arguments, "--model"))
    for note in taken.notes:
        print(printable(f"{path}: {note}"), file=sys.stderr)
    return taken.values


def _check_agent(name: str) -> None:
    if name in NEED_HINDSIGHT:
        fail(f"agent {name!r} needs the true cost of every configuration, which only a simulation knows; "
             "use rrl-compare")  # fmt: skip
    if name not in AGENTS:
        fail(unknown_agent(name, (agent for agent in AGENTS if agent not in NEED_HINDSIGHT)))
