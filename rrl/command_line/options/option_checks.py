"""What the options of `rrl-tune` may be, and which go together; `CHECKS` are made in their order.

Each raises ValueError with one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from baselines import DEFAULT_AGENT, NEED_MACHINE
from rrl.command_line.options.composing import check_composing
from rrl.command_line.options.flags import TuneFlags
from rrl.command_line.options.option_values import (
    change_limits,
    forbidden_knobs,
    journal_tells_rest,
    models_of,
    seconds,
)
from rrl.command_line.options.pins import check_models, pins
from rrl.knobs import model_and_knob
from rrl.objective import OF_OWN_LOAD, PER_ANSWER, make_objective
from rrl.space import ConfigurationSpace
from rrl.tuning.pacing import MAX_INTERVAL_LENGTHS
from serving_adapter.address import scheme_of
from serving_adapter.knob_limits import CLUSTER_KNOBS, KNOBS
from serving_adapter.load.arrivals import PROCESSES
from serving_adapter.load.concurrencies import parse_concurrencies

MIN_WINDOW_INTERVALS = MAX_INTERVAL_LENGTHS + 1  # To try one configuration, and to change back.


def _check_objective(options: TuneFlags) -> None:
    make_objective(options.objective, options.slo_p95_ms)


def _check_seed(options: TuneFlags) -> None:
    if options.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {options.seed}")


def _check_length_of_run(options: TuneFlags) -> None:
    if options.intervals is not None and options.intervals < 1:
        raise ValueError(f"--intervals must be at least 1, got {options.intervals}")
    if options.intervals is not None and options.duration is not None:
        raise ValueError("give --intervals or --duration, not both")
    if options.duration is not None:
        seconds(options.duration)


def _check_interval(options: TuneFlags) -> None:
    if not journal_tells_rest(options):  # Else the journal tells what was left away.
        check_interval(options)


def check_interval(options: TuneFlags) -> None:
    """ValueError where nothing of an interval would be measured."""
    if not 0 <= options.settle_s < options.interval_s < math.inf:
        raise ValueError(
            f"--interval-s must be above --settle-s, and that not negative, "
            f"got {options.interval_s:g} and {options.settle_s:g}"
        )


def _check_models(options: TuneFlags) -> None:
    models = models_of(options)
    if len(set(models)) < len(models) or "" in models:
        raise ValueError(f"--model must name models once each, as in minilm,resnet, got {options.model!r}")
    if len(models) > 1 and options.target is None:
        raise ValueError("the local server serves one model: give --target HOST:PORT to tune several")
    check_composing(options.bls_composing_models, models)
    if len(models) > 1 and not options.jointly and (options.resume or options.agent_from):
        raise ValueError("--resume and --agent-from are of one model: name one --model")


def _check_cores(options: TuneFlags) -> None:
    if options.cores is not None and options.cores < 1:
        raise ValueError(f"--cores must be at least 1, got {options.cores}")


def _check_metrics_port(options: TuneFlags) -> None:
    if options.metrics_port is not None and not 0 <= options.metrics_port <= 65535:
        raise ValueError(f"--metrics-port must be from 0 to 65535, got {options.metrics_port}")


def _check_rate(options: TuneFlags) -> None:
    if options.rate is not None and not 0 < options.rate < math.inf:
        raise ValueError(f"--rate must be above 0 requests per second, got {options.rate:g}")


class Clash(NamedTuple):
    """Options that do not go together, and what to do about it."""

    found: Callable[[TuneFlags], bool]
    sentence: str


def _describes_load(options: TuneFlags) -> bool:
    """Whether one of the options of an open load was given."""
    names = ("rate", "arrivals", "sizes", "input_data", "shape", "time_unit")
    return any(getattr(options, name) != getattr(TuneFlags, name) for name in names)


CLASHES = (
    Clash(
        lambda o: o.jointly and len(models_of(o)) < 2 and (o.model is not None or not journal_tells_rest(o)),
        "--jointly tunes several models: name them, as in --model minilm,resnet",
    ),
    Clash(
        lambda o: o.jointly and (o.advise or o.bench),
        "--jointly tunes under the users' own load: leave --advise and --bench away",
    ),
    Clash(
        lambda o: o.jointly and make_objective(o.objective, o.slo_p95_ms).unit == PER_ANSWER,
        "--jointly seeks latency, strict-slo or least-resources: rates of several models make no one cost",
    ),
    Clash(
        lambda o: o.jointly and o.machine is not None,
        "--machine is of one model: leave it away, or --jointly",
    ),
    Clash(
        lambda o: o.bls_composing_models is not None and (o.advise or o.target is None),
        "--bls-composing-models tunes a running server: give --target, and leave --advise away",
    ),
    Clash(
        lambda o: o.advise and o.target is None,
        "--advise observes a running server: give --target HOST:PORT",
    ),
    Clash(
        lambda o: o.dry_run and o.target is None,
        "--dry-run asks a running server what there is to tune: give --target HOST:PORT",
    ),
    Clash(
        lambda o: o.json and (o.advise or o.dry_run),
        "--json prints the summary of a run that tunes: leave it away beside --advise and --dry-run",
    ),
    Clash(
        lambda o: o.bench and o.target is None,
        "--bench sends its load to a running server: give --target HOST:PORT",
    ),
    Clash(
        lambda o: o.concurrency is not None and o.target is not None and not o.bench,
        "--concurrency is of a load of the run's own: add --bench, or leave it out",
    ),
    Clash(
        lambda o: o.concurrency is not None and o.rate is not None,
        "a closed loop has no rate of its own: give --concurrency or --rate, not both",
    ),
    Clash(
        lambda o: o.objective == "capacity" and o.target is not None and not o.bench,
        "objective 'capacity' sends loads of its own: add --bench, or take goodput under the users' load",
    ),
    Clash(
        lambda o: o.objective == "capacity" and o.concurrency is not None,
        "objective 'capacity' is a rate of arrivals: leave --concurrency out, or take throughput",
    ),
    Clash(
        lambda o: o.objective == "capacity" and o.arrivals not in PROCESSES,
        "objective 'capacity' sends arrivals at rates of its own: leave the trace out",
    ),
    Clash(
        lambda o: bool(o.shape) and o.input_data is not None,
        "--shape is of made-up values: leave it out beside --input-data",
    ),
    Clash(
        lambda o: _describes_load(o) and o.target is not None and not o.bench,
        "--rate, --arrivals, --sizes, --input-data, --shape and --time-unit are of a load of the run's own: "
        "add --bench, or leave them out",
    ),
    Clash(
        lambda o: o.bench and o.advise,
        "--advise observes the load that there is: leave --bench away, or tune",
    ),
    Clash(
        lambda o: o.out is not None and o.resume is not None,
        "--resume goes on in its own folder: leave --out away",
    ),
    Clash(
        lambda o: o.agent_from is not None and o.resume is not None,
        "--resume starts from what its own run started from: leave --agent-from away",
    ),
    Clash(
        lambda o: o.agent_from is not None and o.advise,
        "--advise observes and runs no agent: leave --agent-from away",
    ),
    Clash(
        lambda o: bool(o.pin) and o.advise,
        "--advise observes what is in force and sets no knob: leave --pin away, or tune",
    ),
    Clash(
        lambda o: o.apply_after_advise and not o.advise,
        "--apply-after-advise applies what --advise recommends: give both",
    ),
)


def _check_clashes(options: TuneFlags) -> None:
    for clash in CLASHES:
        if clash.found(options):
            raise ValueError(clash.sentence)


def _check_concurrency(options: TuneFlags) -> None:
    several = len(parse_concurrencies(options.concurrency)) > 1
    if several and (options.resume or options.agent_from):
        raise ValueError("--resume and --agent-from are of one load: give one --concurrency")
    if several and options.watches:
        raise ValueError("watch never ends, so it comes to no second load: give one --concurrency")


def _check_agent_for_objective(options: TuneFlags) -> None:
    closed = options.concurrency is not None
    if options.agent in NEED_MACHINE and (closed or options.objective in OF_OWN_LOAD):
        what = "a closed loop" if closed else f"objective {options.objective!r}"
        raise ValueError(
            f"agent {options.agent!r} schedules by the rate at which requests arrive, which {what} has not: "
            f"choose another, such as {DEFAULT_AGENT}"
        )


def _check_machine_for_agent(options: TuneFlags) -> None:
    """A run that goes on has its journal's machine file, and --advise runs no agent."""
    needs_none = options.machine is not None or options.advise or journal_tells_rest(options)
    if options.agent in NEED_MACHINE and not needs_none:
        raise ValueError(
            f"agent {options.agent!r} schedules by service times profiled beforehand: give --machine FILE, "
            f"which rrl-profile measures, or choose another agent, such as {DEFAULT_AGENT}"
        )


