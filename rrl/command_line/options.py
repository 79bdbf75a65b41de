"""The options of `rrl-tune`: what each means, and which go together."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import tyro

from baselines import DEFAULT_AGENT, agents_for_tuning
from rrl.journal import has_begun
from rrl.objective import make_objective
from rrl.space import ConfigurationSpace
from rrl.tuning.change_limits import ChangeLimits, ChangeWindow
from rrl.tuning.pacing import MAX_INTERVAL_LENGTHS
from rrl.tuning.settings import TuningSettings, baseline_for

AGENT_HELP = f"Who proposes configurations: {agents_for_tuning()}."
DEFAULT_INTERVALS = 50
FLAGS_GIVEN_ONCE = ("--knobs", "--change-window", "--forbid")  # Several values follow one flag.
MIN_WINDOW_INTERVALS = MAX_INTERVAL_LENGTHS + 1  # To try one configuration, and to change back.


@dataclass(frozen=True)
class TuneOptions:
    """Finds the parallelism and batching that serve the present load best, on the running server itself."""

    target: str | None = None
    """HOST:PORT of the server's gRPC port; without one, a local server and load are started and tuned."""
    model: str | None = None
    """The model to tune; may be left out where the server has only one (embedded: minilm). Several, as in
    minilm,resnet, are tuned in turn, each in its own folder under --out."""
    cores: int | None = None
    """Cores that the models named may put to work together, a thread a core. Default: no limit for one model,
    the machine's cores for several. The Triton of another machine does not tell how many it has."""
    from_model_analyzer: Path | None = None
    """A YAML file of Triton's Model Analyzer: target, models, values to search, objective and limit are then
    that file's where no flag sets them. What cannot be taken over is said."""
    metrics_url: str | None = None
    """The server's Prometheus page, where it does not tell itself."""
    control_key_file: Path | None = None
    """File with the key that changing the configuration needs (or set RRL_CONTROL_KEY)."""
    tls_ca: str | None = None
    """PEM file of the certificates to trust; without it the connection is not encrypted."""
    agent: Annotated[str, tyro.conf.arg(help=AGENT_HELP)] = DEFAULT_AGENT
    agent_from: Path | None = None
    """Folder of rrl-train, or of an earlier run, for the agent to start from. Agent, objective, limit, knobs
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
    """Or about how long the run may take, of each model: seconds, 5m or 2h.
    With --advise, how long it observes."""
    validation: int = TuningSettings.validation
    """How often the best is measured again at the end, in turns with the start (A B B A), before it is called
    better. The run looks after each pair, and stops once the gain is shown. As many turns follow where these
    leave the question open. A start that cannot bear the load, or that fails, is not put in force again.
    0: never; then the start is measured three times at the beginning, else once."""
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
    dry_run: bool = False
    """Say what a run would try, keep and look out for; changes nothing and sends nothing."""
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
    bench: bool = False
    """Sends a load of its own to --target, where there are no users: that of --arrivals, --rate and --sizes,
    or --input-data."""
    input_data: Path | None = None
    """Embedded load: requests of your own, as rrl-load takes them."""
    rate: float | None = None
    """Embedded load, requests per second (default: what the start only just bears)."""
    arrivals: str = "poisson"
    """Embedded load: poisson, dynamic, wiki, bursts or a trace FILE.csv."""
    sizes: str = "fixed:32"
    """Embedded load: sizes of the requests, as rrl-load takes them."""

    def __post_init__(self) -> None:
        for check in CHECKS:
            check(self)


def models_of(options: TuneOptions) -> list[str]:
    """The models named. None are where the server is to be asked which it has."""
    return [] if options.model is None else [name.strip() for name in options.model.split(",")]


def for_each_model(options: TuneOptions) -> list[TuneOptions]:
    """The options of each model's run: one folder for all, with a folder for each where there are several."""
    models = models_of(options)
    if len(models) < 2:
        return [options]
    folder = options.out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    return [dataclasses.replace(options, model=model, out=folder / model) for model in models]


def run_folder(options: TuneOptions) -> Path:
    """The folder that the run writes to. ValueError if it holds another run's journal."""
    folder = options.resume or options.out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if options.resume is None and has_begun(folder):
        raise ValueError(f"{folder} holds a run: continue it with --resume {folder}, or name another --out")
    return folder


def check_given_once(arguments: Sequence[str]) -> None:
    """ValueError for a flag given twice: the second would silently replace the first."""
    names = [argument.split("=")[0].replace("_", "-") for argument in arguments]
    for flag in FLAGS_GIVEN_ONCE:
        if names.count(flag) > 1:
            raise ValueError(f"{flag} is given twice: give it once, with all its values behind it")


