"""The options of `rrl-tune`, and what they mean for a run that is resumed."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro

from baselines import agents_for_tuning
from rrl.journal import EMBEDDED, FILE_NAME, SIMULATION, Header, Record
from rrl.objective import make_objective
from rrl.space import Configuration, ConfigurationSpace
from rrl.tuning.change_limits import ChangeLimits, ChangeWindow
from rrl.tuning.loop import MAX_INTERVAL_LENGTHS, TuningSettings, baseline_for
from rrl.views.summary import summarise

DEFAULT_INTERVALS = 50
AGENT_HELP = f"Who proposes configurations: {agents_for_tuning()}."
GIVEN_ONCE = ("--knobs", "--change-window", "--forbid")  # several values follow one flag
SHORTEST_WINDOW = MAX_INTERVAL_LENGTHS + 1  # intervals: to try one configuration, and to change back


@dataclass(frozen=True)
class TuneOptions:
    """Finds the parallelism and batching that serve the present load best, on the running server itself."""

    target: str | None = None
    """HOST:PORT of the server's gRPC port; without one, a local server and load are started and tuned."""
    model: str | None = None
    """The model to tune; may be left out where the server has only one (embedded: minilm). Several, as in
    minilm,resnet, are tuned in turn, each in its own folder under --out."""
    cores: int | None = None
    """Cores that the models named may put to work together, a thread a core (default: no limit for one model,
    the machine's for several, which the Triton of another machine does not tell)."""
    metrics_url: str | None = None
    """The server's Prometheus page, where it does not tell itself."""
    control_key: str | None = None
    """Key that changing the configuration needs (better: set RRL_CONTROL_KEY)."""
    tls_ca: str | None = None
    """PEM file of the certificates to trust; without it the connection is not encrypted."""
    agent: Annotated[str, tyro.conf.arg(help=AGENT_HELP)] = "rrl"
    agent_from: Path | None = None
    """Folder of rrl-train, or of an earlier run, for the agent to start from; agent, objective, limit, knobs
    and seed are then that folder's where they are left at their default."""
    objective: str = "latency"
    """latency, strict-slo or least-resources."""
    slo_p95_ms: float | None = None
    """Limit on the p95 latency; the guard keeps it under any objective."""
    knobs: tuple[str, ...] = ()
    """What to tune, e.g. instances=1:4,max_batch_size=1,2,4,8; without it, the target's knobs."""
    interval_s: float = 5.0
    """Seconds from one decision to the next."""
    settle_s: float = 1.0
    """Their first part, which is not measured after a change; after a reload at least twice as long."""
    intervals: int | None = None
    """Decisions to take (default 50)."""
    duration: float | str | None = None
    """Or about how long the run may take, of each model: seconds, 5m or 2h."""
    validation: int = TuningSettings.validation
    """How often the best is measured again at the end, in turns with the start (A B A B), before it is called
    better; as often again where that leaves the question open, and the start only once, A B A, where the best
    is shown to be better by then, as it was before, or clearly so. The start's first turn is then only as
    long as it takes to show that. 0: never; then the start is measured three times at the beginning, else
    once."""
    max_changes_per_hour: int | None = None
    """At most so many changes of configuration in any 60 minutes; meanwhile the run waits. The guard's
    rollbacks and the last change of the run are never held back, but counted."""
    change_window: tuple[str, ...] = ()
    """Changes only at these hours, local time, e.g. "Mon-Fri 22:00-06:00" 12:00-13:00; outside, the best
    known to be safe stays in force."""
    forbid: tuple[str, ...] = ()
    """Knobs that are never changed, e.g. instances,max_batch_size."""
    out: Path | None = None
    """Folder for journal, TensorBoard events, plot and exports (default runs/TIME)."""
    resume: Path | None = None
    """Folder of an earlier run to go on with."""
    export: Path | None = None
    """Folder of an earlier run, killed or not, to write report and exports of anew; nothing else happens."""
    advise: bool = False
    """Observe and recommend, change nothing."""
    reference_table: Path | None = None
    """With --advise: reference_table.yaml, or the folder, of an earlier run, on this target or another
    (default: the newest of this model on this target under runs/)."""
    apply_after_advise: bool = False
    """With --advise: ask once whether to apply what is recommended; watched by the guard, undone if worse."""
    machine: Path | None = None
    """A machine file that rrl-profile measured: what serf schedules by, and --advise simulates."""
    seed: int = 0
    """Of the agent and of the embedded load."""
    rate: float | None = None
    """Embedded load, requests per second (default: what the start only just bears)."""
    arrivals: str = "poisson"
    """Embedded load: poisson, dynamic, wiki, bursts or a trace FILE.csv."""
    sizes: str = "fixed:32"
    """Embedded load: sizes of the requests, as rrl-load takes them."""

    def __post_init__(self) -> None:
        make_objective(self.objective, self.slo_p95_ms)
        if self.seed < 0:
            raise ValueError(f"--seed must be at least 0, got {self.seed}")
        if self.intervals is not None and self.intervals < 1:
            raise ValueError(f"--intervals must be at least 1, got {self.intervals}")
        if self.intervals is not None and self.duration is not None:
            raise ValueError("give --intervals or --duration, not both")
        if self.duration is not None:
            seconds(self.duration)
        if not 0 <= self.settle_s < self.interval_s < math.inf:
            raise ValueError(
                f"--interval-s must be above --settle-s, and that not negative, "
                f"got {self.interval_s:g} and {self.settle_s:g}"
            )
        _check_models(self)
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"--rate must be above 0 requests per second, got {self.rate:g}")
        if self.advise and self.target is None:
            raise ValueError("--advise observes a running server: give --target HOST:PORT")
        if self.out is not None and self.resume is not None:
            raise ValueError("--resume goes on in its own folder: leave --out away")
        if self.agent_from is not None and self.resume is not None:
            raise ValueError("--resume starts from what its own run started from: leave --agent-from away")
        if self.agent_from is not None and self.advise:
            raise ValueError("--advise observes and runs no agent: leave --agent-from away")
        if self.duration is not None and self.advise:
            raise ValueError("--advise observes so many --intervals: leave --duration away")
        if self.apply_after_advise and not self.advise:
            raise ValueError("--apply-after-advise applies what --advise recommends: give both")
        if self.validation < 0:
            raise ValueError(f"--validation must be at least 0, got {self.validation}")
        if self.knobs:
            ConfigurationSpace.parse(self.knobs)
        for window in change_limits(self).windows:
            if window.length_s < SHORTEST_WINDOW * self.interval_s:
                raise ValueError(
                    f"a --change-window of {window.length_s:g} s is too short to try anything: it must hold "
                    f"{SHORTEST_WINDOW:g} intervals of {self.interval_s:g} s (--interval-s)"
                )


