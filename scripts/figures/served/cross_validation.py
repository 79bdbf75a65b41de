"""Ratios of configurations that are chosen by their latencies: chosen by some rounds, judged by another.

The lowest of many noisy latencies is low by luck, too. In the rounds that chose it, a ratio to it is too
large. So each round judges what all other rounds choose (leave-one-out cross-validation).
"""

from __future__ import annotations

import numpy as np

from scripts.figures.bootstrap import DRAWS, BootstrapInterval
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES, Claim
from scripts.figures.served.landscape import interval

SURELY = 1.1  # a ratio whose interval lies above is one


def cheapest(latency_ms: np.ndarray) -> np.ndarray:
    """(rounds,) for each round, which of (configurations, rounds) is lowest in the mean of the others."""
    return _by_other_rounds(latency_ms).argmin(axis=0)


def dearest(latency_ms: np.ndarray) -> np.ndarray:
    """(rounds,) for each round, which of (configurations, rounds) is highest in the mean of the others."""
    return _by_other_rounds(latency_ms).argmax(axis=0)


def judged(latency_ms: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(rounds,) what each round measured of the configuration chosen for it; NaN with one round."""
    rounds = len(chosen)
    if rounds == 1:
        return np.full(1, np.nan)
    found: np.ndarray = latency_ms[chosen, np.arange(rounds)]
    return found


def ratio(these_ms: np.ndarray, those_ms: np.ndarray) -> BootstrapInterval:
    """The ratio of the geometric means of (rounds,) latencies, over rounds drawn in pairs."""
    logs = np.log(these_ms) - np.log(those_ms)
    rng = np.random.default_rng(0)
    draws = np.exp(rng.choice(logs, (DRAWS, len(logs))).mean(axis=1))
    return interval(float(np.exp(logs.mean())), draws)


def ratio_claim(
    what: str, paper: str, found: BootstrapInterval, limit: float, least: float = SURELY
) -> Claim:
    """Yes where the ratio is surely at least `limit`, partly where it is surely above `least`."""
    if np.isnan(found.estimate):
        return Claim(what, paper, "one round", NO_CLAIM)
    verdict = REPRODUCES if found.low >= limit else PARTLY if found.low > least else FAILS
    return Claim(what, paper, found.text(".2f"), verdict)


def _by_other_rounds(latency_ms: np.ndarray) -> np.ndarray:
    """(configurations, rounds) sums of logarithms over all rounds but each."""
    logs = np.log(latency_ms)
    others: np.ndarray = logs.sum(axis=1, keepdims=True) - logs
    return others
