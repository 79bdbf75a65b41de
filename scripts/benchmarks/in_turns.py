"""Latencies of a few configurations of a running server, in turns, as single measurements are noisy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from envs.live import LiveServing
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from scripts.benchmarks.client_log import Requests
from serving_adapter.target import Target

# Configuration -> what the clients saw of it, a part a round, or a window.
Turns = Mapping[int, Sequence[Requests]]


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


def best_in_turns(turns: Turns) -> list[Requests]:
    """Of each round, what the clients saw of the configuration that is best by all the other rounds.

    The lowest of several noisy means is lower than what its configuration is worth, so that none chosen
    beforehand, not even the best, could match it.
    """
    rounds = len(next(iter(turns.values())))

    def mean_of_others_ms(number: int, k: int) -> float:
        others = [part for j, part in enumerate(turns[number]) if j != k or rounds == 1]
        mean_ms = Requests.joined(others).mean_ms
        return mean_ms if math.isfinite(mean_ms) else math.inf

    best = [min(turns, key=lambda number, k=k: mean_of_others_ms(number, k)) for k in range(rounds)]
    return [turns[number][k] for k, number in enumerate(best)]


def ratio_error(parts: Sequence[Requests], best: Sequence[Requests]) -> float:
    """Standard error of the ratio of their means over the rounds, in which both met the same arrivals.

    0 where the best of each round was this very configuration: how sure that is, it does not tell.
    """
    ratios = [part.mean_ms / of_best.mean_ms for part, of_best in zip(parts, best, strict=True)]
    return float(np.std(ratios, ddof=1) / math.sqrt(len(ratios))) if len(ratios) > 1 else math.nan


def beside_turns_ms(alone: Turns, turns: Turns) -> dict[int, float]:
    """Mean latency of every configuration: as in turns with others, else of its windows alone (the median).

    These are of another time, and right after changes mostly: they count by as much more or less as those of
    the configurations measured in turns turned out to be worth (the median). Were these chosen for their low
    means, that is rather too much more: the lowest of noisy means are too low.
    """
    in_turns_ms = _known({number: Requests.joined(parts).mean_ms for number, parts in turns.items()})
    alone_ms = _known({number: _median_ms(parts) for number, parts in alone.items()})
    both = in_turns_ms.keys() & alone_ms.keys()
    scale = median(in_turns_ms[number] / alone_ms[number] for number in both) if both else 1.0
    return {number: scale * ms for number, ms in alone_ms.items()} | in_turns_ms


def _median_ms(parts: Sequence[Requests]) -> float:
    """Of the means of the windows with answers; NaN if there is none."""
    return median([part.mean_ms for part in parts if math.isfinite(part.mean_ms)] or [math.nan])


def _known(means_ms: Mapping[int, float]) -> dict[int, float]:
    """Without those of which no request was answered."""
    return {number: ms for number, ms in means_ms.items() if math.isfinite(ms)}
