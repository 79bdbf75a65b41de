"""The options of `rrl-tune`, and what they mean for a run that is resumed."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrl.journal import SIMULATION, Header, Record
from rrl.objective import make_objective
from rrl.report import summarise
from rrl.space import Configuration, ConfigurationSpace
from rrl.tuning import TuningSettings

DEFAULT_INTERVALS = 50
EMBEDDED = "embedded"  # the target's name where none is given


@dataclass(frozen=True)
class TuneOptions:
    """Finds the parallelism and batching that serve the present load best, on the running server itself."""

    target: str | None = None
    """HOST:PORT of the server's gRPC port; without one, a local server and load are started and tuned."""
    model: str | None = None
    """The model to tune; may be left out where the server has only one (embedded: minilm)."""
    metrics_url: str | None = None
    """The server's Prometheus page, where it does not tell itself."""
    control_key: str | None = None
    """Key that changing the configuration needs (better: set RRL_CONTROL_KEY)."""
    tls_ca: str | None = None
    """PEM file of the certificates to trust; without it the connection is not encrypted."""
    agent: str = "rrl"
    """Who proposes configurations: rrl, rrl-tuned, rrl-paper, rrl-released,
    rrl-released-exact, point-q, capes, capes-tuned,
    deeprm, deeprm-tuned, dqn, ppo, optuna-tpe, optuna-gp, gp-bandit, serf (needs --machine), aimd, random,
    sweep."""
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
    """Their first part, which is not measured."""
    intervals: int | None = None
    """Decisions to take (default 50)."""
    duration: float | str | None = None
    """Or about how long the run may take: seconds, 5m or 2h."""
    out: Path | None = None
    """Folder for journal, TensorBoard events, plot and exports (default runs/TIME)."""
    resume: Path | None = None
    """Folder of an earlier run to go on with."""
    advise: bool = False
    """Observe and recommend, change nothing."""
    reference_table: Path | None = None
    """With --advise: reference_table.yaml, or the folder, of an earlier run."""
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
        if self.knobs:
            ConfigurationSpace.parse(self.knobs)


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
        "interval_s": header.interval_s,
        "settle_s": header.settle_s,
        "machine": None if header.machine is None else Path(header.machine),
    } | (header.load or {})
    if options.duration is None:
        before["intervals"] = header.intervals
    return _completed(options, _learning(header) | before)


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


def with_values(space: ConfigurationSpace, start: Configuration) -> ConfigurationSpace:
    """The grid with the values of a configuration added to it."""
    values = {knob.name: {*knob.values, start.get(knob.name, knob.values[0])} for knob in space.knobs}
    return ConfigurationSpace.of(**{name: sorted(v) for name, v in values.items()})


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
    others = TuningSettings.baseline + 2 * TuningSettings.validation
    return max(1, round(seconds(options.duration) / options.interval_s) - others)