def _check_validation(options: TuneFlags) -> None:
    if options.validation < 0:
        raise ValueError(f"--validation must be at least 0, got {options.validation}")


def _check_knobs(options: TuneFlags) -> None:
    if options.knobs:
        _check_known("--knobs", ConfigurationSpace.parse(options.knobs).names, options)


def _check_known(flag: str, names: Iterable[str], options: TuneFlags) -> None:
    """ValueError for a knob that no server of the Open Inference Protocol has; its own may have only some.

    A target of another kind has knobs of its own, and of a run that goes on the journal tells the target.
    """
    if journal_tells_rest(options) or scheme_of(options.target or "")[0]:
        return
    known = KNOBS | CLUSTER_KNOBS
    if unknown := sorted(name for name in names if model_and_knob(name)[1] not in known):
        raise ValueError(
            f"{flag}: no server has a knob {', '.join(unknown)}; give some of {', '.join(known)}"
        )


def _check_forbidden(options: TuneFlags) -> None:
    _check_known("--forbid", forbidden_knobs(options.forbid), options)


def _check_pins(options: TuneFlags) -> None:
    """Of one model nobody can say yet whether it is an ensemble, whose steps may be pinned."""
    _check_known("--pin", [pin.knob for pin in pins(options.pin)], options)
    if len(models_of(options)) > 1:
        check_models(options.pin, models_of(options))


def _check_change_limits(options: TuneFlags) -> None:
    for window in change_limits(options).windows:
        if window.length_s < MIN_WINDOW_INTERVALS * options.interval_s:
            raise ValueError(
                f"a --change-window of {window.length_s:g} s is too short to try anything: it must hold "
                f"{MIN_WINDOW_INTERVALS:g} intervals of {options.interval_s:g} s (--interval-s)"
            )


CHECKS: tuple[Callable[[TuneFlags], None], ...] = (
    _check_objective,
    _check_seed,
    _check_length_of_run,
    _check_interval,
    _check_models,
    _check_cores,
    _check_metrics_port,
    _check_rate,
    _check_clashes,
    _check_concurrency,
    _check_agent_for_objective,
    _check_machine_for_agent,
    _check_validation,
    _check_knobs,
    _check_forbidden,
    _check_pins,
    _check_change_limits,
)