def _check_models(options: TuneOptions) -> None:
    models = models_of(options)
    if len(set(models)) < len(models) or "" in models:
        raise ValueError(f"--model must name models once each, as in minilm,resnet, got {options.model!r}")
    if len(models) > 1 and options.target is None:
        raise ValueError("the local server serves one model: give --target HOST:PORT to tune several")
    if len(models) > 1 and (options.resume or options.agent_from):
        raise ValueError("--resume and --agent-from are of one model: name one --model")
    if options.cores is not None and options.cores < 1:
        raise ValueError(f"--cores must be at least 1, got {options.cores}")


def models_of(options: TuneOptions) -> list[str]:
    """The models named; none where the server is asked which it has."""
    return [] if options.model is None else [name.strip() for name in options.model.split(",")]


def for_each_model(options: TuneOptions) -> list[TuneOptions]:
    """The options of each model's run: one folder for all, with a folder for each where there are several."""
    models = models_of(options)
    if len(models) < 2:
        return [options]
    folder = options.out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    return [dataclasses.replace(options, model=model, out=folder / model) for model in models]


def run_folder(options: TuneOptions) -> Path:
    """Where the run writes; ValueError where another run's journal is."""
    folder = options.resume or options.out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if options.resume is None and (folder / FILE_NAME).exists():
        raise ValueError(f"{folder} holds a run: continue it with --resume {folder}, or name another --out")
    return folder


def check_given_once(arguments: Sequence[str]) -> None:
    """ValueError for a flag that is given again: the second would silently replace the first."""
    names = [argument.split("=")[0].replace("_", "-") for argument in arguments]
    for flag in GIVEN_ONCE:
        if names.count(flag) > 1:
            raise ValueError(f"{flag} is given twice: give it once, with all its values behind it")


def change_limits(options: TuneOptions) -> ChangeLimits:
    """How often and at which hours the run may change the configuration."""
    return ChangeLimits(options.max_changes_per_hour, ChangeWindow.parse(options.change_window))


