"""A whole run of `rrl-tune` on its own server, and a sweep over the same arrivals to judge it by.

The run is that of `make tune` with `--arrivals` and `--rate`: guard, validation and journal included. Then
the same moments are sent to a fresh server of the same model:

1. all moments of the run to the start, left untouched,
2. a few windows of them to each configuration of a grid, in random order,
3. the same windows, in each further round, to what the run left, to the rule of thumb and to the best few of
   the first round.

So all configurations meet the same requests and, if there is one, the same neighbour. The best of a round is
chosen by the other rounds (`scripts.serving.in_turns`).
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from baselines import DEFAULT_AGENT
from rrl.command_line.options.option_values import DEFAULT_INTERVALS
from rrl.guided.first_choice import RULE_OF_THUMB
from rrl.journal import read
from rrl.records import Header, Record
from rrl.views.summary import BEST_CONFIGURATION
from scripts.benchmarks.triton.head_to_head_report import changes
from scripts.benchmarks.tuner.commit import commit_in_force
from scripts.benchmarks.tuner.real_traffic.burst_arrivals import arrivals_named, moments_of, variation_of_gaps
from scripts.benchmarks.tuner.real_traffic.report import (
    GuardActions,
    TrafficCase,
    TrafficRow,
)
from scripts.kept_rows import KeptRows, setting_of
from scripts.serving.client_log import Requests
from scripts.serving.in_turns import InTurns, mean_ms
from scripts.serving.processes import serving, started, tune_command
from scripts.serving.replayed import ClientFigures, replay, write_moments
from serving_adapter import resources
from serving_adapter.target import OpenInferenceTarget

BATCHES = (1, 4, 8, 16)
BURST_PER_S, BURST_S = 10_000, 0.05  # The rule of thumb's capacity is how fast it serves such a burst.
LIGHT_MODEL = "burn"
START_TIMEOUT_S = 300.0
SPARE_S = 600.0  # of arrivals beyond the planned intervals, which validation and settling prolong

CASE_OPTIONS = ("model", "agent", "arrivals", "loads", "rates", "seeds")  # what tells a file's runs apart

Configuration = dict[str, int]
Beside = Callable[[float], AbstractContextManager[object]]  # A neighbour, from a moment of its schedule on.


@dataclass(frozen=True)
class TrafficOptions:
    """What the benchmarks under real traffic have in common."""

    model: str = "minilm"
    """The model that rrl-serve serves."""
    agent: str = DEFAULT_AGENT
    """Of rrl-tune."""
    loads: tuple[float, ...] = (0.2, 0.4, 0.6)
    """Mean rates, as shares of what the rule of thumb serves of a burst: an instance a core, one thread each,
    batches of 8."""
    rates: tuple[float, ...] = ()
    """Mean rates per second, in place of the shares."""
    seeds: tuple[int, ...] = (0,)
    """Of arrivals, neighbour and agent; a run for each."""
    intervals: int | None = None
    """Tuning intervals of a run (default: as rrl-tune has it)."""
    windows: int = 3
    """Parts of the run's arrivals that each configuration meets in a round of the sweep, spread evenly."""
    window_s: float = 25.0
    """How long each of them is."""
    repeats: int = 2
    """Rounds of the sweep. From the second on only what was left, the rule of thumb and the best few are in
    them."""
    quick: bool = False
    """A light model, one load, few and short intervals: only to see that it works."""
    out: Path | None = None
    """A file of rows to go on with: its runs, all of these lengths, are counted and not repeated (default: a
    new one in runs/)."""

    def __post_init__(self) -> None:
        if not self.seeds or not (self.loads or self.rates):
            raise ValueError("give at least one seed, and a load or a rate")
        if min(*self.loads, *self.rates, self.windows, self.window_s, self.repeats, self.intervals or 1) <= 0:
            raise ValueError("loads, rates, windows, repeats and intervals must be above 0")


