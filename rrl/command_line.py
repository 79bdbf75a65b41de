"""`rrl-tune`: tunes a running inference server; the one place that puts everything together."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from rich.console import Console
from threadpoolctl import threadpool_limits

from baselines import AGENTS, NEED_HINDSIGHT, make_agent
from envs.live import LiveServing, cores_of, default_space
from envs.simulated import SimulatedServing
from rrl import advice, careful_apply, journal
from rrl.agent import Task
from rrl.change_limits import ChangeLimits
from rrl.change_log import ChangeLog
from rrl.core_budget import over_budget, share
from rrl.embedded import Embedded, EmbeddedFailed, EmbeddedSettings, LoadWatch
from rrl.exports import export, print_places, print_result, write_views
from rrl.foresight import Simulate
from rrl.guard import Guard, GuardSettings
from rrl.journal import Header, Journal
from rrl.leaving import Leaving, SafeBest, change_since, restore
from rrl.objective import Objective, make_objective
from rrl.observer import Observer
from rrl.pretraining import REPLAY_LIMIT_S, starting_from, taken_over
from rrl.queueing.machine import Machine
from rrl.report import in_words, summarise
from rrl.restore import RestorePoint
from rrl.space import ConfigurationSpace
from rrl.stop import Stop
from rrl.tensorboard_events import TensorBoardEvents
from rrl.terminal import LiveView, PlainView, make_view
from rrl.tune_options import (
    EMBEDDED,
    TuneOptions,
    as_before,
    as_trained,
    change_limits,
    check_given_once,
    check_unfinished,
    for_each_model,
    limits_to_json,
    models_of,
    run_folder,
    seconds,
    tuning_intervals,
    with_values,
    without_forbidden,
)
from rrl.tuning import Stopped, Tuning, TuningSettings
from serving_adapter.arrivals import TimestampTrace, make_arrivals
from serving_adapter.kept_configuration import KeptConfiguration
from serving_adapter.options import fail, in_a_sentence, parse
from serving_adapter.sizes import make_sizes
from serving_adapter.target import Target, TargetError

LOG_WIDTH = 140  # where the output is no terminal
DONE, FAILED, INTERRUPTED = 0, 1, 130  # exit codes; wrong use is 2
SIMULATED_REQUESTS = 2000  # a configuration, to advise from a machine file


def main(argv: list[str] | None = None) -> None:
    try:
        check_given_once(sys.argv[1:] if argv is None else argv)
    except ValueError as error:
        fail(str(error))
    options = parse(TuneOptions, argv)
    _check_agent(options.agent)
    if options.export is not None:
        _export(options.export)
    torch.set_num_threads(1)  # the cores are the server's
    threadpool_limits(1)  # NumPy's too
    console = _console()
    stop = Stop(console.print)
    with stop.on_signals():
        try:
            code = _each_model(options, console, stop)
        except (Stopped, KeyboardInterrupt):
            code = INTERRUPTED
    raise SystemExit(code)


def _each_model(options: TuneOptions, console: Console, stop: Stop) -> int:
    """Tunes, or advises on, the models in turn; ends with the first that does not end well."""
    runs, limits = for_each_model(options), change_limits(options)
    for one in runs:
        if len(runs) > 1:
            console.rule(f"{one.model}: {runs.index(one) + 1} of {len(runs)} models")
        shared = Shared(limits, [other for other in models_of(options) if other != one.model])
        code = _advise(one, console, stop) if options.advise else _tune(one, console, stop, shared)
        if code != DONE:
            return code
    return DONE


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)


def _check_agent(name: str) -> None:
    known = [agent for agent in AGENTS if agent not in NEED_HINDSIGHT]
    if name in NEED_HINDSIGHT:
        fail(f"agent {name!r} needs the true cost of every configuration, which only a simulation knows; "
             "use rrl-compare")  # fmt: skip
    if name not in AGENTS:
        fail(f"unknown agent {name!r}; known: {', '.join(known)}")


def _tune(options: TuneOptions, console: Console, stop: Stop, shared: Shared) -> int:
    with ExitStack() as stack:
        try:
            session = _open(options, console, stop, stack, shared)
        except (ValueError, TargetError, OSError) as error:
            fail(in_a_sentence(error))
        except EmbeddedFailed as error:
            print(error, file=sys.stderr)
            return FAILED
        try:
            outcome = session.tuning.run()
            failures = session.embedded.end_load() if session.embedded else None
            summary = export(session.tuning.journal, session.target, session.events, left=outcome.left)
        except (TargetError, EmbeddedFailed, OSError) as error:
            session.view.close()
            with suppress(ValueError, OSError):  # the error that ended the run tells more
                _show_again(session.tuning.journal.path.parent)
            return _ended_early(session.point, session.leaving, error, stop.is_set())
        finally:
            session.view.close()
            if session.point is not None and session.leaving.done:
                session.point.release()
        print_result(console, session.tuning.journal, summary, failures)
        return INTERRUPTED if stop.is_set() and outcome.stopped else DONE


def _export(folder: Path) -> NoReturn:
    """Writes what an earlier run exports anew."""
    try:
        _show_again(folder)
    except (ValueError, OSError) as error:
        fail(in_a_sentence(error))
    raise SystemExit(DONE)


def _show_again(folder: Path) -> None:
    """Writes the views of the journal in a folder, asking no target, and says where they are."""
    header, records = journal.read(folder)
    kept = None if header.found_config_pbtxt is None else KeptConfiguration(header.found_config_pbtxt)
    write_views(folder, header, records, summarise(header, records), kept)
    print_places(_console(), folder)


def _ended_early(point: RestorePoint | None, leaving: Leaving, error: Exception, stopped: bool) -> int:
    restores = point is not None and not leaving.done
    if stopped and isinstance(error, TargetError):
        next_start = "; the next start restores it" if restores else ""
        print(f"the target is away{next_start} ({error})", file=sys.stderr)
        return INTERRUPTED
    print(f"the run ended: {in_a_sentence(error)}", file=sys.stderr)
    if restores:
        print("the next rrl-tune on this target puts the found configuration back", file=sys.stderr)
    return FAILED


@dataclass(frozen=True)
class Shared:
    """What a model's run shares with those of the server's other models."""

    limits: ChangeLimits
    beside: Sequence[str]  # models that use the same budget of cores


@dataclass(frozen=True)
class Session:
    """Everything a run holds open."""

    tuning: Tuning
    target: Target
    leaving: Leaving
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
        target = _connected(options, str(options.target), options.model, control=True)
    else:
        target = _connected(options, embedded.address, None, control=True)
    stack.callback(target.close)
    for note in target.notes:
        console.print(note, style="yellow")
    point = None if embedded else RestorePoint(target.address, target.model)
    changed_at_s: list[float] = []
    if earlier is not None and embedded is None:
        changed_at_s += change_since(earlier[1], target.configuration(), options.interval_s)
    restored = None if point is None else restore(point, target, console)
    found = target.configuration()
    objective = make_objective(options.objective, options.slo_p95_ms)
    space = _space(options, target, found, earlier[0].start if earlier else found, console)
    env = _environment(options, target, objective, stop, space)
    start = env.space.number(earlier[0].start) if earlier else env.start
    if env.space.configuration(env.start).items() - found.items():
        console.print(
            f"the journal's grid does not hold the configuration found, {in_words(found)}: "
            f"the comparison is with the journal's start, {in_words(env.space.configuration(start))}",
            style="yellow",
        )
    options = _with_its_share(options, target, found, shared.beside, console)
    over = frozenset() if options.cores is None else over_budget(space, options.cores)
    task = Task(env.space, objective, cores_of(target, found), machine, excluded=over)
    agent = make_agent(options.agent, task, options.seed, background_training=True)
    stack.callback(getattr(agent, "close", lambda: None))
    header = _header(options, target, env, start, found)
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
        validation=options.validation,
        duration_s=math.inf if options.duration is None else seconds(options.duration),
    )
    if point is not None:
        point.claim(found)
    console.print(f"{len(env.space)} configurations of {', '.join(env.space.names)}; journal in {log.path}")
    view = make_view(console, log, guard, settings)
    events = TensorBoardEvents(folder, log.header, log.records)
    observers: list[Observer] = [ChangeLog(folder), view, events]
    if point is not None:
        observers.append(SafeBest(point, guard, env.space))
    if embedded is not None:
        observers.append(LoadWatch(embedded, view))
    if restored is not None:
        changed_at_s.append(restored.at.timestamp())
        for observer in observers:
            observer.changed(restored)
    leaving = Leaving(target, env.space, found)
    tuning = Tuning(
        env,
        agent,
        guard,
        log,
        settings,
        observers,
        stop.is_set,
        leaving,
        limits=shared.limits,
        found={name: found[name] for name in env.space.names},
        changed_before_s=changed_at_s,
    )
    return Session(tuning, target, leaving, view, events, point, embedded)


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


def _with_its_share(
    options: TuneOptions, target: Target, found: dict[str, int], beside: Sequence[str], console: Console
) -> TuneOptions:
    """The options with the cores that the models beside this one leave of the budget, where there is one."""
    if options.cores is None and not beside:
        return options
    others = []
    for name in beside:
        with closing(_connected(options, str(options.target), name, control=False)) as other:
            others.append(other.configuration())
    budget = options.cores or cores_of(target, found)
    cores = share(budget, found, others)
    console.print(f"{target.model} may use {cores} of the budget of {budget} cores")
    return dataclasses.replace(options, cores=cores)


def _connected(options: TuneOptions, address: str, model: str | None, control: bool) -> Target:
    key = options.control_key or os.environ.get("RRL_CONTROL_KEY")
    target = Target(address, model, options.metrics_url, key, options.tls_ca)
    target.connect(control=control)
    return target


def _environment(
    options: TuneOptions, target: Target, objective: Objective, stop: Stop, space: ConfigurationSpace
) -> LiveServing:
    return LiveServing(
        target,
        space,
        objective,
        options.interval_s,
        options.settle_s,
        advise=options.advise,
        sleep=stop.sleep,
    )


def _space(
    options: TuneOptions, target: Target, found: dict[str, int], start: dict[str, int], console: Console
) -> ConfigurationSpace:
    """The grid given, or the usual one of the target's knobs; with the start's values added to it."""
    if not options.knobs:
        usual = default_space(found, cores_of(target, found))
        return with_values(without_forbidden(usual, options.forbid, found), start)
    given = without_forbidden(ConfigurationSpace.parse(options.knobs), options.forbid, found)
    space = with_values(given, start)
    added = [f"{k.name}={start[k.name]}" for k, new in zip(given.knobs, space.knobs, strict=True) if k != new]
    if added:
        console.print(f"added to the --knobs, as the run starts there: {', '.join(added)}", style="yellow")
    return space


def _header(
    options: TuneOptions,
    target: Target,
    env: LiveServing,
    start: int,
    found: dict[str, int],
) -> Header:
    return Header(
        space=env.space,
        objective=options.objective,
        slo_p95_ms=options.slo_p95_ms,
        agent=options.agent,
        seed=options.seed,
        target=EMBEDDED if options.target is None else target.address,
        model=target.model,
        found=found,
        start=env.space.configuration(start),
        interval_s=options.interval_s,
        settle_s=options.settle_s,
        intervals=tuning_intervals(options),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=None if options.machine is None else str(options.machine.absolute()),
        validation=options.validation,
        limits=limits_to_json(options),
        found_config_pbtxt=target.config_pbtxt(),
        metrics_url=options.metrics_url,
    )


def _load(options: TuneOptions, embedded: Embedded) -> dict[str, Any]:
    return {
        "rate": embedded.rate_per_s,
        "model": options.model,
        "arrivals": options.arrivals,
        "sizes": options.sizes,
    }


def _apply(
    options: TuneOptions, console: Console, stop: Stop, target: Target, configuration: dict[str, int]
) -> int:
    """The change that was agreed to: made, watched, kept or undone. Errors before it come out as they are."""
    careful_apply.check_allowed(change_limits(options), options.interval_s)
    folder = run_folder(options)
    target.connect(control=True)
    point = RestorePoint(target.address, target.model)
    restored = restore(point, target, console)
    found = target.configuration()
    both = careful_apply.two_configurations(found, configuration)
    space = without_forbidden(both, options.forbid, found)
    objective = make_objective(options.objective, options.slo_p95_ms)
    env = _environment(
        dataclasses.replace(options, advise=False, apply_after_advise=False), target, objective, stop, space
    )
    header = _header(options, target, env, env.start, found)
    leaving = Leaving(target, space, found)
    change = careful_apply.AgreedChange(env, header, configuration, folder, point, leaving, restored)
    try:
        outcome = change.run(console, stop.is_set)
    except (TargetError, OSError) as error:
        return _ended_early(point, leaving, error, stop.is_set())
    return INTERRUPTED if outcome.stopped else DONE


def _advise(options: TuneOptions, console: Console, stop: Stop) -> int:
    """Says what the target does and what it had better do; changes it only if asked to and agreed."""
    try:
        if options.apply_after_advise:
            careful_apply.check_can_ask()
        with closing(_connected(options, str(options.target), options.model, control=False)) as target:
            recommended = _recommended(options, console, stop, target)
            if recommended is None or not options.apply_after_advise or not careful_apply.agreed(console):
                return DONE
            return _apply(options, console, stop, target, recommended)
    except (ValueError, TargetError, OSError) as error:
        fail(in_a_sentence(error))


def _recommended(options: TuneOptions, console: Console, stop: Stop, target: Target) -> dict[str, int] | None:
    """The change that would be better, said with all that speaks for it; None for none."""
    found = target.configuration()
    objective = make_objective(options.objective, options.slo_p95_ms)
    env = _environment(options, target, objective, stop, _space(options, target, found, found, console))
    task = Task(env.space, objective, cores_of(target, found))
    table = advice.earlier_table(options.reference_table, target.model)
    simulate = None if options.machine is None else _simulator(Machine.load(options.machine), task)
    for note in target.notes:
        console.print(note, style="yellow")
    observed = advice.observe(env, env.start, options.intervals or advice.INTERVALS, console.print)
    tuned = {name: found[name] for name in env.space.names if name in found}
    console.print(advice.observed_in_words(observed.standing, tuned))
    if not tuned:
        console.print(
            f"no recommendation: {target.server} tells no knob of {target.model} that could be changed; "
            "serve it with rrl-serve or Triton to have it tuned"
        )
        return None
    by = advice.source(task, options.objective, observed, found, table, simulate)
    return advice.recommend(console.print, task, observed, tuned, by)


def _simulator(machine: Machine, task: Task) -> Simulate:
    """The cost of every configuration, each simulated from an empty server under Poisson arrivals."""
    space, objective = task.space, task.objective
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


if __name__ == "__main__":
    main()