def change_limits(options: TuneOptions) -> ChangeLimits:
    """How often and at which hours the run may change the configuration."""
    return ChangeLimits(options.max_changes_per_hour, ChangeWindow.parse(options.change_window))


def forbidden_knobs(forbid: Sequence[str]) -> set[str]:
    """The names given, which may be separated by commas or spaces."""
    return {name for text in forbid for name in text.replace(",", " ").split()}


def seconds(text: float | str) -> float:
    """`300`, `300s`, `5m` or `1.5h` in seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(text))
    if match is None or float(match.group(1)) <= 0:
        raise ValueError(f"cannot read --duration {text!r}: expected seconds, or e.g. 5m or 2h")
    return float(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[match.group(2)]


def tuning_intervals(options: TuneOptions) -> int:
    """How many intervals the run tunes for. A duration covers those of the start and the validation, too."""
    if options.duration is None:
        return options.intervals or DEFAULT_INTERVALS
    others = baseline_for(options.validation) + 2 * options.validation
    return max(1, round(seconds(options.duration) / options.interval_s) - others)


# --- What options may be, checked in this order ---


def _check_objective(options: TuneOptions) -> None:
    make_objective(options.objective, options.slo_p95_ms)


def _check_seed(options: TuneOptions) -> None:
    if options.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {options.seed}")


def _check_length_of_run(options: TuneOptions) -> None:
    if options.intervals is not None and options.intervals < 1:
        raise ValueError(f"--intervals must be at least 1, got {options.intervals}")
    if options.intervals is not None and options.duration is not None:
        raise ValueError("give --intervals or --duration, not both")
    if options.duration is not None:
        seconds(options.duration)


def _check_interval(options: TuneOptions) -> None:
    if options.resume is None:  # Else the journal tells what was left away.
        check_interval(options)


def check_interval(options: TuneOptions) -> None:
    """ValueError where nothing of an interval would be measured."""
    if not 0 <= options.settle_s < options.interval_s < math.inf:
        raise ValueError(
            f"--interval-s must be above --settle-s, and that not negative, "
            f"got {options.interval_s:g} and {options.settle_s:g}"
        )


def _check_models(options: TuneOptions) -> None:
    models = models_of(options)
    if len(set(models)) < len(models) or "" in models:
        raise ValueError(f"--model must name models once each, as in minilm,resnet, got {options.model!r}")
    if len(models) > 1 and options.target is None:
        raise ValueError("the local server serves one model: give --target HOST:PORT to tune several")
    if len(models) > 1 and (options.resume or options.agent_from):
        raise ValueError("--resume and --agent-from are of one model: name one --model")


def _check_cores(options: TuneOptions) -> None:
    if options.cores is not None and options.cores < 1:
        raise ValueError(f"--cores must be at least 1, got {options.cores}")


def _check_rate(options: TuneOptions) -> None:
    if options.rate is not None and not 0 < options.rate < math.inf:
        raise ValueError(f"--rate must be above 0 requests per second, got {options.rate:g}")


class Clash(NamedTuple):
    """Options that do not go together, and what to do about it."""

    found: Callable[[TuneOptions], bool]
    sentence: str


CLASHES = (
    Clash(
        lambda o: o.advise and o.target is None,
        "--advise observes a running server: give --target HOST:PORT",
    ),
    Clash(
        lambda o: o.dry_run and o.target is None,
        "--dry-run asks a running server what there is to tune: give --target HOST:PORT",
    ),
    Clash(
        lambda o: o.bench and o.target is None,
        "--bench sends its load to a running server: give --target HOST:PORT",
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
        lambda o: o.apply_after_advise and not o.advise,
        "--apply-after-advise applies what --advise recommends: give both",
    ),
)


def _check_clashes(options: TuneOptions) -> None:
    for clash in CLASHES:
        if clash.found(options):
            raise ValueError(clash.sentence)


def _check_validation(options: TuneOptions) -> None:
    if options.validation < 0:
        raise ValueError(f"--validation must be at least 0, got {options.validation}")


def _check_knobs(options: TuneOptions) -> None:
    if options.knobs:
        ConfigurationSpace.parse(options.knobs)


def _check_change_limits(options: TuneOptions) -> None:
    for window in change_limits(options).windows:
        if window.length_s < MIN_WINDOW_INTERVALS * options.interval_s:
            raise ValueError(
                f"a --change-window of {window.length_s:g} s is too short to try anything: it must hold "
                f"{MIN_WINDOW_INTERVALS:g} intervals of {options.interval_s:g} s (--interval-s)"
            )


CHECKS: tuple[Callable[[TuneOptions], None], ...] = (
    _check_objective,
    _check_seed,
    _check_length_of_run,
    _check_interval,
    _check_models,
    _check_cores,
    _check_rate,
    _check_clashes,
    _check_validation,
    _check_knobs,
    _check_change_limits,
)
