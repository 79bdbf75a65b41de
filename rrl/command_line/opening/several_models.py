"""Several models of one server, tuned in turn: what their runs share, and what is checked beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from rich.console import Console

from rrl.command_line.opening.joint_claim import claim_on, put_right
from rrl.command_line.opening.reach import connected
from rrl.command_line.opening.search_grid import SearchGrid
from rrl.command_line.options.option_values import run_folder
from rrl.command_line.options.options import TuneOptions
from rrl.tuning.change_limits import ChangeLimits
from rrl.tuning.listener import Change
from serving_adapter.flags.parsing import fail, in_a_sentence
from serving_adapter.target import TargetError


@dataclass(frozen=True)
class SharedByModels:
    """What a model's run shares with those of the server's other models."""

    limits: ChangeLimits
    beside: Sequence[str]  # Models that use the same budget of cores.
    put_back: Change | None = None  # Replaced what a killed run had left of this model.


def check_each(runs: Sequence[TuneOptions], console: Console) -> dict[str, Change]:
    """Checks that every model can be tuned, or observed, as asked, before the first one is tuned for hours.

    Whatever killed runs left in force is put back here. Returns these changes by model.
    """
    put_back = {}
    for one in runs:
        try:
            if (change := _checked(one, console)) is not None:
                put_back[str(one.model)] = change
        except (ValueError, TargetError) as error:
            fail(in_a_sentence(error))
    return put_back


def _checked(options: TuneOptions, console: Console) -> Change | None:
    """Checks one model. Returns the change that put it right after a killed run, if there was one."""
    with closing(
        connected(options, str(options.target), options.model, control=not options.advise)
    ) as target:
        if options.advise:
            target.configuration()
            return None
        change = put_right(claim_on(target), target, console)
        run_folder(options)
        SearchGrid.of(options, target, Console(quiet=True)).check()
        return change
