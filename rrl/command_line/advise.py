"""`rrl-tune --advise`: observes a target, recommends, and applies what is agreed to."""

from __future__ import annotations

import dataclasses
import math
import time
from contextlib import closing

import numpy as np
from rich.console import Console

from envs.simulated import SimulatedServing
from envs.target_claim import identity, restore_point, restored
from envs.target_space import cores_of
from rrl.advice import careful_apply
from rrl.advice.advice import recommend, source
from rrl.advice.cost_sources import Simulate
from rrl.advice.earlier_table import earlier_table
from rrl.advice.observation import (
    DEFAULT_INTERVALS,
    NothingObserved,
    failures_in_words,
    measure_in_force,
    observed_in_words,
)
from rrl.agent import Task
from rrl.command_line.ending import DONE, INTERRUPTED, broken_off, ended_early
from rrl.command_line.opening.reach import connected
from rrl.command_line.opening.search_grid import SearchGrid
from rrl.command_line.opening.search_space import without_forbidden
from rrl.command_line.opening.several_models import SharedByModels
from rrl.command_line.options.option_values import run_folder, seconds
from rrl.command_line.options.options import TuneOptions
from rrl.knobs import in_words
from rrl.queueing.machine import Machine
from rrl.space import with_fixed
from rrl.tuning.change_limits import ChangeLimits
from rrl.tuning.giving_up import GivenUp
from rrl.tuning.keeping import Keeping
from rrl.tuning.listener import Change
from rrl.tuning.stop import PUTTING_BEST_IN_FORCE, Stop
from rrl.views.reference_table import Origin
from serving_adapter.flags.parsing import fail, in_a_sentence
from serving_adapter.target import Overtaken, Target, TargetError

SIMULATED_REQUESTS = 2000  # For each configuration, to advise from a machine file.


def advise_on(options: TuneOptions, console: Console, stop: Stop, shared: SharedByModels) -> int:
    """Says what the target does and what would be better. Changes it only if asked to, and agreed to."""
    try:
        asks = options.apply_after_advise
        if asks:
            careful_apply.check_can_ask()
            run_folder(options)  # Raises where there is a run already, before anything is asked.
        with closing(connected(options, str(options.target), options.model, control=asks)) as target:
            put_back = _after_a_killed_run(target, console, asks)
            recommended = _recommended(options, console, stop, target, shared)
            if recommended is None or not asks:
                return DONE
            careful_apply.check_allowed(shared.limits, options.interval_s)
            if not careful_apply.agreed(console):
                return DONE
            careful_apply.check_allowed(shared.limits, options.interval_s)  # The answer may have taken hours.
            return _apply(options, console, stop, target, recommended, shared.limits, put_back)
    except (ValueError, TargetError, OSError, NothingObserved) as error:
        fail(in_a_sentence(error))


def _after_a_killed_run(target: Target, console: Console, restores: bool) -> Change | None:
    """Puts back what a killed run had found, or only says so where nothing may be changed.

    Raises GivenUp if the other run is alive.
    """
    point = restore_point(target)
    if restores:
        return restored(point, target, console)
    left = point.to_restore()
    if left is not None and not left.why_not(target.configuration(), identity(target)):
        console.print(
            "an earlier run did not end cleanly here: what is observed may be what it explored; it had found "
            f"{in_words(left.found)}, which the next run that tunes puts back",
            style="yellow",
        )
    return None


def _recommended(
    options: TuneOptions, console: Console, stop: Stop, target: Target, shared: SharedByModels
) -> dict[str, int] | None:
    """The change that would be better, said with all that speaks for it. None if there is none."""
    grid = SearchGrid.of(options, target, console)
    env = grid.environment(stop)
    grid = grid.within_budget(shared.beside, console)
    task, found = grid.task(), grid.found
    here = Origin.of(target.address, target.server)
    table = earlier_table(options.reference_table, target.model, here, console.print)
    simulate = None if options.machine is None else _simulator(Machine.load(options.machine), task)
    if found and (why_not := target.why_not_tunable()):
        console.print(f"what is recommended must not be applied: {why_not}", style="yellow")
    for note in target.notes:
        console.print(note, style="yellow")
    for_s = math.inf if options.duration is None else seconds(options.duration)
    intervals = options.intervals or (DEFAULT_INTERVALS if options.duration is None else math.inf)
    end_s = time.monotonic() + for_s
    observed = measure_in_force(env, env.start, intervals, console.print, lambda: time.monotonic() >= end_s)
    if (now := target.configuration()) != found:
        raise ValueError(
            f"the configuration changed while it was observed, from {in_words(found)} to {in_words(now)}; "
            "observe it again once it stays"
        )
    tuned = grid.tuned_as_found
    console.print(observed_in_words(observed.standing, tuned))
    if failing := failures_in_words(observed.standing):
        console.print(failing, style="yellow")
    if not tuned:
        console.print(f"no recommendation: {target.why_not_tunable()}")
        return None
    by = source(task, options.objective, observed, found, table, simulate)
    return recommend(console.print, task, observed, tuned, by)


def _simulator(machine: Machine, task: Task) -> Simulate:
    """The cost of every configuration, each simulated from an empty server under Poisson arrivals."""
    space, objective = with_fixed(task.space, task.found), task.objective
    configurations = [space.configuration(number) for number in range(len(space))]

    def simulate(rate_per_s: float, slower: float) -> np.ndarray:
        table = machine.slower(slower)
        simulated = SimulatedServing(
            table, space, objective, rate_per_s, requests_per_interval=SIMULATED_REQUESTS
        )
        return np.array(
            [
                simulated.reset(seed=0, options={"configuration": configuration})[1]["cost"]
                if table.capacity_per_s(configuration) > rate_per_s
                else math.inf
                for configuration in configurations
            ]
        )

    return simulate


def _apply(
    options: TuneOptions,
    console: Console,
    stop: Stop,
    target: Target,
    configuration: dict[str, int],
    limits: ChangeLimits,
    put_back: Change | None = None,
) -> int:
    """Makes the change that was agreed to, watches it, and keeps or undoes it."""
    folder = run_folder(options)
    target.connect(control=True)
    point = restore_point(target)
    put_back = restored(point, target, console) or put_back
    found = target.configuration()
    both = careful_apply.two_configurations(found, configuration)
    space = without_forbidden(both, options.forbid, found)
    changing = dataclasses.replace(options, advise=False, apply_after_advise=False)
    grid = SearchGrid(changing, target, found, space, cores_of(target, options.cores))
    env = grid.environment(stop)
    header = grid.header(env.start)
    keeping = Keeping(target, space, point, Overtaken)
    change = careful_apply.AgreedChange(env, header, configuration, folder, point, keeping, limits, put_back)
    try:
        stop.says = PUTTING_BEST_IN_FORCE
        kept = change.run(console, stop.is_set)
    except (TargetError, GivenUp, OSError) as error:
        return ended_early(point, keeping, error, stop.is_set())
    except KeyboardInterrupt:  # A second one.
        return broken_off(point, keeping)
    return INTERRUPTED if kept.stopped else DONE
