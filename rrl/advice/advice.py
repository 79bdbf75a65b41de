"""What to recommend for a target, by the best that is known of it, and how to say so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rrl.advice.cost_sources import Simulate, by_machine, by_observation, by_table
from rrl.advice.earlier_table import EarlierTable, fitting_entry
from rrl.advice.observation import MeasuredInForce
from rrl.advice.possible_costs import CREDIBILITY, MIN_GAIN_TO_RECOMMEND, Expectation, PossibleCosts
from rrl.agent import Task, Transition
from rrl.knobs import in_words
from rrl.objective import MeanLatency, in_unit
from rrl.space import Configuration
from rrl.views.html_report.numbers import ms

HOW_TO_MEASURE = "to measure it, tune: the same command without --advise"
MAX_CONFIDENCE_TO_SAY = 0.98  # Some tens of worlds cannot support more.
MIN_CONTRADICTION_RATIO = 1.2  # How far outside of its expected interval a cost contradicts a source.


@dataclass(frozen=True)
class Source:
    """The evidence that a recommendation goes by, and its name in words."""

    possible: PossibleCosts
    words: str
    extrapolates: bool = False  # Nothing but the configuration in force was seen.


def source(
    task: Task,
    objective: str,
    observed: MeasuredInForce,
    found: Configuration,
    earlier: EarlierTable | None,
    simulate: Simulate | None,
) -> Source | None:
    """The best there is to go by: a machine file, a reference table, or what was observed alone."""
    transitions = [_without_failures(task, each) for each in observed.transitions]
    rate_per_s = observed.standing.arrival_rate_per_s
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
            f"{entry.measurements} intervals at {ms(low)} to {ms(high)} requests/s"
            + (f"; {earlier.elsewhere}" if earlier.elsewhere else ""),
        )
    possible = by_observation(task, transitions)
    words = f"by {len(transitions)} intervals of the configuration in force alone"
    return None if possible is None else Source(possible, words, extrapolates=True)


def _without_failures(task: Task, transition: Transition) -> Transition:
    """What it would have cost by the requests that were answered, as nothing foretells which others fail."""
    measurement = replace(transition.measurement, failures=0)
    if measurement == transition.measurement:
        return transition
    number = task.space.number_of_action(transition.action)
    configuration = {**task.found, **task.space.configuration(number)}
    return replace(transition, measurement=measurement, cost=task.objective.cost(measurement, configuration))


def recommend(
    say: Callable[[str], None], task: Task, observed: MeasuredInForce, found: Configuration, by: Source | None
) -> dict[str, int] | None:
    """Says what would be better, by how much, how surely and on what evidence. Returns it, or None."""
    if by is None:
        say(f"no recommendation: {_why_none(observed)}")
        return None
    possible = by.possible
    recommended = possible.recommended()
    guess = possible.best_guess() if recommended is None else recommended
    configuration = task.space.configuration(int(possible.numbers[guess]))
    expected = (
        f"expected {_expected(task, possible.expectation(guess))} instead of "
        f"{in_unit(possible.observed_cost, task.objective.unit)}, "
        f"no worse than now with {min(possible.no_worse[guess], MAX_CONFIDENCE_TO_SAY):.0%}"
    )
    if recommended is not None:
        say(f"recommended: {in_words(configuration)}")
        say(expected)
        say(f"({by.words}{_reach(by, found, configuration)}{_contradiction(task, by)})")
        return configuration
    if guess == possible.present or possible.gain[guess] < MIN_GAIN_TO_RECOMMEND:
        why = f"nothing promises {MIN_GAIN_TO_RECOMMEND - 1:.0%} less than what is in force"
    else:
        guessed = f"best guess: {in_words(configuration)}; {expected}"
        why = f"nothing is {CREDIBILITY:.0%} sure to be better; {guessed}"
    say(f"no change recommended: {why}")
    say(f"({by.words}{_contradiction(task, by)}; {HOW_TO_MEASURE})")
    return None


def _why_none(observed: MeasuredInForce) -> str:
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
        f"that fits nor a machine file to go by; {HOW_TO_MEASURE}"
    )


def _reach(by: Source, found: Configuration, configuration: Configuration) -> str:
    """How far a recommendation reaches beyond what was seen here."""
    if not by.extrapolates:
        return ""
    changed = [name for name, value in configuration.items() if found.get(name) != value]
    return (
        f"; no other value of {_listed(changed)} was ever seen here: this is foreseen from how servers "
        f"commonly behave; {HOW_TO_MEASURE}"
    )


def _contradiction(task: Task, by: Source) -> str:
    """A warning where the cost observed is not what the source lets expect."""
    possible = by.possible
    foreseen = possible.expectation(possible.present)
    if (
        foreseen.low / MIN_CONTRADICTION_RATIO
        <= possible.observed_cost
        <= foreseen.high * MIN_CONTRADICTION_RATIO
    ):
        return ""
    if math.isinf(foreseen.low):  # The cost of an overload depends on how long it has lasted.
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
