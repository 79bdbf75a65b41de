"""`rrl-tune`: tunes a running inference server; the one place that puts everything together."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

from baselines import AGENTS, NEED_HINDSIGHT, make_agent
from envs.live import LiveServing, cores_of, default_space
from envs.simulated import SimulatedServing
from rrl import advice, journal
from rrl.agent import Agent, Task
from rrl.embedded import Embedded, EmbeddedFailed, EmbeddedSettings, LoadEnded
from rrl.exports import export, print_result
from rrl.guard import Guard, GuardSettings
from rrl.journal import Header, Journal, Record
from rrl.objective import Objective, make_objective
from rrl.pretraining import REPLAY_LIMIT_S, Pretraining
from rrl.queueing.machine import Machine
from rrl.report import in_words
from rrl.restore import RestorePoint
from rrl.space import ConfigurationSpace
from rrl.stop import Stop
from rrl.tensorboard_events import TensorBoardEvents
from rrl.terminal import LiveView, PlainView
from rrl.tune_options import (
    EMBEDDED,
    TuneOptions,
    as_before,
    as_trained,
    check_unfinished,
    tuning_intervals,
    with_values,
)
from rrl.tuning import Observer, Stopped, Tuning, TuningSettings
from serving_adapter.arrivals import TimestampTrace, make_arrivals
from serving_adapter.options import fail, in_a_sentence, parse
from serving_adapter.sizes import make_sizes
from serving_adapter.target import Target, TargetError

LOG_WIDTH = 140  # where the output is no terminal
DONE, FAILED, INTERRUPTED = 0, 1, 130  # exit codes; wrong use is 2
SIMULATED_REQUESTS = 2000  # a configuration, to advise from a machine file


def main(argv: list[str] | None = None) -> None:
    options = parse(TuneOptions, argv)
    _check_agent(options.agent)
    torch.set_num_threads(1)  # the cores are the server's
    threadpool_limits(1)  # NumPy's too
    console = Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    stop = Stop(console.print)
    with stop.on_signals():
        try:
            code = _advise(options, console, stop) if options.advise else _tune(options, console, stop)
        except (Stopped, KeyboardInterrupt):
            code = INTERRUPTED
    raise SystemExit(code)


def _check_agent(name: str) -> None:
    known = [agent for agent in AGENTS if agent not in NEED_HINDSIGHT]
    if name in NEED_HINDSIGHT:
        fail(f"agent {name!r} needs the true cost of every configuration, which only a simulation knows; "
             "use rrl-compare")  # fmt: skip
    if name not in AGENTS:
        fail(f"unknown agent {name!r}; known: {', '.join(known)}")


def _tune(options: TuneOptions, console: Console, stop: Stop) -> int:
    with ExitStack() as stack:
        try:
            session = _open(options, console, stop, stack)
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
            return _ended_early(session, error, stop.is_set())
        finally:
            session.view.close()
            if session.point is not None and session.leaving.done:
                session.point.release()
        print_result(console, session.tuning.journal, summary, failures)
        return INTERRUPTED if stop.is_set() and outcome.stopped else DONE


def _ended_early(session: Session, error: Exception, stopped: bool) -> int:
    restores = session.point is not None and not session.leaving.done
    if stopped and isinstance(error, TargetError):
        next_start = "; the next start restores it" if restores else ""
        print(f"the target is away{next_start} ({error})", file=sys.stderr)
        return INTERRUPTED
    print(f"the run ended: {in_a_sentence(error)}", file=sys.stderr)
    if restores:
        print("the next rrl-tune on this target puts the found configuration back", file=sys.stderr)
    return FAILED


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


def _open(options: TuneOptions, console: Console, stop: Stop, stack: ExitStack) -> Session:
    """Opens a run; ValueError or TargetError, nothing changed, if it cannot be."""
    earlier = None if options.resume is None else journal.read(options.resume)
    if earlier is not None:
        options = as_before(options, earlier[0])
        check_unfinished(options, *earlier)
    pretraining = _pretraining(options, None if earlier is None else earlier[0])
    if pretraining is not None and earlier is None:
        options = as_trained(options, pretraining.header)
    machine = None if options.machine is None else Machine.load(options.machine)
    folder = options.resume or options.out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if options.resume is None and (folder / journal.FILE_NAME).exists():
        raise ValueError(f"{folder} holds a run: continue it with --resume {folder}, or name another --out")
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
    if point is not None:
        _restore(point, target, console)
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
    task = Task(env.space, objective, cores_of(target, found), machine)
    agent = make_agent(options.agent, task, options.seed, background_training=True)
    stack.callback(getattr(agent, "close", lambda: None))
    header = _header(options, target, env, start, found)
    if pretraining is not None:
        limit_s = math.inf if earlier else REPLAY_LIMIT_S  # a resumed run takes over the same again
        taken = _taken_over(pretraining, agent, header, limit_s, console, stop)
        header = dataclasses.replace(header, agent_from=taken)
    if embedded is not None:
        embedded.start_load()
        console.print(f"serving {embedded.settings.model} on {embedded.address} at {embedded.rate_per_s:g}/s")
        header = dataclasses.replace(header, load=_load(options, embedded))
    log = Journal.create(folder, header) if earlier is None else Journal.open_to_resume(folder, header)
    stack.callback(log.close)
    guard = Guard(start, GuardSettings(slo_p95_ms=options.slo_p95_ms))
    settings = TuningSettings(intervals=tuning_intervals(options))
    if point is not None:
        point.claim(found)
    console.print(f"{len(env.space)} configurations of {', '.join(env.space.names)}; journal in {log.path}")
    view = _view(console, log, guard, settings)
    events = TensorBoardEvents(folder, log.header, log.records)
    observers: list[Observer] = [view, events]
    if point is not None:
        observers.append(_SafeBest(point, guard, env.space))
    if embedded is not None:
        observers.append(_LoadWatch(embedded, view))
    leaving = Leaving(target, env.space, found)
    tuning = Tuning(env, agent, guard, log, settings, observers, stop.is_set, leaving)
    return Session(tuning, target, leaving, view, events, point, embedded)


class Leaving:
    """Puts in force what the run leaves: the tuned knobs as chosen, the others as they were found."""

    def __init__(self, target: Target, space: ConfigurationSpace, found: dict[str, int]) -> None:
        self.done = False
        self._target, self._space, self._found = target, space, found

    def __call__(self, number: int) -> None:
        self._target.connect(control=False)  # it may have been away when the run ended
        self._target.apply(self._found | self._space.configuration(number))
        self.done = True


class _SafeBest(Observer):
    """Keeps the state file's word of the best configuration known to be safe."""

    def __init__(self, point: RestorePoint, guard: Guard, space: ConfigurationSpace) -> None:
        self._point, self._guard, self._space = point, guard, space

    def measured(self, record: Record) -> None:
        self._point.safe(self._space.configuration(self._guard.to_leave()))