class TrafficPlan(NamedTuple):
    """How long everything takes."""

    arguments: tuple[object, ...]  # of rrl-tune
    run_s: float  # so long the arrivals of a run must last
    windows: int
    window_s: float
    rounds: int
    finalists: int = 4
    whole_grid: bool = True


class TrafficRun(NamedTuple):
    """What a run of `rrl-tune` leaves, and what its clients saw."""

    header: Header
    records: list[Record]
    left: dict[str, int]
    figures: ClientFigures


def measured(
    name: str, options: TrafficOptions, arrivals: Sequence[str], beside: Callable[[int], Beside]
) -> list[TrafficRow]:
    """The rows of all cases, found in the file or measured now. Each is printed and appended."""
    out = options.out or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.jsonl"
    if options.quick:
        options = _quick(options)
    plan = _plan(options)
    setting = {"benchmark": name} | setting_of(options, *CASE_OPTIONS, "out")
    setting["intervals"] = options.intervals or DEFAULT_INTERVALS
    rows = KeptRows(out, TrafficCase._fields, setting)
    loads = {f"{rate:g}/s": rate for rate in options.rates} or {f"{load:g}": load for load in options.loads}
    cases = [
        TrafficCase(options.model, options.agent, each, load, seed)
        for seed, each, load in itertools.product(options.seeds, arrivals, loads)
    ]
    for case in cases:  # A name that cannot be read is refused before hours are spent.
        arrivals_named(case.arrivals, 1.0)
    missing = [case for case in cases if case._asdict() not in rows]
    print(f"{len(cases)} runs, {len(cases) - len(missing)} of them in {out} already", flush=True)
    scale = 1.0
    if missing and not options.rates:
        scale = _capacity_per_s(options.model)
        print(f"the rule of thumb serves {scale:.1f} requests/s of a burst", flush=True)
    found = []
    for case in cases:
        if case in missing:
            folder = out.with_suffix("") / "-".join(map(_in_a_path, case))
            shutil.rmtree(folder, ignore_errors=True)  # What an interrupted run left there.
            rows.add(asdict(_row(case, scale * loads[case.load], plan, beside(case.seed), folder)))
        found.append(TrafficRow(**rows[case._asdict()]))
        print(found[-1], flush=True)
    return found


def _quick(options: TrafficOptions) -> TrafficOptions:
    loads, rates, seeds = options.loads[:1], options.rates[:1], options.seeds[:1]
    options = replace(options, model=LIGHT_MODEL, loads=loads, rates=rates, seeds=seeds)
    return replace(options, intervals=3, windows=2, window_s=3.0, repeats=2)


def _plan(options: TrafficOptions) -> TrafficPlan:
    arguments: tuple[object, ...] = ("--agent", options.agent)
    if options.intervals is not None:
        arguments += ("--intervals", options.intervals)
    if options.quick:
        arguments += ("--interval-s", 1.0, "--settle-s", 0.2, "--validation", 1)
    run_s = 3 * 5.0 * (options.intervals or DEFAULT_INTERVALS) + SPARE_S
    return TrafficPlan(
        arguments, run_s, options.windows, options.window_s, options.repeats, whole_grid=not options.quick
    )


