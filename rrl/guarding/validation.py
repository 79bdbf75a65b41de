"""Is the best really better than the start? Both are measured in turns, A B A B, and this says by how much.

The ratio of the costs is estimated from pairs of neighbouring turns, so that a load that drifts meanwhile
bears on both alike. Two pairs alone say next to nothing of their own scatter, so the scatter that the run has
seen before is pooled with theirs: Smyth's moderated t (Statistical Applications in Genetics 3, 2004).

Where the start is not put in force again, A B A, its turn is compared with the geometric mean of the two
around it, and how far these lie apart tells of the scatter. It ends so where the gain is beyond noise by
then, as it was before the turns, or is above `CLEARLY` beyond noise. A start that was worse beyond noise
before its turns is measured in the first of them for only as long as it takes to show that again: its users
need not bear it for longer. How long that is follows from the intervals before, and anew from what the turn
tells at each quarter of it (of a start that was not worse before, from its half on, that it is `CLEARLY`
worse): the bar of `TO_SPARE` is so high that a few looks more seldom let noise pass.

| symbol | here | meaning |
|---|---|---|
| gᵢ = ln(aᵢ / bᵢ) | `gains` | (n,) log gain of pair i: cost at the start over cost of the best beside it |
| ν | `Noise.relative` | relative standard deviation of one interval's cost |
| d₀ | `Noise.freedom` | degrees of freedom behind ν, counted up to `MOST_FREEDOM` |
| s² | | variance of the gᵢ, of n - 1 degrees of freedom |
| s̃² | `variance` | (d₀ · f ν² + (n - 1) s²) / (d₀ + n - 1) |
| f | `spread` | 2, as a pair differs by two intervals' noise; no less for A B A |
| σ | `first_share` | of an interval; its cost has 1 / σ of an interval's variance |
| exp(ḡ ± t s̃ / √n) | `Gain` | t: quantile of Student's distribution of d₀ + n - 1 degrees of freedom |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from rrl.measured_costs import NOISE

CONFIDENCE = 0.95  # two-sided
CLEARLY = 2.0  # times the cost: no slow spell of a machine explains that much
LEAST_SHARE = 0.25  # of an interval, for which a turn is measured
LEAST_SHARE_ALONE = 0.5  # ... where nothing before it spoke for the best: it may begin with a slow spell
FEWEST_REQUESTS = 30  # measured in a turn
TO_SPARE = 1.5  # times the half-width of its logarithm is the gain that a short turn is to show
MOST_FREEDOM = 8.0  # a long run's scatter counts no more than this, so that the turns' own is heard
FREEDOM_OF_THE_USUAL = 1.0  # what the noise assumed of any server counts beside the noise seen


class Noise(NamedTuple):
    """How much the cost of one interval scatters, and by how many degrees of freedom that is known."""

    relative: float = NOISE
    freedom: float = FREEDOM_OF_THE_USUAL


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
    """From the turns of both in their order, the best's first; `UNKNOWN` where no pair of them has a cost.

    `first_share`: the start's first was measured for this share of an interval.
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
    """The variance is 1 + `more` of the start's, and half of one of the best's; not below that of a pair, of
    which ln²(b₁ / b₂) tells."""
    before, after = np.log(best_costs)
    gain = math.log(start_cost) - float(before + after) / 2
    spread = max(2.0, 1.5 + more)
    return _moderated(gain, 1, spread / 2 * float((before - after) ** 2), 1, prior, spread)


def _moderated(gain: float, n: int, squares: float, freedom: int, prior: Noise, spread: float) -> Gain:
    """exp(ḡ ± t s̃ / √n), of squares with so many degrees of freedom of their own."""
    prior_freedom = min(prior.freedom, MOST_FREEDOM)
    total = prior_freedom + freedom
    variance = (prior_freedom * spread * prior.relative**2 + squares) / total
    half = students_t(total) * math.sqrt(variance / n)
    return Gain(_exp(gain - half), _exp(gain), _exp(gain + half))


def share_to_show(gain: float, noise: Noise, requests: float) -> float:
    """Of an interval with so many requests: how long a turn of the start, between two of the best's, must be
    measured to show a gain beyond noise, with something to spare. At most 1.

    t ν √(1/2 + 1/σ) = ln(gain) / `TO_SPARE`, solved for the share σ.
    """
    t = students_t(min(noise.freedom, MOST_FREEDOM) + 1)
    spread = (math.log(gain) / (TO_SPARE * t * noise.relative)) ** 2
    share = 1 / (spread - 0.5) if spread > 0.5 else 1.0
    return min(1.0, max(share, LEAST_SHARE, FEWEST_REQUESTS / max(requests, 1)))


def unpaired_gain(start_costs: Sequence[float], best_costs: Sequence[float]) -> Gain:
    """From intervals of both that were not measured in turns; `UNKNOWN` where the start has none or the best
    fewer than two, since a single one may be luck.

    exp(mean ln a - mean ln b ± t ν √(1/n_a + 1/n_b)), ν from the scatter of these intervals.
    """
    costs = [[cost for cost in each if _is_cost(cost)] for each in (start_costs, best_costs)]
    if not costs[0] or len(costs[1]) < 2:
        return UNKNOWN
    noise = pooled_noise(costs)
    gain = float(np.mean(np.log(costs[0])) - np.mean(np.log(costs[1])))
    t = students_t(min(noise.freedom, MOST_FREEDOM))
    half = t * noise.relative * math.sqrt(sum(1 / len(each) for each in costs))
    return Gain(_exp(gain - half), _exp(gain), _exp(gain + half))


def pooled_noise(costs: Sequence[Sequence[float]]) -> Noise:
    """The scatter of intervals within each configuration, with what is usual for a server's beside it."""
    freedom, squares = FREEDOM_OF_THE_USUAL, FREEDOM_OF_THE_USUAL * NOISE**2
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
    """The quantile of Student's distribution that a two-sided interval of `CONFIDENCE` takes."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _is_cost(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _exp(log: float) -> float:
    return math.exp(log) if log < 700 else math.inf
