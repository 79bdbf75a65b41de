"""`model-error`: what learning the queueing model's error is worth, on the intervals of runs that were made.

Each journal is told to a belief, interval by interval. Before it learns from one, it predicts r, ln of the
mean latency over that of the interval's own arrivals and service times, replayed. The figure is the
predictive log-likelihood of r in nats an interval, with what was learned of the queueing model's error and
without, where r is expected to be 0. Higher is better.

Beyond the variance that each prediction has, a noise is added that is the same for all intervals. It is the
one of `NOISES` that suits most, with and without by itself. *First* are intervals of a configuration that
the journal had none of before.

    scripts/bench model-error --runs FOLDER FOLDER ...
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rrl import journal
from rrl.belief.belief import Belief
from rrl.belief.model_error import ERROR_LIMIT
from rrl.belief.several_models.joint import belief_of
from rrl.objective import make_objective
from serving_adapter.flags.parsing import parse

NOISES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class Options:
    """What learning the queueing model's error is worth, on the intervals of runs that were made."""

    runs: tuple[Path, ...]
    """Folders that `rrl-tune` or a benchmark wrote. Journals are looked for in them and below."""

    def __post_init__(self) -> None:
        for folder in self.runs:
            if not any(folder.rglob(journal.FILE_NAME)):
                raise ValueError(
                    f"--runs: no {journal.FILE_NAME} in {folder} or below it; give what --out was given"
                )


class PredictedError(NamedTuple):
    """One interval: what the replay got wrong of it, and what was expected of that."""

    first: bool  # of its configuration, in this journal
    error: float
    variance: float  # of chance
    expected: float
    sd: float


def predictions(folder: Path) -> Iterator[PredictedError]:
    """Of the intervals of a journal that tell something of the queueing model; none of several models."""
    header, records = journal.read(folder)
    objective = make_objective(header.objective, header.slo_p95_ms)
    belief = belief_of(header.space, objective, header.cores, header.found, header.concurrency)
    if not isinstance(belief, Belief):
        return
    known: set[int] = set()
    for record in records:
        if not (record.counted and record.learned):
            continue
        number, errors = record.number, belief.model_error
        before, expected = errors.learned_last, float(errors.log_ratio[number])
        sd = float(errors.standard_deviations(np.array([number]))[0])
        belief.learn(number, record.measurement)
        seen = errors.learned_last
        if seen is not None and seen is not before:
            if abs(seen.error) < ERROR_LIMIT:  # That is said of every overloaded interval.
                yield PredictedError(number not in known, seen.error, seen.variance, expected, sd)
            known.add(number)


def learned(all_of: Sequence[PredictedError]) -> tuple[np.ndarray, np.ndarray]:
    """(N,) deviations from what was expected, and variances."""
    return (
        np.array([each.error - each.expected for each in all_of]),
        np.array([each.sd**2 + each.variance for each in all_of]),
    )


def without(all_of: Sequence[PredictedError]) -> tuple[np.ndarray, np.ndarray]:
    """The same, were the queueing model taken to be right."""
    return np.array([each.error for each in all_of]), np.array([each.variance for each in all_of])


def nats(deviations: np.ndarray, variances: np.ndarray, noise: float) -> np.ndarray:
    """(N,) ln of the Gaussian density of each."""
    total = variances + noise**2
    return np.asarray(-0.5 * (deviations**2 / total + np.log(2 * math.pi * total)))


def likelihood(
    all_of: Sequence[PredictedError],
    by: Callable[[Sequence[PredictedError]], tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    """(N,) nats of each, with the noise that suits all most."""
    deviations, variances = by(all_of)
    return max((nats(deviations, variances, noise) for noise in NOISES), key=np.sum)


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    journals = sorted({path.parent for folder in options.runs for path in folder.rglob(journal.FILE_NAME)})
    by_journal = [each for folder in journals if (each := list(predictions(folder)))]
    if not by_journal:
        raise ValueError("--runs: none of these journals has an interval that tells of the queueing model")
    every = [prediction for each in by_journal for prediction in each]
    with_it, without_it = likelihood(every, learned), likelihood(every, without)
    first = np.array([each.first for each in every])
    print("| intervals | number | learned | without | median miss | without |\n|---|---|---|---|---|---|")
    for name, which in (("all", first | True), ("first of their configuration", first), ("others", ~first)):
        missed, missed_without = (np.median(np.abs(by(every)[0][which])) for by in (learned, without))
        print(
            f"| {name} | {which.sum()} | {with_it[which].mean():.2f} | {without_it[which].mean():.2f} "
            f"| {missed:.1%} | {missed_without:.1%} |"
        )
    ends = np.cumsum([0, *map(len, by_journal)])
    gains = [float((with_it - without_it)[a:b].mean()) for a, b in pairwise(ends)]
    better = sum(gain > 0 for gain in gains)
    print(f"It is better in {better} of {len(gains)} journals; median gain {np.median(gains):.2f} nats.")
    return {
        "value": round(float(with_it.mean()), 3),
        "unit": "nats an interval, with what was learned of the queueing model's error",
        "peer": round(float(without_it.mean()), 3),
        "journals": len(gains),
        "better in": better,
        "holds": bool(with_it.mean() > without_it.mean()),
    }