def _row(case: TrafficCase, rate_per_s: float, plan: TrafficPlan, beside: Beside, folder: Path) -> TrafficRow:
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    moments_s = moments_of(arrivals_named(case.arrivals, rate_per_s), case.seed, plan.run_s)
    run = _tuned(case, moments_s, plan, beside, folder / "run")
    moments_s = moments_s[moments_s < moments_s[0] + run.figures.duration_s]
    with serving(case.model) as address:
        target = OpenInferenceTarget(address)
        target.connect()
        start = target.configuration() | run.header.start
        left = start | run.left
        target.apply(start)
        with beside(0.0):
            untouched = replay(address, moments_s, folder / "untouched")
        configurations = (
            grid(start, left) if plan.whole_grid else _distinct(start, left, rule_of_thumb(start))
        )
        sweep = _Sweep(target, configurations, beside, folder / "sweep")
        parts_s = windows(moments_s, plan.window_s, plan.windows)
        turns = sweep.in_turns(parts_s, plan.rounds, (left, rule_of_thumb(start)), plan.finalists)
        target.close()
    ratios = [turns.ratio(n) for n in range(len(configurations))]
    best = min(range(len(configurations)), key=lambda n: ratios[n].middle)
    ratio = ratios[configurations.index(left)]
    guard = GuardActions.of(run.records)
    in_force = run.records[-1].configuration if run.records else run.header.start
    return TrafficRow(
        **case._asdict(),
        rate_per_s=round(rate_per_s, 2),
        variation=round(variation_of_gaps(moments_s), 2),
        start=in_words(start),
        left=in_words(left),
        best=in_words(configurations[best]),
        best_ms=turns.best_ms(),
        ratio=ratio.middle,
        ratio_error=ratio.error,
        start_ratio=ratios[configurations.index(start)].middle,
        rule_ratio=ratios[configurations.index(rule_of_thumb(start))].middle,
        changes=changes(run.records, run.header.space.number(run.header.start)) + (in_force != run.left),
        **guard._asdict(),
        requests=run.figures.sent,
        failed=run.figures.failed,
        latency_s=round(run.figures.latency_s, 3),
        untouched_s=round(untouched.latency_s, 3),
        late_ms=round(max(run.figures.late_ms, untouched.late_ms, sweep.late_ms), 1),
        began_at=began_at,
        commit=commit_in_force(),
    )


