"""What the default agent's prior gets wrong, learned by region as in RRL (sections 4 and 5.1).

| symbol | here | meaning |
|---|---|---|
| s | level | load level |
| C(c_t), δ | region, `radius` | the configurations within δ of the one in force, in steps of the knobs |
| n(s, c) | `Perceived.counts` | intervals in which c itself was observed; older ones may count less |
| ρ_t(s, c) | `Perceived.log_ratio` | eq. (2): perceived ln(latency / predicted) of c, 0 at first |
| r_t | `_log_ratio` | ln(observed / predicted) of interval t, at the load measured in it |
| r̂_t(s, c) | `_estimated` | eq. (1): r_t at c_t, and for the rest of the region what the network adds |
| α | `_learning_rate` | 1 / (n + v / σ²): v the variance of one interval's logarithm, σ² that of ρ |

Where changes cost users something, the rest of the region follows ρ(s, c_t) as it is perceived then, not r_t:
else a single quick interval would make all that was never observed look better than what was. And of what was
not observed, near or far, ρ is expected to be for the most part that of what was: else a queue model that is
a little wrong of everything would make all outside the region look better, or worse, than what is in force.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rrl.guided.settings import GuidedSettings
from rrl.region.estimator import BackgroundTraining, InlineTraining, LatencyEstimator, Training
from rrl.space import ConfigurationSpace

KNOWN = 0.5  # of an observation: below it, what neighbours make likely counts more
LOG_RATIO_LIMIT = 1.0  # of r_t: what an overloaded interval says of the model is not worth more


class Perceived(NamedTuple):
    """What is perceived at one load level."""

    log_ratio: np.ndarray  # (size,) ρ
    counts: np.ndarray  # (size,) own observations that count


class RegionResidual:
    """ρ by load level and configuration, and the FTRL-trained network that carries it to a region."""

    def __init__(
        self,
        space: ConfigurationSpace,
        settings: GuidedSettings,
        changes_cost: bool,
        estimator: LatencyEstimator,
        background_training: bool = False,
    ) -> None:
        """`changes_cost`: True where changes may cost users something; what is seen counts more there."""
        train = estimator.train
        self._training: Training = BackgroundTraining(train) if background_training else InlineTraining(train)
        self._space, self._settings, self._estimator = space, settings, estimator
        self._levels: dict[int, Perceived] = {}
        self._changes_cost = changes_cost
        self._kept = math.exp(-1 / settings.residual_memory) if changes_cost else 1.0
        self._sd = settings.residual_sd_costly if changes_cost else settings.residual_sd

    def learn(self, number: int, rate_per_s: float, observed_ms: float, predicted_ms: np.ndarray) -> None:
        """Eq. (2) for the region around the configuration in force, by mean latencies.

        `predicted_ms` (intervals,) is what the prior expected of intervals like the one observed.
        """
        r, variance = _log_ratio(observed_ms, predicted_ms)
        self._estimator.add(rate_per_s, self._space.features[number], math.exp(r))
        if len(self._estimator) % self._settings.training_every == 0:
            self._training.request()
        self._fade()
        perceived = self._perceived(rate_per_s)
        region = self._space.region(number, self._settings.radius)
        region = region[(perceived.counts[region] < KNOWN) | (region == number)]
        if self._changes_cost and perceived.counts[number] < KNOWN:
            # What is seen builds neither upon what neighbours made likely nor upon what is as good as gone.
            perceived.log_ratio[number] = perceived.counts[number] = 0.0
        perceived.counts[number] += 1
        α = self._learning_rate(perceived.counts[region], variance)
        if self._changes_cost:  # what is perceived of it now is what the others follow
            perceived.log_ratio[number] += α[region == number].item() * (r - perceived.log_ratio[number])
            r = float(perceived.log_ratio[number])
        estimated = self._estimated(rate_per_s, region, number, r)
        perceived.log_ratio[region] += α * (estimated - perceived.log_ratio[region])

    def log_ratio(self, rate_per_s: float) -> np.ndarray:
        """(size,) ρ at the level of this load, as it is now."""
        perceived = self._perceived(rate_per_s)
        log_ratio, counts = perceived.log_ratio.copy(), perceived.counts
        if self._changes_cost and counts.any():
            others = counts < KNOWN
            common = np.average(log_ratio, weights=counts)
            log_ratio[others] += self._settings.residual_common * (common - log_ratio[others])
        return log_ratio

    def forget(self) -> None:
        """All that is perceived; the network stays."""
        self._levels.clear()

    def finish_training(self) -> None:
        """Until the network knows all that was learned so far."""
        self._training.wait()

    def close(self) -> None:
        """Ends training; raises if its last round failed."""
        self._training.close()

    def _fade(self) -> None:
        """What was observed counts a little less with every interval learned since."""
        for perceived in self._levels.values():
            perceived.counts[:] *= self._kept

    def _perceived(self, rate_per_s: float) -> Perceived:
        level = self._settings.load_levels.level(rate_per_s)
        if level not in self._levels:
            size = len(self._space)
            self._levels[level] = Perceived(np.zeros(size), np.zeros(size))
        return self._levels[level]

    def _estimated(self, rate_per_s: float, region: np.ndarray, number: int, r: float) -> np.ndarray:
        """r̂_t(s, c) for c in the region of c_t = `number`."""
        if not self._estimator.trained:
            return np.full(len(region), r)
        network = np.log(self._estimator.estimate(rate_per_s, self._space.features[region]))
        estimated: np.ndarray = r + network - network[region == number]
        return np.clip(estimated, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def _learning_rate(self, counts: np.ndarray, variance: float) -> np.ndarray:
        α: np.ndarray = 1.0 / (np.maximum(counts, 1) + variance / self._sd**2)
        return α


def _log_ratio(observed_ms: float, predicted_ms: np.ndarray) -> tuple[float, float]:
    """r_t, and the variance of one interval's logarithm."""
    r = math.log(observed_ms / predicted_ms.mean())
    return min(max(r, -LOG_RATIO_LIMIT), LOG_RATIO_LIMIT), float(np.var(np.log(predicted_ms)))