def forbidden_knobs(forbid: Sequence[str]) -> set[str]:
    return {name for text in forbid for name in text.replace(",", " ").split()}


def without_forbidden(
    space: ConfigurationSpace, forbid: Sequence[str], names: Iterable[str]
) -> ConfigurationSpace:
    """The grid without the knobs that are never to be changed; ValueError for one that the target lacks."""
    forbidden, has = forbidden_knobs(forbid), list(names)
    if not has:  # what tells no knob can only be observed
        return space
    unknown = sorted(forbidden - set(has))
    if unknown:
        raise ValueError(f"--forbid: the target has no knob {', '.join(unknown)}; it has {', '.join(has)}")
    left = tuple(knob for knob in space.knobs if knob.name not in forbidden)
    if not left:
        raise ValueError(f"--forbid leaves nothing to tune: it forbids all of {', '.join(space.names)}")
    return ConfigurationSpace(left)


def without_smaller_batches(space: ConfigurationSpace, start: Configuration) -> ConfigurationSpace:
    """The grid without values of max_batch_size below the start's."""
    values = {knob.name: list(knob.values) for knob in space.knobs}
    if values.keys() & start.keys() >= {"max_batch_size"}:
        least = start["max_batch_size"]
        values["max_batch_size"] = [v for v in values["max_batch_size"] if v >= least] or [least]
    return ConfigurationSpace.of(**values)


def seconds(text: float | str) -> float:
    """`300`, `300s`, `5m` or `1.5h` in seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(text))
    if match is None or float(match.group(1)) <= 0:
        raise ValueError(f"cannot read --duration {text!r}: expected seconds, or e.g. 5m or 2h")
    return float(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[match.group(2)]


def as_before(options: TuneOptions, header: Header) -> TuneOptions:
    """The options of a resumed run: what is left at its default is as it was."""
    if header.target == SIMULATION:
        raise ValueError(
            f"{options.resume} is no run to resume, rrl-train wrote it: start from it with --agent-from"
        )
    before: dict[str, Any] = {
        "target": None if header.target == EMBEDDED else header.target,
        "model": header.model,
        "metrics_url": header.metrics_url,
        "interval_s": header.interval_s,
        "settle_s": header.settle_s,
        "machine": None if header.machine is None else Path(header.machine),
        "validation": header.validation,
    }
    before |= (header.load or {}) | limits_from_json(header.limits or {})
    if options.duration is None:
        before["intervals"] = header.intervals
    return _completed(options, _learning(header) | before)


def limits_to_json(options: TuneOptions) -> dict[str, Any] | None:
    """For the header: what keeps the changes of a run within limits, and so of one that resumes it."""
    limits = {
        name: getattr(options, name) for name in ("max_changes_per_hour", "change_window", "forbid", "cores")
    }
    given = {name: value for name, value in limits.items() if value}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in given.items()} or None


def limits_from_json(limits: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in limits.items()}


def as_trained(options: TuneOptions, header: Header) -> TuneOptions:
    """The options of a run whose agent starts from an earlier journal: what it learns is as it was there."""
    return _completed(options, _learning(header))


def _learning(header: Header) -> dict[str, Any]:
    return {
        "agent": header.agent,
        "objective": header.objective,
        "slo_p95_ms": header.slo_p95_ms,
        "knobs": tuple(f"{knob.name}={','.join(map(str, knob.values))}" for knob in header.space.knobs),
        "seed": header.seed,
    }


def _completed(options: TuneOptions, before: dict[str, Any]) -> TuneOptions:
    """The options, with the earlier values of those that are left at their default."""
    defaults = {field.name: field.default for field in dataclasses.fields(TuneOptions)}
    same = {name: value for name, value in before.items() if getattr(options, name) == defaults[name]}
    return dataclasses.replace(options, **same)


def check_unfinished(options: TuneOptions, header: Header, records: list[Record]) -> None:
    done = sum(r.kind == "tune" and r.counted for r in records)
    summary = summarise(header, records)
    validated = summary.validated or summary.best.configuration == summary.start.configuration
    if done >= tuning_intervals(options) and validated:
        raise ValueError(
            f"the run in {options.resume} is complete ({done} intervals); "
            f"give --intervals more than {done} to go on with it"
        )


def tuning_intervals(options: TuneOptions) -> int:
    if options.duration is None:
        return options.intervals or DEFAULT_INTERVALS
    others = baseline_for(options.validation) + 2 * options.validation
    return max(1, round(seconds(options.duration) / options.interval_s) - others)