def _tuned(
    case: TrafficCase, moments_s: np.ndarray, plan: TrafficPlan, beside: Beside, folder: Path
) -> TrafficRun:
    """A run as a user starts it. The neighbour comes with the load."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="rrl-bench-") as traces:
        trace = Path(traces) / "arrivals.csv"
        rate_per_s = write_moments(trace, moments_s)
        arguments = ("--model", case.model, "--arrivals", trace, "--rate", rate_per_s, "--seed", case.seed)
        with (folder / "rrl-tune.log").open("w") as log:
            tuner = subprocess.Popen(
                tune_command(*arguments, "--out", folder, *plan.arguments),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                _wait_for_load(tuner, folder)
                with beside(0.0):
                    tuner.wait()
            finally:
                tuner.kill()
                tuner.wait()
    if tuner.returncode != 0:
        raise RuntimeError(f"rrl-tune ended with {tuner.returncode} (see {folder / 'rrl-tune.log'})")
    header, records = read(folder)
    document = yaml.safe_load((folder / BEST_CONFIGURATION).read_text(encoding="utf-8"))
    left = {knob: int(document["configuration"][knob]) for knob in header.space.names}
    return TrafficRun(header, records, left, ClientFigures.read(folder))


def _wait_for_load(tuner: subprocess.Popen[bytes], folder: Path) -> None:
    end_s = time.monotonic() + START_TIMEOUT_S
    while not (folder / "load.csv").exists() and tuner.poll() is None and time.monotonic() < end_s:
        time.sleep(0.05)


class _Sweep:
    """Configurations of one server, each sent the same moments beside the same neighbour."""

    def __init__(
        self,
        target: OpenInferenceTarget,
        configurations: Sequence[Configuration],
        beside: Beside,
        folder: Path,
    ) -> None:
        self.late_ms = 0.0
        self._target, self._configurations = target, configurations
        self._beside, self._folder = beside, folder

    def in_turns(
        self,
        windows_s: Sequence[np.ndarray],
        rounds: int,
        always: Sequence[Configuration],
        finalists: int,
    ) -> InTurns:
        """All in the first round; in the others these and the best few of the first.

        The first round alone is hard on what it has: its best was chosen for its low latency there.
        """
        numbers = list(range(len(self._configurations)))
        parts: dict[int, list[Requests]] = {number: [] for number in numbers}
        for k in range(rounds):
            for number, seen in self._round(k, numbers, windows_s).items():
                parts[number].append(seen)
            if k == 0:
                cheapest = sorted(parts, key=lambda n: mean_ms(parts[n][0]))[:finalists]
                numbers = sorted({*map(self._configurations.index, always), *cheapest})
        return InTurns(parts)

    def _round(self, k: int, numbers: Sequence[int], windows_s: Sequence[np.ndarray]) -> dict[int, Requests]:
        """All windows of each configuration together; the configurations take turns in each window."""
        rng = np.random.default_rng(k)
        seen: dict[int, list[Requests]] = {number: [] for number in numbers}
        for w, moments_s in enumerate(windows_s):
            for number in rng.permutation(numbers).tolist():
                folder = self._folder / f"round-{k}" / f"window-{w}-{number}"
                seen[number].append(self._seen(number, moments_s, folder))
        return {number: Requests.joined(parts) for number, parts in seen.items()}

    def _seen(self, number: int, moments_s: np.ndarray, folder: Path) -> Requests:
        self._target.apply(self._configurations[number])
        with self._beside(float(moments_s[0])):
            figures = replay(self._target.address, moments_s, folder)
        self.late_ms = max(self.late_ms, figures.late_ms)
        return Requests.read(folder)


def windows(moments_s: np.ndarray, window_s: float, count: int) -> list[np.ndarray]:
    """Parts of the arrivals, spread over them evenly; each begins with an arrival and holds at least two."""
    first_s = float(moments_s[0])
    parts = []
    for begin_s in np.linspace(first_s, max(float(moments_s[-1]) - window_s, first_s), count):
        first = min(int(np.searchsorted(moments_s, begin_s)), len(moments_s) - 2)
        end = int(np.searchsorted(moments_s, moments_s[first] + window_s))
        parts.append(moments_s[first : max(end, first + 2)])
    return parts


def rule_of_thumb(start: Mapping[str, int]) -> Configuration:
    """An instance a core, one thread each, batches of up to 8; all else as it was found."""
    return dict(start) | {
        "instances": resources.cores(),
        "intra_op_threads": 1,
        "max_batch_size": RULE_OF_THUMB["max_batch_size"],
    }


def grid(start: Configuration, left: Configuration) -> list[Configuration]:
    """The start, what was left, the rule of thumb, and one instance or one a core, with one thread or all."""
    cores = resources.cores()
    others = [
        dict(start) | {"instances": instances, "intra_op_threads": threads, "max_batch_size": batch}
        for instances, threads, batch in itertools.product((1, cores), (1, cores), BATCHES)
        if not (instances == 1 and threads == 1 and cores > 1 and batch != RULE_OF_THUMB["max_batch_size"])
    ]
    return _distinct(start, left, rule_of_thumb(start), *others)


def _distinct(*configurations: Configuration) -> list[Configuration]:
    return [c for k, c in enumerate(configurations) if c not in configurations[:k]]


def in_words(configuration: Mapping[str, int]) -> str:
    return ",".join(f"{knob}={value}" for knob, value in configuration.items())


def _capacity_per_s(model: str) -> float:
    """How many requests a second the rule of thumb serves of a burst, once it is warm."""
    with serving(model) as address, tempfile.TemporaryDirectory(prefix="rrl-bench-") as folder:
        target = OpenInferenceTarget(address)
        target.connect()
        target.apply(rule_of_thumb(target.configuration()))
        target.close()
        rates_per_s = []
        for _ in range(2):
            burst = ("--target", address, "--rate", BURST_PER_S, "--duration-s", BURST_S, "--out", folder)
            with started("serving_adapter.load.command_line", *burst) as client:
                client.communicate()
            report = yaml.safe_load((Path(folder) / "load.json").read_text(encoding="utf-8"))
            rates_per_s.append(float(report["achieved_rate_per_s"]))
        return rates_per_s[-1]


def _in_a_path(part: object) -> str:
    return "".join(c if c.isalnum() or c in "._" else "_" for c in str(part))
