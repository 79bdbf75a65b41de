"""Latencies of a few configurations of a running server, in turns, as single measurements are noisy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

import numpy as np

from envs.live import LiveServing
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from scripts.serving.client_log import Requests
from serving_adapter.target import OpenInferenceTarget

RESAMPLES = 1000  # bootstrap samples of the rounds, for standard errors

# Configuration -> what the clients saw of it, a part a round, or a window.
Turns = Mapping[int, Sequence[Requests]]
Figure = Callable[[Requests], float]  # a figure of what clients saw in a window
# The middle of several rounds. With one load it is the median, as a slow spell of the machine commonly meets
# one window alone. Where the load differs between rounds it is the geometric mean, so that each round counts.
Middle = Callable[[Sequence[float]], float]


class Ratio(NamedTuple):
    """Over the best's: the middle of the rounds' ratios, and its standard error (by 1,000 resamples of them).

    The error is 0 where all rounds say the same, as where the best of each was this very configuration: how
    sure that is, it does not tell.
    """

    middle: float
    error: float


def mean_ms(part: Requests) -> float:
    """Of all requests, failed ones too: what refuses most and answers the rest soon is not the best."""
    return part.mean_felt_ms


def p95_ms(part: Requests) -> float:
    """Of the answered requests; infinite where there are none."""
    return part.p95_ms if math.isfinite(part.p95_ms) else math.inf


@dataclass(frozen=True)
class InTurns:
    """A few configurations measured in turns over several rounds, all under the same arrivals in a round.

    Some may have been in the first rounds only: those that cannot be the best.
    """

    parts: Turns
    middle: Middle = median

    @cached_property
    def best(self) -> list[Requests]:
        """What the clients saw in each round of the configuration that is best by all the other rounds."""
        return best_in_turns(self.parts, self.middle)

    def best_ms(self, figure: Figure = mean_ms) -> float:
        """The middle of the rounds in which it answered; NaN where there are none."""
        answered = [part for part in self.best if math.isfinite(figure(part))]
        return middle_ms(answered, figure, self.middle) if answered else math.nan

    def of_ms(self, number: int, figure: Figure = mean_ms) -> float:
        """The middle of the rounds, of one configuration."""
        return middle_ms(self.parts[number], figure, self.middle)

    def ratio(self, number: int, figure: Figure = mean_ms) -> Ratio:
        """How many times as much as the best's."""
        return ratio(self.parts[number], self.best, figure, self.middle)

    def beside_ms(self, alone: Turns) -> dict[int, float]:
        """Mean latency of every configuration: by its ratio to the best in turns, else by its windows alone.

        The windows are of another time, and mostly right after changes. So their median is scaled by what the
        windows of the configurations measured in turns turned out to be worth.

        If those were chosen for their low means, the scale is rather too large: the lowest of several noisy
        means are too low.
        """
        best_ms = self.best_ms()
        in_turns_ms = {number: best_ms * self.ratio(number).middle for number in self.parts}
        alone_ms = {n: [ms for ms in map(mean_ms, parts) if math.isfinite(ms)] for n, parts in alone.items()}
        medians_ms = {n: median(each_ms) for n, each_ms in alone_ms.items() if each_ms}
        known_ms = {n: ms for n, ms in in_turns_ms.items() if math.isfinite(ms)}
        both = known_ms.keys() & medians_ms.keys()
        scale = median(known_ms[n] / medians_ms[n] for n in both) if both else 1.0
        return {n: scale * ms for n, ms in medians_ms.items()} | known_ms


def latencies_in_turns_ms(
    target: OpenInferenceTarget,
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
    env.run(numbers[0])
    measured = [{n: env.run(n).cost for n in numbers} for _ in range(rounds)]
    medians_ms = {}
    for n in numbers:
        answered = [latencies_ms[n] for latencies_ms in measured if math.isfinite(latencies_ms[n])]
        if not answered:
            raise RuntimeError(f"no request was answered under {space.configuration(n)}")
        medians_ms[n] = median(answered)
    return medians_ms


def best_in_turns(turns: Turns, middle: Middle = median) -> list[Requests]:
    """Of each round, what the clients saw of the configuration that is best by all the other rounds.

    The lowest of several noisy means is lower than what its configuration is worth, so that none chosen
    beforehand, not even the best, could match it. Best is the lowest middle, over the rounds, of the mean
    latency over what is usual in a round.
    """
    if not turns:
        return []
    numbers = list(turns)
    most = max(map(len, turns.values()))
    means_ms = np.array(
        [[*map(mean_ms, parts), *[math.inf] * (most - len(parts))] for parts in turns.values()]
    )
    answered = [k for k, column in enumerate(means_ms.T) if np.isfinite(column).any()]
    usual_ms = {
        k: median(column[np.isfinite(column)]) for k, column in enumerate(means_ms.T) if k in answered
    }
    best = []
    for k in range(means_ms.shape[1]):
        rounds = [j for j in answered if j != k] or answered
        relative = [
            middle([row[j] / usual_ms[j] for j in rounds]) if rounds else math.inf for row in means_ms
        ]
        best.append(turns[numbers[int(np.argmin(relative))]][k])
    return best


def middle_ms(parts: Sequence[Requests], figure: Figure = mean_ms, middle: Middle = median) -> float:
    """The median of the rounds' means, or of another figure of each."""
    return float(middle([figure(part) for part in parts]))


def ratio(
    parts: Sequence[Requests], best: Sequence[Requests], figure: Figure = mean_ms, middle: Middle = median
) -> Ratio:
    """How many times as much as the best's, by the rounds that it was in and the best answered in."""
    pairs = [(figure(part), figure(of_best)) for part, of_best in zip(parts, best, strict=False)]
    ratios = [ms / best_ms for ms, best_ms in pairs if math.isfinite(best_ms)]
    if not ratios:
        return Ratio(math.inf, math.nan)
    if len(ratios) < 2 or not all(map(math.isfinite, ratios)):
        return Ratio(float(middle(ratios)), math.nan)
    rng = np.random.default_rng(0)
    again = [middle(rng.choice(ratios, len(ratios)).tolist()) for _ in range(RESAMPLES)]
    return Ratio(float(middle(ratios)), float(np.std(again)))
