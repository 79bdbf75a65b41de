"""What tuning and advising begin and end with: the target, its grid, its environment, the exit codes."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console

from envs.live import LiveServing, check_space, cores_of, default_space
from rrl.command_line.core_budget import over_budget, share
from rrl.command_line.options import (
    TuneOptions,
    limits_to_json,
    run_folder,
    seconds,
    tuning_intervals,
    without_forbidden,
    without_smaller_batches,
)
from rrl.journal import EMBEDDED, Header
from rrl.objective import Objective
from rrl.space import Configuration, ConfigurationSpace, with_values
from rrl.tuning.change_limits import ChangeLimits
from rrl.tuning.keeping import Keeping, restore
from rrl.tuning.listener import Change
from rrl.tuning.restore import RestorePoint
from rrl.tuning.stop import Stop
from serving_adapter.options import fail, in_a_sentence
from serving_adapter.target import NotPutBack, Target, TargetError, TargetLost

DONE, FAILED, INTERRUPTED = 0, 1, 130  # exit codes; wrong use is 2


@dataclass(frozen=True)
class Shared:
    """What a model's run shares with those of the server's other models."""

    limits: ChangeLimits
    beside: Sequence[str]  # models that use the same budget of cores
    put_back: Change | None = None  # of this model, what a killed run had left


def connected(options: TuneOptions, address: str, model: str | None, control: bool) -> Target:
    key = options.control_key or os.environ.get("RRL_CONTROL_KEY")
    target = Target(address, model, options.metrics_url, key, options.tls_ca)
    target.connect(control=control)
    return target


def check_each(runs: Sequence[TuneOptions], console: Console) -> dict[str, Change]:
    """That every model can be tuned as asked, or observed, before anything is tuned at the first.

    What killed runs left of any is put back by then, as the first may be tuned for hours; by model, what that
    changed.
    """
    put_back = {}
    for one in runs:
        try:
            with closing(connected(one, str(one.target), one.model, control=not one.advise)) as target:
                change = (
                    None
                    if one.advise
                    else restored(RestorePoint(target.address, target.model), target, console)
                )
                if change is not None:
                    put_back[target.model] = change
                found = target.configuration()
                if not one.advise:
                    run_folder(one)
                    check_space(
                        space_of(one, target, found, found, Console(quiet=True)), target.knobs(), found
                    )
        except (ValueError, TargetError) as error:
            fail(in_a_sentence(error))
    return put_back


def with_its_share(
    options: TuneOptions, target: Target, found: dict[str, int], beside: Sequence[str], console: Console
) -> TuneOptions:
    """The options with the cores that the models beside this one leave of the budget, where there is one."""
    if options.cores is None and not beside:
        return options
    budget = options.cores or cores_of(target, found)
    if budget is None:
        raise ValueError(
            f"{target.address} does not tell how many cores its machine has, which its models are to share; "
            "give --cores"
        )
    others = []
    for name in beside:
        with closing(connected(options, str(options.target), name, control=False)) as other:
            others.append(other.configuration())
    cores = share(budget, found, others)
    beyond = ", as it was found" if cores > budget else ""
    console.print(f"{target.model} may use {cores} of the budget of {budget} cores{beyond}")
    return dataclasses.replace(options, cores=cores)


def over_its_share(options: TuneOptions, space: ConfigurationSpace, found: dict[str, int]) -> frozenset[int]:
    """The configurations that use more cores than the options allow the model, where they limit them."""
    return frozenset() if options.cores is None else over_budget(space, options.cores, found)


def space_of(
    options: TuneOptions, target: Target, found: dict[str, int], start: dict[str, int], console: Console
) -> ConfigurationSpace:
    """The grid given, or the usual one of the target's knobs; with the start's values added to it."""
    given = (
        ConfigurationSpace.parse(options.knobs)
        if options.knobs
        else default_space(found, cores_of(target, found))
    )
    given = without_forbidden(given, options.forbid, found)
    bearable = without_smaller_batches(given, start)
    if bearable != given and target.requests_hold_several_items():
        why = "some requests hold several items, and Triton answers none that holds more than that"
        least = f"max_batch_size stays at {start['max_batch_size']} or above: {why}"
        if options.resume is not None:
            raise ValueError(f"{least}; the run in {options.resume} was to try smaller ones: begin another")
        console.print(least, style="yellow")
        given = bearable
    space = with_values(given, start)
    if not options.knobs:
        return space
    added = [f"{k.name}={start[k.name]}" for k, new in zip(given.knobs, space.knobs, strict=True) if k != new]
    if added:
        console.print(f"added to the --knobs, as the run starts there: {', '.join(added)}", style="yellow")
    return space


def environment(
    options: TuneOptions,
    target: Target,
    objective: Objective,
    stop: Stop,
    space: ConfigurationSpace,
    start: Configuration | None = None,
) -> LiveServing:
    """`start`: that of the run which is resumed."""
    return LiveServing(
        target,
        space,
        objective,
        options.interval_s,
        options.settle_s,
        advise=options.advise,
        sleep=stop.sleep,
        known=start,
    )


def header_of(
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
        duration_s=None if options.duration is None else seconds(options.duration),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=None if options.machine is None else str(options.machine.absolute()),
        validation=options.validation,
        limits=limits_to_json(options),
        found_config_pbtxt=target.config_pbtxt(),
        metrics_url=options.metrics_url,
        server=target.server or None,
    )


def restored(point: RestorePoint, target: Target, console: Console) -> Change | None:
    """What a killed run had found, put back; a TargetError that tells what to do where it cannot be."""
    try:
        return restore(point, target, console)
    except TargetLost:
        raise
    except TargetError as error:
        raise TargetError(
            f"an earlier rrl-tune was killed here, and what it had found cannot be put back: {error}; put "
            f"{target.model!r} right by hand, then remove {point.path}"
        ) from None


def broken_off(point: RestorePoint | None, keeping: Keeping) -> int:
    """Says what state an impatient Ctrl-C leaves the target in."""
    if point is not None and not keeping.done:
        print(
            "broken off before what the run leaves was in force: the target may have any configuration that "
            "was explored; the next rrl-tune on it puts the found one back",
            file=sys.stderr,
        )
    return INTERRUPTED


def ended_early(point: RestorePoint | None, keeping: Keeping, error: Exception, stopped: bool) -> int:
    restores = point is not None and not keeping.done
    is_broken = isinstance(error, NotPutBack)
    if stopped and restores and isinstance(error, TargetError) and not is_broken:
        print(f"the target is away; the next start restores it ({error})", file=sys.stderr)
        return INTERRUPTED
    print(f"the run ended: {in_a_sentence(error)}", file=sys.stderr)
    if restores:
        once = ", once the model is loaded" if is_broken else ""
        print(f"the next rrl-tune on this target puts the found configuration back{once}", file=sys.stderr)
    return INTERRUPTED if stopped else FAILED
