"""`rrl-tune` as it tunes one model: opens everything, runs the loop, exports."""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console

from baselines import make_agent, use_one_thread
from rrl.agent import Task
from rrl.belief.belief import Belief
from rrl.belief.several_models.joint import JointBelief, belief_of
from rrl.command_line import watch_run
from rrl.command_line.embedded.embedded import EmbeddedFailed
from rrl.command_line.ending import (
    DONE,
    FAILED,
    INTERRUPTED,
    broken_off,
    ended_early,
    lost_or_failed,
    outcome,
)
from rrl.command_line.exporting import print_json, saying_found_is_missing, show_again
from rrl.command_line.opening.earlier import Earlier
from rrl.command_line.opening.reach import RunningServer, reach
from rrl.command_line.opening.search_grid import SearchGrid
from rrl.command_line.opening.several_models import SharedByModels
from rrl.command_line.options.option_values import run_folder, seconds
from rrl.command_line.options.options import TuneOptions
from rrl.command_line.own_page import watched_by_others
from rrl.guarding.choice import ToKeep
from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.journal import Journal
from rrl.queueing.machine import Machine
from rrl.records import Header
from rrl.tuning.change_log import ChangeLog
from rrl.tuning.giving_up import GivenUp
from rrl.tuning.keeping import Keeping
from rrl.tuning.listener import Change, Listener
from rrl.tuning.loop import Tuning
from rrl.tuning.settings import TuningSettings, baseline_for
from rrl.tuning.stop import PUTTING_BEST_IN_FORCE, Stop
from rrl.views.exports import export, print_places, print_result
from rrl.views.same_arrivals import StartBesideRun
from rrl.views.tensorboard_events import TensorBoardEvents
from rrl.views.terminal import LiveView, PlainView, make_view
from serving_adapter.flags.parsing import fail, in_a_sentence
from serving_adapter.target import Overtaken, TargetError, TargetLost


def tune(options: TuneOptions, console: Console, stop: Stop, shared: SharedByModels) -> int:
    """Tunes one model. Returns the exit code."""
    with ExitStack() as stack:
        try:
            run = _open(options, console, stop, stack, shared)
        except TargetLost as error:  # It may come back, so that it is no wrong use.
            print(f"the run ended: {in_a_sentence(error)}", file=sys.stderr)
            return lost_or_failed(error) if options.exit_code else FAILED
        except (ValueError, TargetError, OSError) as error:
            fail(in_a_sentence(error))
        except EmbeddedFailed as error:
            print(error, file=sys.stderr)
            return FAILED
        server, keeping, log = run.server, run.keeping, run.tuning.journal
        try:
            stop.says = PUTTING_BEST_IN_FORCE
            kept = run.tuning.run()
            failures = server.end_load()
            if not stop.is_set():
                server.measure_kept(log.header, kept.number, console)
            to_keep = ToKeep(kept.number, kept.reason) if kept.known else None
            summary = export(
                log,
                server.target,
                run.onlookers.events,
                to_keep,
                run.onlookers.start_beside.at_end(),
                saying_found_is_missing(console),
            )
        except (TargetError, GivenUp, EmbeddedFailed, OSError) as error:
            run.onlookers.view.close()
            with suppress(ValueError, OSError):  # The error that ended the run tells more.
                show_again(log.path.parent, console)
            code = ended_early(server.point, keeping, error, stop.is_set())
            return lost_or_failed(error) if options.exit_code and code == FAILED else code
        except KeyboardInterrupt:  # A second one, while what the run keeps was put in force.
            return broken_off(server.point, keeping)
        finally:
            run.onlookers.view.close()
            if keeping.done:
                server.release()
        if not kept.known:  # Another client's configuration is in force, which no summary tells of.
            print_places(console, log.path.parent)
        else:
            print_result(console, log, summary, failures)
            if smaller := server.target.refuses_more_than_found(summary.kept):
                console.print(smaller, style="yellow")
        if options.json:
            print_json(log.path.parent)
        if stop.is_set() and kept.stopped:
            return INTERRUPTED
        return outcome(log.header, summary) if options.exit_code and kept.known else DONE


class Onlookers(NamedTuple):
    """Who looks on while a run tunes."""

    view: PlainView | LiveView
    events: TensorBoardEvents | None  # None: it watches, for longer than such files can bear.
    start_beside: StartBesideRun
    listeners: list[Listener]  # These and the others, in the order in which they are told.


@dataclass(frozen=True)
class OpenRun:
    """Everything a run holds open."""

    tuning: Tuning
    server: RunningServer
    keeping: Keeping
    onlookers: Onlookers


