"""`rrl-tune` as it tunes one model: opens everything, runs the loop, exports."""

from __future__ import annotations

import dataclasses
import math
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from baselines import make_agent
from envs.live import cores_of
from rrl import journal
from rrl.agent import Task
from rrl.command_line.embedded import Embedded, EmbeddedFailed, EmbeddedSettings, LoadWatch
from rrl.command_line.exporting import show_again
from rrl.command_line.opening import (
    DONE,
    FAILED,
    INTERRUPTED,
    Shared,
    broken_off,
    connected,
    ended_early,
    environment,
    header_of,
    over_its_share,
    restored,
    space_of,
    with_its_share,
)
from rrl.command_line.options import (
    TuneOptions,
    as_before,
    as_trained,
    change_limits,
    check_unfinished,
    run_folder,
    seconds,
    tuning_intervals,
)
from rrl.guarding.guard import Guard, GuardSettings, ToKeep
from rrl.journal import Journal
from rrl.knobs import in_words
from rrl.objective import make_objective
from rrl.queueing.machine import Machine
from rrl.tuning.change_log import ChangeLog, times_since
from rrl.tuning.keeping import BestInStateFile, Keeping
from rrl.tuning.listener import Listener
from rrl.tuning.loop import Tuning, TuningSettings, baseline_for
from rrl.tuning.pretraining import REPLAY_LIMIT_S, starting_from, taken_over
from rrl.tuning.restore import RestorePoint
from rrl.tuning.stop import PUTTING_BEST_IN_FORCE, Stop
from rrl.views.exports import export, print_result
from rrl.views.tensorboard_events import TensorBoardEvents
from rrl.views.terminal import LiveView, PlainView, make_view
from serving_adapter.load.arrivals import TimestampTrace, make_arrivals
from serving_adapter.load.sizes import make_sizes
from serving_adapter.options import fail, in_a_sentence
from serving_adapter.target import Target, TargetError


def tune(options: TuneOptions, console: Console, stop: Stop, shared: Shared) -> int:
    with ExitStack() as stack:
        try:
            session = _open(options, console, stop, stack, shared)
        except (ValueError, TargetError, OSError) as error:
            fail(in_a_sentence(error))
        except EmbeddedFailed as error:
            print(error, file=sys.stderr)
            return FAILED
        try:
            stop.says = PUTTING_BEST_IN_FORCE
            kept = session.tuning.run()
            failures = session.embedded.end_load() if session.embedded else None
            left = ToKeep(kept.number, kept.reason)
            summary = export(session.tuning.journal, session.target, session.events, left)
        except (TargetError, EmbeddedFailed, OSError) as error:
            session.view.close()
            with suppress(ValueError, OSError):  # the error that ended the run tells more
                show_again(session.tuning.journal.path.parent)
            return ended_early(session.point, session.keeping, error, stop.is_set())
        except KeyboardInterrupt:  # a second one, while what the run leaves was put in force
            return broken_off(session.point, session.keeping)
        finally:
            session.view.close()
            if session.point is not None and session.keeping.done:
                session.point.release()
        print_result(console, session.tuning.journal, summary, failures)
        if smaller := session.target.refuses_more_than_found(summary.left):
            console.print(smaller, style="yellow")
        return INTERRUPTED if stop.is_set() and kept.stopped else DONE


@dataclass(frozen=True)
class Session:
    """Everything a run holds open."""

    tuning: Tuning
    target: Target
    keeping: Keeping
    view: PlainView | LiveView
    events: TensorBoardEvents
    point: RestorePoint | None  # the embedded server ends with its run: nothing to restore
    embedded: Embedded | None


