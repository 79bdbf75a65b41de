"""How many times lower the best's cost is than the start's, with a confidence interval. Pure logic.

Both are measured in turns, A B A B. The ratio of their costs is estimated from pairs of neighbouring turns,
so that a load that drifts meanwhile changes both alike. Two pairs alone say next to nothing about their own
scatter. So the scatter that the run saw before is pooled with theirs: Smyth's moderated t (Statistical
Applications in Genetics 3, 2004).

Three turns, A B A, may suffice. The start's turn is then compared with the geometric mean of the best's two,
and the distance of these two tells of the scatter.

The start's first turn may be shorter than an interval, since users have to bear it. Its length is planned
from the intervals before the turns and revised at each quarter of it. `MIN_GAIN_OVER_HALF_WIDTH` is so high
that these few looks seldom let noise pass for a gain.

| symbol | here | meaning |
|---|---|---|
| gᵢ = ln(aᵢ / bᵢ) | `gains` | (n,) log gain of pair i: the start's cost over the cost of the best beside it |
| ν | `Noise.relative` | relative standard deviation of one interval's cost |
| d₀ | `Noise.freedom` | degrees of freedom behind ν, counted up to `MAX_PRIOR_FREEDOM` |
| s² | | variance of the gᵢ, with n - 1 degrees of freedom |
| s̃² | `variance` | (d₀ · f ν² + (n - 1) s²) / (d₀ + n - 1) |
| f | `spread` | 2, as a pair differs by two intervals' noise; no less for A B A |
| σ | `first_share` | share of an interval; the cost of such a turn has 1 / σ of an interval's variance |
| exp(ḡ ± t s̃ / √n) | `Gain` | t: quantile of Student's distribution with d₀ + n - 1 degrees of freedom |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from rrl.measured_costs import NOISE

CONFIDENCE = 0.95  # two-sided
GAIN_TO_TRUST_ALONE = 2.0  # no slow spell of a machine explains so large a gain
MIN_TURN_SHARE = 0.25  # the shortest turn, as a share of an interval
MIN_TURN_SHARE_ALONE = 0.5  # the same where no earlier interval spoke for the best: a slow spell may begin it
MIN_TURN_REQUESTS = 30  # the fewest requests to measure in a turn
MIN_GAIN_OVER_HALF_WIDTH = 1.5  # a short turn must show this many half-widths, both as logarithms
MAX_PRIOR_FREEDOM = 8.0  # caps the weight of a long run's scatter, so that the turns' own scatter counts
USUAL_NOISE_FREEDOM = 1.0  # the weight of the noise assumed of any server, beside the noise seen


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
    def undecided(self) -> bool:
        """True if the best seems better, but may be so by chance."""
        return self.low <= 1.0 < self.estimate


UNKNOWN = Gain(math.nan, math.nan, math.nan)


def gain_interval(
    start_costs: Sequence[float],
    best_costs: Sequence[float],
    noise: Noise | None = None,
    first_share: float = 1.0,
) -> Gain:
    """The gain by the turns of both in their order, the best's first. `UNKNOWN` where no pair has a cost.

    `first_share` is the share of an interval that the start's first turn was measured for.
    """
    prior = noise or Noise()
    more = 1 / first_share - 1
    if is_between(start_costs, best_costs):
        return _gain_between(start_costs[0], best_costs, prior, more)
    pairs = [(a, b) for a, b in zip(start_costs, best_costs, strict=False) if _is_cost(a) and _is_cost(b)]
    if not pairs:
        return UNKNOWN
    gains = np.log([a for a, _ in pairs]) - np.log([b for _, b in pairs])
    squares = float(np.sum((gains - gains.mean()) ** 2))  # (n - 1) s²
    return _moderated(float(gains.mean()), len(gains), squares, len(gains) - 1, prior, 2 + more / len(gains))


def is_between(start_costs: Sequence[float], best_costs: Sequence[float]) -> bool:
    """True for a single turn of the start between two of the best, A B A, all with a cost."""
    return len(start_costs) == 1 and len(best_costs) == 2 and all(map(_is_cost, (*start_costs, *best_costs)))


def _gain_between(start_cost: float, best_costs: Sequence[float], prior: Noise, more: float) -> Gain:
    """The gain by A B A. Its variance is 1 + `more` intervals' from the start and half of one from the best.

    It is taken to be at least that of a pair, which ln²(b₁ / b₂) estimates.
    """
    before, after = np.log(best_costs)
    gain = math.log(start_cost) - float(before + after) / 2
    spread = max(2.0, 1.5 + more)
    return _moderated(gain, 1, spread / 2 * float((before - after) ** 2), 1, prior, spread)


def _moderated(gain: float, n: int, squares: float, freedom: int, prior: Noise, spread: float) -> Gain:
    """exp(ḡ ± t s̃ / √n), from a sum of squares that has `freedom` degrees of freedom."""
    prior_freedom = min(prior.freedom, MAX_PRIOR_FREEDOM)
    total = prior_freedom + freedom
    variance = (prior_freedom * spread * prior.relative**2 + squares) / total
    half = students_t(total) * math.sqrt(variance / n)
    return Gain(_exp(gain - half), _exp(gain), _exp(gain + half))


def share_to_show(gain: float, noise: Noise, requests: float) -> float:
    """The share of an interval with so many requests that shows a gain beyond noise with a margin; at most 1.

    It is for a turn of the start between two of the best, and solves this for the share σ:
    t ν √(1/2 + 1/σ) = ln(gain) / `MIN_GAIN_OVER_HALF_WIDTH`.
    """
    t = students_t(min(noise.freedom, MAX_PRIOR_FREEDOM) + 1)
    spread = (math.log(gain) / (MIN_GAIN_OVER_HALF_WIDTH * t * noise.relative)) ** 2
    share = 1 / (spread - 0.5) if spread > 0.5 else 1.0
    return min(1.0, max(share, MIN_TURN_SHARE, MIN_TURN_REQUESTS / max(requests, 1)))


def unpaired_gain(start_costs: Sequence[float], best_costs: Sequence[float]) -> Gain:
    """The gain by intervals that were not measured in turns.

    `UNKNOWN` where the start has none, or the best fewer than two, since a single one may be luck.
    exp(mean ln a - mean ln b ± t ν √(1/n_a + 1/n_b)), with ν from the scatter of these intervals.
    """
    costs = [[cost for cost in each if _is_cost(cost)] for each in (start_costs, best_costs)]
    if not costs[0] or len(costs[1]) < 2:
        return UNKNOWN
    noise = pooled_noise(costs)
    gain = float(np.mean(np.log(costs[0])) - np.mean(np.log(costs[1])))
    t = students_t(min(noise.freedom, MAX_PRIOR_FREEDOM))
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


def in_words(gain: Gain) -> str:
    if math.isnan(gain.estimate):
        return "no comparison with the start"
    return (
        f"{gain.estimate:.2f}x lower cost than the start "
        f"({CONFIDENCE:.0%} interval {gain.low:.2f}x to {gain.high:.2f}x)"
    )


def students_t(freedom: float) -> float:
    """The quantile of Student's distribution for a two-sided interval of `CONFIDENCE`."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _is_cost(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _exp(log: float) -> float:
    return math.exp(log) if log < 700 else math.inf
