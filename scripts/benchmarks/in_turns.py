"""Latencies of a few configurations of a running server, in turns, as single measurements are noisy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from envs.live import LiveServing
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from scripts.benchmarks.client_log import Requests
from serving_adapter.target import Target

SD_OVER_MAD = 1.4826  # standard deviation over the median absolute one, and ...
ERROR_OF_MEDIAN = math.sqrt(math.pi / 2)  # ... standard error of a median over that of a mean: both normal

# Configuration -> what the clients saw of it, a part a round, or a window.
Turns = Mapping[int, Sequence[Requests]]
Figure = Callable[[Requests], float]  # of what clients saw of a window


class Ratio(NamedTuple):
    """Over the best's: the median of the rounds, and its standard error.

    0 where the best of each round was this very configuration: how sure that is, it does not tell.
    """

    median: float
    error: float


def latencies_in_turns_ms(
    target: Target,
    space: ConfigurationSpace,
    numbers: Sequence[int],
    rounds: int,
    interval_s: float,
    settle_s: float,
) -> dict[int, float]:
    """Median mean latency over several rounds, all configurations in each; nothing is aborted.

    RuntimeError if a configuration answered nothing in every round.
    """
    env = LiveServing(target, space, MeanLatency(), interval_s, settle_s)
    env.reset(options={"configuration": space.configuration(numbers[0])})
    measured = [{n: float(env.step(space.action(n))[4]["cost"]) for n in numbers} for _ in range(rounds)]
    medians_ms = {}
    for n in numbers:
        answered = [latencies_ms[n] for latencies_ms in measured if math.isfinite(latencies_ms[n])]
        if not answered:
            raise RuntimeError(f"no request was answered under {space.configuration(n)}")
        medians_ms[n] = median(answered)
    return medians_ms


def mean_ms(part: Requests) -> float:
    """Infinite where no request was answered."""
    return part.mean_ms if math.isfinite(part.mean_ms) else math.inf


def p95_ms(part: Requests) -> float:
    """NaN where no request was answered."""
    return part.p95_ms


def best_in_turns(turns: Turns) -> list[Requests]:
    """Of each round, what the clients saw of the configuration that is best by all the other rounds.

    The lowest of several noisy means is lower than what its configuration is worth, so that none chosen
    beforehand, not even the best, could match it. Best is the lowest median, over the rounds, of the mean
    latency over what is usual in a round: loads may differ from round to round, and a slow spell of the
    machine commonly meets one window alone.
    """
    rounds = len(next(iter(turns.values())))
    means_ms = np.array([[mean_ms(part) for part in parts] for parts in turns.values()])
    finite_ms = np.where(np.isfinite(means_ms), means_ms, np.nan)
    relative = means_ms / [_median(column) for column in finite_ms.T]
    numbers = list(turns)
    best = []
    for k in range(rounds):
        others = [j for j in range(rounds) if j != k or rounds == 1]
        number = numbers[int(np.argmin(np.median(relative[:, others], axis=1)))]
        best.append(turns[number][k])
    return best


def median_ms(parts: Sequence[Requests], figure: Figure = mean_ms) -> float:
    """Of the windows' means, or another figure of each, where any request was answered; NaN if none was."""
    figures = map(figure, parts)
    return _median([ms for ms in figures if math.isfinite(ms)])


def ratio(parts: Sequence[Requests], best: Sequence[Requests], figure: Figure = mean_ms) -> Ratio:
    """How many times as much as the best's, by the rounds in which both met the same arrivals."""
    ratios = np.array([figure(part) / figure(of_best) for part, of_best in zip(parts, best, strict=True)])
    middle = float(np.median(np.where(np.isnan(ratios), math.inf, ratios)))
    if len(ratios) < 2 or not math.isfinite(middle):
        return Ratio(middle, math.nan)
    sd = SD_OVER_MAD * float(np.median(np.abs(ratios - middle)))
    return Ratio(middle, ERROR_OF_MEDIAN * sd / math.sqrt(len(ratios)))


def beside_turns_ms(alone: Turns, turns: Turns) -> dict[int, float]:
    """Mean latency of every configuration: by its ratio to the best in turns, else by its windows alone (the
    median).

    These are of another time, and right after changes mostly: they count by as much more or less as those of
    the configurations measured in turns turned out to be worth (the median). Were these chosen for their low
    means, that is rather too much more: the lowest of noisy means are too low.
    """
    best = best_in_turns(turns)
    best_ms = median_ms(best)
    in_turns_ms = _known({number: ratio(parts, best).median * best_ms for number, parts in turns.items()})
    alone_ms = _known({number: median_ms(parts) for number, parts in alone.items()})
    both = in_turns_ms.keys() & alone_ms.keys()
    scale = median(in_turns_ms[number] / alone_ms[number] for number in both) if both else 1.0
    return {number: scale * ms for number, ms in alone_ms.items()} | in_turns_ms


def _median(values: Sequence[float] | np.ndarray) -> float:
    """Of the known ones; NaN if there is none."""
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else math.nan


def _known(means_ms: Mapping[int, float]) -> dict[int, float]:
    """Without those of which no request was answered."""
    return {number: ms for number, ms in means_ms.items() if math.isfinite(ms)}
