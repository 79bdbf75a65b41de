"""`--advise`: observe the target as it is and recommend a configuration, changing nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rrl.advice.foresight import Foresight, Simulate, by_machine, by_observation, by_table
from rrl.advice.prediction import CREDIBILITY, LEAST_GAIN, Expectation
from rrl.agent import Task, Transition
from rrl.journal import Record
from rrl.knobs import in_words
from rrl.measurement import Measurement, has_traffic
from rrl.objective import MeanLatency, in_unit
from rrl.space import Configuration
from rrl.tuning.loop import Environment
from rrl.views.reference_table import FILE_NAME, Entry, Origin, ReferenceTable
from rrl.views.summary import Standing

INTERVALS = 3
RUNS = Path("runs")
TO_MEASURE = "to measure it, tune: the same command without --advise"
SUREST = 0.98  # that is said: some tens of worlds do not tell more
CLEARLY = 1.2  # times: how far outside of what a source lets expect an observation contradicts it


class Observed(NamedTuple):
    """What the configuration in force does."""

    standing: Standing
    transitions: list[Transition]  # of the intervals that tell a cost
    measurements: list[Measurement]  # of all

    @property
    def nothing_completed(self) -> bool:
        return not any(measurement.completions for measurement in self.measurements)


class EarlierTable(NamedTuple):
    """The reference table of an earlier run."""

    table: ReferenceTable
    path: Path
    elsewhere: str = ""  # of one that may have been measured on another target: which, in words


@dataclass(frozen=True)
class Source:
    """What a recommendation goes by, and in words."""

    foresight: Foresight
    words: str
    extrapolates: bool = False  # nothing but the configuration in force was seen


def observe(env: Environment, start: int, intervals: int, say: Callable[[str], None]) -> Observed:
    """Measures the configuration in force, waiting for requests where there are none."""
    action = env.space.action(start)
    observation, info = env.reset()
    records: list[Record] = []
    waiting = False
    while True:
        measurement = info["measurement"]
        if has_traffic(measurement) and not measurement.gap:
            transition = Transition(observation, action, info["cost"], observation, measurement)
            records.append(
                Record(
                    kind="baseline",
                    number=start,
                    configuration=env.space.configuration(start),
                    transition=transition,
                    decision="schedule",
                    reason="",
                    verdict="",
                    rollback=False,
                    learned=math.isfinite(info["cost"]),
                    wall_time_s=0.0,
                )
            )
        elif not waiting:
            waiting = True
            say(f"{measurement.gap or 'no requests arrive'}: waiting")
        if len(records) >= intervals:
            standing = Standing.of(records, env.space.configuration(start))
            learned = [record.transition for record in records if record.learned]
            return Observed(standing, learned, [record.measurement for record in records])
        observation, _, _, _, info = env.step(action)


def earlier_table(
    given: Path | None, model: str, here: Origin, say: Callable[[str], None]
) -> EarlierTable | None:
    """The reference table given, wherever it was measured, or that of the newest run under `runs/` of this
    model on this target, `here`.

    A run of several models has a folder for each. One that cannot be read, or tells no target, is said, and
    left out.
    """
    if given is not None:
        path = given / FILE_NAME if given.is_dir() else given
        table = ReferenceTable.read(path)
        return EarlierTable(table, path, _elsewhere(table, model, here))
    paths = [*RUNS.glob(f"*/{FILE_NAME}"), *RUNS.glob(f"*/*/{FILE_NAME}")]
    for path in sorted(paths, key=lambda p: p.stat().st_mtime, reverse=True):
        try:
            table = ReferenceTable.read(path)
        except ValueError as error:
            say(f"left out: {error}")
            continue
        if table.model != model:
            continue
        if table.origin is None:
            say(f"left out: {path} tells no target; give it with --reference-table if it is of this one")
        elif table.origin.is_of(here):
            return EarlierTable(table, path)
    return None


def _elsewhere(table: ReferenceTable, model: str, here: Origin) -> str:
    if table.model != model:
        return f"it is of another model, {table.model!r}, so trust it the less"
    if table.origin is None:
        return "it does not tell on which target it was measured"
    if table.origin.is_of(here):
        return ""
    return f"it was measured on another target, {table.origin.in_words()}, so trust it the less"


def fitting_entry(
    table: ReferenceTable, objective: str, rate_per_s: float, task: Task, found: Configuration
) -> Entry | None:
    """The table's best at this load, if it is for this objective and its limit, and to be had by what may be
    changed."""
    same = (table.objective, table.slo_p95_ms) == (objective, task.objective.slo_p95_ms)
    entry = table.recommend(rate_per_s) if same else None
    if entry is None:
        return None
    wanted = {**found, **entry.configuration}
    grid = {knob.name: knob.values for knob in task.space.knobs}
    if not all(value in grid.get(name, (found.get(name),)) for name, value in wanted.items()):
        return None
    number = task.space.number({name: wanted[name] for name in task.space.names})
    return None if number in task.excluded else entry


def source(
    task: Task,
    objective: str,
    observed: Observed,
    found: Configuration,
    earlier: EarlierTable | None,
    simulate: Simulate | None,
) -> Source | None:
    """The best there is to go by: a machine file, a reference table, or what was observed alone."""
    transitions, rate_per_s = observed.transitions, observed.standing.arrival_rate_per_s
    if not transitions:
        return None
    if simulate is not None:
        return Source(by_machine(task, transitions, simulate), "by simulation of the machine file")
    entry = None if earlier is None else fitting_entry(earlier.table, objective, rate_per_s, task, found)
    if earlier is not None and entry is not None:
        wanted = {**found, **entry.configuration}
        number = task.space.number({name: wanted[name] for name in task.space.names})
        low, high = entry.rate_per_s
        return Source(
            by_table(task, transitions, number, entry.cost, entry.measurements, entry.apart_from(rate_per_s)),
            f"by {earlier.path}: it cost {in_unit(entry.cost, earlier.table.unit)} in the mean of "
            f"{entry.measurements} intervals at {low:.0f} to {high:.0f} requests/s"
            + (f"; {earlier.elsewhere}" if earlier.elsewhere else ""),
        )
    foresight = by_observation(task, transitions)
    words = f"by {len(transitions)} intervals of the configuration in force alone"
    return None if foresight is None else Source(foresight, words, extrapolates=True)


def recommend(
    say: Callable[[str], None], task: Task, observed: Observed, found: Configuration, by: Source | None
) -> dict[str, int] | None:
    """Says what would be better, how much, how surely and by what; returns it, None for no change."""
    if by is None:
        say(f"no recommendation: {_why_none(observed)}")
        return None
    prediction, numbers = by.foresight
    recommended = prediction.recommended()
    guess = prediction.best_guess() if recommended is None else recommended
    configuration = task.space.configuration(int(numbers[guess]))
    expected = (
        f"expected {_expected(task, prediction.expectation(guess))} instead of "
        f"{in_unit(prediction.observed_cost, task.objective.unit)}, "
        f"no worse than now with {min(prediction.no_worse[guess], SUREST):.0%}"
    )
    if recommended is not None:
        say(f"recommended: {in_words(configuration)}")
        say(expected)
        say(f"({by.words}{_reach(by, found, configuration)}{_contradiction(task, by)})")
        return configuration
    if guess == prediction.present or prediction.gain[guess] < LEAST_GAIN:
        why = f"nothing promises {LEAST_GAIN - 1:.0%} less than what is in force"
    else:
        guessed = f"best guess: {in_words(configuration)}; {expected}"
        why = f"nothing is {CREDIBILITY:.0%} sure to be better; {guessed}"
    say(f"no change recommended: {why}")
    say(f"({by.words}{_contradiction(task, by)}; {TO_MEASURE})")
    return None


def observed_in_words(now: Standing, found: Configuration) -> str:
    percentile = f", p95 {now.p95_ms:.1f} ms" if math.isfinite(now.p95_ms) else ""
    where = f" in {in_words(found)}" if found else ""
    if math.isnan(now.arrival_rate_per_s):  # weighted by completions: there were none
        return f"observed: no answers{where}"
    return f"observed: {now.arrival_rate_per_s:.1f} requests/s, mean {now.mean_ms:.1f} ms{percentile}{where}"


def _why_none(observed: Observed) -> str:
    """Why there is nothing to go by, and what to do."""
    if observed.nothing_completed:
        seen = observed.measurements
        arrived, failed = sum(m.arrivals for m in seen), sum(m.failures for m in seen)
        return (
            f"no request was answered in the {sum(m.duration_s for m in seen):.1f} s observed ({arrived} "
            f"arrived, {failed} failed, {seen[-1].backlog} wait); see to it that the server answers, or give "
            "a longer --interval-s if a request takes that long"
        )
    return (
        "the target tells no service times by batch size, and there is neither an earlier run on this target "
        f"that fits nor a machine file to go by; {TO_MEASURE}"
    )


def _reach(by: Source, found: Configuration, configuration: Configuration) -> str:
    """How far a recommendation reaches beyond what was seen here."""
    if not by.extrapolates:
        return ""
    changed = [name for name, value in configuration.items() if found.get(name) != value]
    return (
        f"; no other value of {_listed(changed)} was ever seen here: this is foreseen from how servers "
        f"commonly behave; {TO_MEASURE}"
    )


def _contradiction(task: Task, by: Source) -> str:
    """Where the cost observed is not what the source lets expect."""
    prediction = by.foresight.prediction
    foreseen = prediction.expectation(prediction.present)
    if foreseen.low / CLEARLY <= prediction.observed_cost <= foreseen.high * CLEARLY:
        return ""
    if math.isinf(foreseen.low):  # of an overload the cost depends on how long it has lasted
        return ""
    return f"; it lets expect {_expected(task, foreseen)} of what is in force, so trust it the less"


def _expected(task: Task, expectation: Expectation) -> str:
    """`mean 21 ms (13 to 34 ms with 90%)`."""
    unit = task.objective.unit
    is_mean = isinstance(task.objective, MeanLatency) and task.objective.slo_p95_ms is None
    low, middle, high = (
        in_unit(cost, unit) if math.isfinite(cost) else "a growing queue" for cost in expectation
    )
    if math.isfinite(expectation.high):
        low = low.removesuffix(f" {unit}")
    return f"{'mean' if is_mean else 'cost'} {middle} ({low} to {high} with {CREDIBILITY:.0%})"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
