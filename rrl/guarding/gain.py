"""How many times lower the best's cost is than the start's, with a confidence interval. Pure logic.

Both are measured in turns. The gain is estimated from pairs of neighbouring turns, so that load and machine
bear on both alike. Two pairs alone say next to nothing about their own scatter. So the scatter that the run
saw before is pooled with theirs: Smyth's moderated t (Statistical Applications in Genetics 3, 2004).

A run looks after each pair, and even within a turn of the start, and stops once the gain is shown. One
interval for all looks would let noise pass for a gain then. So each look spends a part of the error that all
of them may make together: Lan and DeMets's alpha spending (Biometrika 70, 1983).

| symbol | here | meaning |
|---|---|---|
| gᵢ = ln(aᵢ / bᵢ) | `gains` | (n,) log gain of pair i: the start's cost over the cost of the best beside it |
| σᵢ | `shares` | share of an interval that the start's turn of pair i was measured for |
| wᵢ = 2 / (1 + 1 / σᵢ) | `weights` | (n,) what pair i tells, in whole pairs; N is their sum |
| ḡ | `middle` | weighted mean of the gᵢ |
| ν, d | `Noise` | relative standard deviation of one interval's cost, and the degrees of freedom behind it |
| s̃² | `variance` | (2 d ν² + Σ wᵢ (gᵢ - ḡ)²) / (d + n - 1): a pair differs by two intervals' noise |
| exp(ḡ ± t s̃ / √N) | `Gain` | t: quantile of Student's distribution with d + n - 1 degrees of freedom |
| α | `error` | how seldom a look may see a gain where there is none |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from rrl.measured_costs import NOISE

CONFIDENCE = 0.95  # two-sided, of a mean
GAIN_CONFIDENCE = 0.9  # two-sided, of a gain over all looks: at most one in twenty is none
EXPECTED_CONFIDENCE = 0.95  # two-sided, of an expected gain: what seems best of several may be luck
MAX_ERROR = (1 - GAIN_CONFIDENCE) / 2  # of all looks together
MAX_PRIOR_FREEDOM = 20.0  # caps the weight of a long run's scatter, so that the turns' own scatter counts
USUAL_NOISE_FREEDOM = 1.0  # the weight of the noise assumed of any server, beside the noise seen
DIFFERENCE_FREEDOM = 2 / 3  # of one difference between neighbours, which share an interval with the next


class Noise(NamedTuple):
    """How much the cost of one interval scatters, and how well that is known."""

    relative: float = NOISE
    freedom: float = USUAL_NOISE_FREEDOM


class Gain(NamedTuple):
    """How many times lower the best's cost is than the start's: a confidence interval and its middle."""

    low: float
    estimate: float
    high: float

    @property
    def beyond_noise(self) -> bool:
        return self.low > 1.0

    @property
    def is_none(self) -> bool:
        """True if the best is shown to be no better."""
        return self.high < 1.0

    @property
    def undecided(self) -> bool:
        """True if the best seems better, but may be so by chance."""
        return self.low <= 1.0 < self.estimate


UNKNOWN = Gain(math.nan, math.nan, math.nan)


def gain_interval(
    start_costs: Sequence[float],
    best_costs: Sequence[float],
    noise: Noise | None = None,
    shares: Sequence[float] = (),
    error: float = MAX_ERROR,
) -> Gain:
    """The gain by pairs of turns. `UNKNOWN` where no pair has a cost. By default it is looked at once.

    `shares` are those of an interval that the start's turns were measured for; by default, and for those that
    follow, a whole one.
    """
    whole = [*shares, *[1.0] * len(start_costs)]
    pairs = [
        (a, b, share)
        for a, b, share in zip(start_costs, best_costs, whole, strict=False)
        if _is_cost(a) and _is_cost(b)
    ]
    if not pairs:
        return UNKNOWN
    of_start, of_best, measured_for = np.array(pairs).T  # (n,) each
    gains, weights = np.log(of_start) - np.log(of_best), 2 / (1 + 1 / measured_for)
    middle = float(np.average(gains, weights=weights))
    prior = noise or Noise()
    prior_freedom = min(prior.freedom, MAX_PRIOR_FREEDOM)
    freedom = prior_freedom + len(pairs) - 1
    squares = 2 * prior_freedom * prior.relative**2 + float(weights @ (gains - middle) ** 2)
    half = students_t(freedom, 1 - 2 * error) * math.sqrt(squares / freedom / float(weights.sum()))
    return Gain(_exp(middle - half), _exp(middle), _exp(middle + half))


def unpaired_gain(start_costs: Sequence[float], best_costs: Sequence[float]) -> Gain:
    """The gain by intervals that were not measured in turns, looked at once.

    exp(mean ln a - mean ln b ± t ν √(1/n_a + 1/n_b)), with ν from the scatter of these intervals. `UNKNOWN`
    where either has none.
    """
    costs = [[cost for cost in each if _is_cost(cost)] for each in (start_costs, best_costs)]
    if not costs[0] or not costs[1]:
        return UNKNOWN
    noise = pooled_noise(costs)
    gain = float(np.mean(np.log(costs[0])) - np.mean(np.log(costs[1])))
    t = students_t(min(noise.freedom, MAX_PRIOR_FREEDOM), GAIN_CONFIDENCE)
    half = t * noise.relative * math.sqrt(sum(1 / len(each) for each in costs))
    return Gain(_exp(gain - half), _exp(gain), _exp(gain + half))


def pooled_noise(costs: Sequence[Sequence[float]]) -> Noise:
    """The scatter of intervals within each configuration, pooled with the usual noise of a server."""
    freedom, squares = USUAL_NOISE_FREEDOM, USUAL_NOISE_FREEDOM * NOISE**2
    for each in costs:
        logs = np.log([cost for cost in each if _is_cost(cost)])
        if len(logs) > 1:
            freedom += len(logs) - 1
            squares += float(np.sum((logs - logs.mean()) ** 2))
    return Noise(math.sqrt(squares / freedom), freedom)


def neighbours_noise(costs: Sequence[Sequence[float]]) -> Noise:
    """As `pooled_noise`, from the differences between neighbours, to which a slow drift adds little.

    That is what pairs of neighbouring turns scatter by.
    """
    freedom, squares = USUAL_NOISE_FREEDOM, USUAL_NOISE_FREEDOM * NOISE**2
    for each in costs:
        differences = np.diff(np.log([cost for cost in each if _is_cost(cost)]))
        freedom += DIFFERENCE_FREEDOM * len(differences)
        squares += DIFFERENCE_FREEDOM * float(differences @ differences) / 2
    return Noise(math.sqrt(squares / freedom), freedom)


def in_words(gain: Gain, confidence: float = GAIN_CONFIDENCE) -> str:
    if math.isnan(gain.estimate):
        return "no comparison with the start"
    return f"{times_lower(gain.estimate)} cost than the start ({interval_in_words(gain, confidence)})"


def interval_in_words(gain: Gain, confidence: float = GAIN_CONFIDENCE) -> str:
    """Beside a gain as `times_lower` tells it: of one below 1 each end says its direction."""
    if gain.estimate < 1:
        return f"{confidence:.0%} interval {times_lower(gain.low)} to {times_lower(gain.high)}"
    return f"{confidence:.0%} interval {gain.low:.2f}x to {gain.high:.2f}x"


def times_lower(gain: float) -> str:
    """`1.58x lower`, or `1.25x higher` of a gain of 0.8."""
    return f"{1 / gain:.2f}x higher" if 0 < gain < 1 else f"{gain:.2f}x lower"


def students_t(freedom: float, confidence: float = CONFIDENCE) -> float:
    """The quantile of Student's distribution for a two-sided interval."""
    return float(stdtrit(freedom, (1 + confidence) / 2))


def _is_cost(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _exp(log: float) -> float:
    return math.exp(log) if log < 700 else math.inf
