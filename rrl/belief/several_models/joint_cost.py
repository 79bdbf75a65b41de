"""What the costs of several models come to together.

| symbol | here | meaning |
|---|---|---|
| J_m | `costs` | (..., M) what a configuration costs the users of model m |
| w_m | `weights` | (M,) the share of all requests that are those of model m |

| objective | joint cost |
|---|---|
| mean latency | Σ w_m J_m: of the mean request, whichever model it is for |
| strict SLO | max J_m: each model keeps the limit |
| these two, of a whole | what follows for the model that the others are parts of (`whole`) |
| fewest threads | Σ J_m, as far as that is below what a broken limit costs, and at least max J_m |
"""

from __future__ import annotations

import numpy as np

from rrl.belief.several_models.whole import Whole
from rrl.objective import LeastResources, MeanLatency, Objective

MAX_LOG_COST = 50.0  # a cost beyond any is not told apart from another one
MIN_COST = 1e-9  # of models without requests


class JointCost:
    """Combines the costs of the models, and how well these are known."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.whole = Whole()

    def of_unknown(self, threads: np.ndarray) -> np.ndarray:
        """(...,) of a model of which nothing was answered: nothing, but its threads where these count."""
        in_threads = isinstance(self.objective, LeastResources)
        return threads.astype(float) if in_threads else np.zeros(threads.shape)

    def combined(self, costs: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """(...,) the joint cost."""
        if isinstance(self.objective, MeanLatency):
            return self.whole.mean(costs @ weights)
        if isinstance(self.objective, LeastResources):
            together = np.minimum(costs.sum(axis=-1), self.objective.violation_threads)
            return np.asarray(np.maximum(costs.max(axis=-1), together))
        return self.tail(costs, weights)

    def tail(self, p95_ms: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """(...,) the p95 of (..., M) those of the models."""
        of_whole = self.whole.exists
        return self.whole.tail(p95_ms @ weights) if of_whole else np.asarray(p95_ms.max(axis=-1))

    def of_logs(
        self, means: np.ndarray, sds: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(K,), (K,) mean and sd of ln of the joint cost, by those of ln J_m, (K, M) each."""
        costs = np.exp(np.minimum(means, MAX_LOG_COST))
        joint = self.combined(costs, weights)
        told = costs * (costs == costs.max(axis=1, keepdims=True))
        if isinstance(self.objective, MeanLatency) or self.whole.exists:
            told = costs * weights
        elif isinstance(self.objective, LeastResources):
            told = np.where((joint > costs.max(axis=1))[:, None], costs, told)
        sd = np.sqrt(((told / told.sum(axis=1, keepdims=True) * sds) ** 2).sum(axis=1))
        if isinstance(self.objective, MeanLatency):
            sd = sd * self.whole.visits * (costs @ weights) / np.maximum(joint, MIN_COST)
        return np.log(np.maximum(joint, MIN_COST)), sd