class _LoadWatch(Observer):
    """Ends the run with the embedded load."""

    def __init__(self, embedded: Embedded, view: Observer) -> None:
        self._embedded, self._view = embedded, view

    def measured(self, record: Record) -> None:
        try:
            self._embedded.check()
        except LoadEnded as ended:
            self._view.notice(str(ended))
            raise


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


def _pretraining(options: TuneOptions, earlier: Header | None) -> Pretraining | None:
    """What the agent starts from, where it does; of a resumed run what it started from then."""
    if earlier is not None:
        return None if earlier.agent_from is None else Pretraining.read_again(earlier.agent_from)
    return None if options.agent_from is None else Pretraining.read(options.agent_from)


def _taken_over(
    pretraining: Pretraining, agent: Agent, header: Header, limit_s: float, console: Console, stop: Stop
) -> dict[str, Any]:
    """Replays an earlier journal into the agent; returns what the new journal says of it."""
    pretraining.check_starts(header)
    total = len(pretraining.records)
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("decisions", total=total)

        def replayed() -> None:
            progress.advance(task)
            if stop.is_set():
                raise Stopped

        done = pretraining.replay(agent, header.space, limit_s, replayed)
    console.print(f"{header.agent} starts from {done} decisions of {pretraining.folder}")
    if done < total:
        console.print(
            f"{total - done} later ones were left away, as they would have taken over {limit_s:g} s",
            style="yellow",
        )
    return pretraining.to_json(done)


def _connected(options: TuneOptions, address: str, model: str | None, control: bool) -> Target:
    key = options.control_key or os.environ.get("RRL_CONTROL_KEY")
    target = Target(address, model, options.metrics_url, key, options.tls_ca)
    target.connect(control=control)
    return target


def _restore(point: RestorePoint, target: Target, console: Console) -> None:
    left = point.left_behind()
    if left is not None:
        target.apply(left.found)
        console.print(
            f"an earlier run was killed here: put back the configuration it had found, {in_words(left.found)}"
            + (f" (the best it knew: {in_words(left.best)})" if left.best != left.found else ""),
            style="yellow",
        )


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
        return with_values(default_space(found, cores_of(target, found)), start)
    given = ConfigurationSpace.parse(options.knobs)
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
    )


def _load(options: TuneOptions, embedded: Embedded) -> dict[str, Any]:
    return {
        "rate": embedded.rate_per_s,
        "model": options.model,
        "arrivals": options.arrivals,
        "sizes": options.sizes,
    }


def _view(console: Console, log: Journal, guard: Guard, settings: TuningSettings) -> PlainView | LiveView:
    done = sum(record.counted for record in log.records)
    extra = 1 if done else 0  # a resumed run measures the start once more
    total = settings.baseline + settings.intervals + 2 * settings.validation + extra
    if console.is_terminal:
        return LiveView(console, log.header, guard, total, done)
    return PlainView(console, log.header, total, done)


def _advise(options: TuneOptions, console: Console, stop: Stop) -> int:
    try:
        target = _connected(options, str(options.target), options.model, control=False)
        found = target.configuration()
        objective = make_objective(options.objective, options.slo_p95_ms)
        env = _environment(options, target, objective, stop, _space(options, target, found, found, console))
        table = advice.earlier_table(options.reference_table, target.model)
        simulate = None if options.machine is None else _simulator(options.machine, env)
        for note in target.notes:
            console.print(note, style="yellow")
        now = advice.observe(env, env.start, options.intervals or advice.INTERVALS, console.print)
        now = dataclasses.replace(now, configuration={name: found[name] for name in env.space.names})
        advice.recommend(console, env, now, options.objective, table, simulate)
    except (ValueError, TargetError, OSError) as error:
        fail(in_a_sentence(error))
    return DONE


def _simulator(machine: Path, env: LiveServing) -> advice.Simulate:
    """The cost of every configuration, each simulated from an empty server under Poisson arrivals."""
    table = Machine.load(machine)
    space = env.space

    def simulate(rate_per_s: float) -> dict[int, float]:
        simulated = SimulatedServing(
            table, space, env.objective, rate_per_s, requests_per_interval=SIMULATED_REQUESTS
        )
        return {
            number: simulated.reset(seed=0, options={"configuration": space.configuration(number)})[1]["cost"]
            for number in range(len(space))
        }

    return simulate


if __name__ == "__main__":
    main()