def _open(
    options: TuneOptions, console: Console, stop: Stop, stack: ExitStack, shared: SharedByModels
) -> OpenRun:
    """Opens a run, piece by piece. ValueError or TargetError, and nothing changed, if it cannot be opened."""
    earlier = Earlier.of(options)
    machine = None if earlier.options.machine is None else Machine.load(earlier.options.machine)
    folder = run_folder(earlier.options)
    given = watch_run.given_table(earlier.options)
    metrics = stack.enter_context(watched_by_others(earlier.options, console))
    server = stack.enter_context(reach(earlier.options, folder, console, stop, metrics))
    metrics.reached()
    before = server.changes_before(earlier, console, shared.put_back)
    earlier.tell_how_found(server.target, console)
    grid = SearchGrid.of(earlier.options, server.target, console, earlier.start)
    env = grid.environment(stop, earlier.start)
    start = earlier.start_on(env, console)
    grid = grid.within_budget(shared.beside, console)
    agent = make_agent(grid.options.agent, grid.task(machine), grid.options.seed, background_training=True)
    stack.callback(agent.close)
    use_one_thread()
    header = earlier.teach(agent, earlier.planned(grid.header(start)), console, stop, metrics.goes_on)
    header = server.under_load(header, console)
    metrics.begins(header, grid.tuned_as_found)
    log = stack.enter_context(closing(earlier.journal_for(folder, header)))
    guard, belief = _guard(start, grid.task(), header.slo_p95_ms)
    settings = _settings(grid.options, header)
    server.claim(header)
    with ExitStack() as unless_opened:
        unless_opened.callback(server.release)
        places = f"{len(env.space)} configurations of {', '.join(env.space.names)}; journal in {log.path}"
        console.print(places)
        view = make_view(console, log, guard, settings, grid.tuned_as_found)
        unless_opened.callback(view.close)
        onlookers = _onlookers(view, log, guard, belief, settings, server)
        if onlookers.events is not None:
            stack.callback(onlookers.events.close)
        onlookers.listeners.append(metrics)
        metrics.start_ms = onlookers.start_beside.last_ms
        _tell(onlookers.listeners, before.put_back)
        keeping = Keeping(server.target, env.space, server.point, Overtaken)
        run = (env, agent, guard, log, settings, onlookers.listeners, stop.is_set, keeping.put_in_force)
        limits, found = earlier.limits(shared.limits), grid.tuned_as_found
        tuning = Tuning(
            *run,
            leave=keeping.leave,
            limits=limits,
            found=found,
            changed_before_s=before.times_s,
            known_best=watch_run.BestByLoad(log, given) if options.watches else None,
        )
        env.tell_away(tuning.telling.away)
        if (watching := tuning.watching) is not None:
            metrics.held_back = lambda: watching.held_back
        unless_opened.pop_all()
    return OpenRun(tuning, server, keeping, onlookers)


def _guard(start: int, task: Task, slo_p95_ms: float | None) -> tuple[Guard, Belief | JointBelief]:
    """The guard and a belief of its own, whatever the agent believes."""
    settings = GuardSettings(
        slo_p95_ms=slo_p95_ms,
        cost_is_latency=task.objective.unit == "ms",
        closed_loop=task.concurrency is not None,
    )
    belief = belief_of(task.space, task.objective, task.cores, task.found, concurrency=task.concurrency)
    return Guard(start, settings, task.excluded, belief), belief


def _onlookers(
    view: PlainView | LiveView,
    log: Journal,
    guard: Guard,
    belief: Belief | JointBelief,
    settings: TuningSettings,
    server: RunningServer,
) -> Onlookers:
    folder = log.path.parent
    events = None if settings.watches else TensorBoardEvents(folder, log.header, log.records)
    others = server.listeners(view, guard, log.header.space)
    start_beside = StartBesideRun(log.header, guard, belief)
    listeners = [start_beside, ChangeLog(folder), view, *([] if events is None else [events]), *others]
    return Onlookers(view, events, start_beside, listeners)


def _settings(options: TuneOptions, header: Header) -> TuningSettings:
    return TuningSettings(
        intervals=header.intervals,
        baseline=baseline_for(options.validation),
        validation=options.validation,
        duration_s=math.inf if options.duration is None else seconds(options.duration),
        watches=options.watches,
        counts_silence=options.count_silence,
        on_foreign_change=options.on_foreign_change,
    )


def _tell(listeners: list[Listener], put_back: Change | None) -> None:
    """Tells of the change that replaced what a killed run had left in force."""
    if put_back is not None:
        for listener in listeners:
            listener.changed(put_back)
