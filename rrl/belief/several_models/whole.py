"""A model that others are parts of, such as an ensemble: what follows for it from what its parts take.

| symbol | here | meaning |
|---|---|---|
| w_m, J_m | | model m's share of the parts' requests, and its latency (`joint_cost`) |
| v | `visits` | requests of the parts for each of the whole; 1 where there is no whole |
| δ | `beside_parts_ms` | its mean latency in the last interval less v Σ w_m times the mean of part m |
| ρ | `share_of_parts` | the same as a ratio |
| v Σ w_m J_m + δ | `mean` | mean latency of the whole |
| ρ v Σ w_m J_m | `tail` | its p95, roughly |

Of a model that waits for those that it calls, δ is below 0: what these take is in its own service time, too.
So it is of steps that run side by side. Then δ is right where it was measured. Beside that it tells what a
change of the parts adds, all else the same.
"""

from __future__ import annotations

import math

import numpy as np

from rrl.measurement import Measurement

LEAST_OF_PARTS = 0.05  # of what its parts take: a whole takes no less


class Whole:
    """Without one, all requests of the models count, each alike."""

    def __init__(self) -> None:
        self.exists = False
        self.visits, self.beside_parts_ms, self.share_of_parts = 1.0, 0.0, 1.0

    def learn(self, measurement: Measurement) -> None:
        """Takes in the joint measurement of an interval, whose `models` are the parts."""
        answered = [each for each in measurement.models.values() if each.completions]
        completions = sum(each.completions for each in answered)
        summed_ms = sum(each.completions * each.latency.mean_ms for each in answered)
        if not (measurement.completions and completions and summed_ms > 0):
            return
        self.visits = completions / measurement.completions
        self.exists = self.exists or completions != measurement.completions
        of_parts_ms, mean_ms = summed_ms / measurement.completions, measurement.latency.mean_ms
        if self.exists and math.isfinite(mean_ms):
            self.beside_parts_ms = mean_ms - of_parts_ms
            self.share_of_parts = max(LEAST_OF_PARTS, mean_ms / of_parts_ms)

    def mean(self, of_parts: np.ndarray) -> np.ndarray:
        """(...,) of the mean request of the parts, that of the whole."""
        summed = self.visits * of_parts
        return np.asarray(np.maximum(summed + self.beside_parts_ms, LEAST_OF_PARTS * summed))

    def tail(self, of_parts: np.ndarray) -> np.ndarray:
        """(...,) of the parts' p95, each by its share of the requests, that of the whole."""
        return np.asarray(self.share_of_parts * self.visits * of_parts)