def _open(options: TuneOptions, console: Console, stop: Stop, stack: ExitStack, shared: Shared) -> Session:
    """Opens a run; ValueError or TargetError, nothing changed, if it cannot be."""
    earlier = None if options.resume is None else journal.read(options.resume)
    if earlier is not None:
        options = as_before(options, earlier[0])
        check_unfinished(options, *earlier)
    pretraining = starting_from(options.agent_from, None if earlier is None else earlier[0])
    if pretraining is not None and earlier is None:
        options = as_trained(options, pretraining.header)
    machine = None if options.machine is None else Machine.load(options.machine)
    folder = run_folder(options)
    embedded = None
    if options.target is None:
        embedded = Embedded(folder, _embedded_settings(options))
        stack.callback(embedded.close)
        console.print(f"starting the server and its load (logs in {folder}) ...")
        embedded.start_server(stop.sleep)
    if embedded is None:
        target = connected(options, str(options.target), options.model, control=True)
    else:
        target = connected(options, embedded.address, None, control=True)
    stack.callback(target.close)
    for note in target.notes:
        console.print(note, style="yellow")
    point = None if embedded else RestorePoint(target.address, target.model)
    changed_at_s: list[float] = []
    if earlier is not None and embedded is None:
        changed_at_s += times_since(folder, earlier[1][-1].wall_time_s if earlier[1] else 0.0)
    put_back = None if point is None else restored(point, target, console) or shared.put_back
    if earlier is not None and earlier[0].found_config_pbtxt is not None:
        # Its run may have left other preferred batch sizes.
        target.was_found_as(earlier[0].found_config_pbtxt)
    found = target.configuration()
    objective = make_objective(options.objective, options.slo_p95_ms)
    space = space_of(options, target, found, earlier[0].start if earlier else found, console)
    env = environment(options, target, objective, stop, space, earlier[0].start if earlier else None)
    start = env.space.number(earlier[0].start) if earlier else env.start
    if env.space.configuration(env.start).items() - found.items():
        console.print(
            f"the journal's grid does not hold the configuration found, {in_words(found)}: "
            f"the comparison is with the journal's start, {in_words(env.space.configuration(start))}",
            style="yellow",
        )
    options = with_its_share(options, target, found, shared.beside, console)
    over = over_its_share(options, space, found)
    task = Task(
        env.space,
        objective,
        cores_of(target, found),
        machine,
        in_place=target.in_place_knobs,
        excluded=over,
    )
    agent = make_agent(options.agent, task, options.seed, background_training=True)
    stack.callback(agent.close)
    header = header_of(options, target, env, start, found)
    if pretraining is not None:
        limit_s = math.inf if earlier else REPLAY_LIMIT_S  # a resumed run takes over the same again
        taken = taken_over(pretraining, agent, header, limit_s, console, stop.is_set)
        header = dataclasses.replace(header, agent_from=taken)
    if embedded is not None:
        embedded.start_load()
        console.print(f"serving {embedded.settings.model} on {embedded.address} at {embedded.rate_per_s:g}/s")
        header = dataclasses.replace(header, load=_load(options, embedded))
    log = Journal.create(folder, header) if earlier is None else Journal.open_to_resume(folder, header)
    stack.callback(log.close)
    guard = Guard(start, GuardSettings(slo_p95_ms=options.slo_p95_ms), over)
    settings = TuningSettings(
        intervals=tuning_intervals(options),
        baseline=baseline_for(options.validation),
        validation=options.validation,
        duration_s=math.inf if options.duration is None else seconds(options.duration),
    )
    if point is not None:
        point.claim(found, header.found_config_pbtxt or "")
    console.print(f"{len(env.space)} configurations of {', '.join(env.space.names)}; journal in {log.path}")
    view = make_view(console, log, guard, settings)
    events = TensorBoardEvents(folder, log.header, log.records)
    listeners: list[Listener] = [ChangeLog(folder), view, events]
    if point is not None:
        listeners.append(BestInStateFile(point, guard, env.space))
    if embedded is not None:
        listeners.append(LoadWatch(embedded, view))
    if put_back is not None:
        changed_at_s.append(put_back.at.timestamp())
        for listener in listeners:
            listener.changed(put_back)
    keeping = Keeping(target, env.space)
    tuning = Tuning(
        env,
        agent,
        guard,
        log,
        settings,
        listeners,
        stop.is_set,
        keeping.put_in_force,
        limits=shared.limits if earlier is None else change_limits(options),
        found={name: found[name] for name in env.space.names},
        changed_before_s=changed_at_s,
    )
    return Session(tuning, target, keeping, view, events, point, embedded)


def _embedded_settings(options: TuneOptions) -> EmbeddedSettings:
    """ValueError for a load that rrl-load would refuse."""
    arrivals = make_arrivals(options.arrivals, options.rate or 1.0)
    make_sizes(options.sizes, arrivals.sizes if isinstance(arrivals, TimestampTrace) else None)
    if options.rate is None and options.sizes.startswith("trace"):
        raise ValueError("--sizes trace needs a --rate: the server is measured without the trace")
    return EmbeddedSettings(
        model=options.model or "minilm",
        rate_per_s=options.rate,
        arrivals=options.arrivals,
        sizes=options.sizes,
        seed=options.seed,
    )


def _load(options: TuneOptions, embedded: Embedded) -> dict[str, Any]:
    return {
        "rate": embedded.rate_per_s,
        "model": options.model,
        "arrivals": options.arrivals,
        "sizes": options.sizes,
    }
