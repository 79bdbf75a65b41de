"""What models on one machine slow each other by, told apart by how well intervals are explained.

    ln S of model m in interval t = μ_(m, c) + g_h(m, t) + d_t + noise

| symbol | here | meaning |
|---|---|---|
| μ_(m, c) | `_alike` | what batches of model m take in its configuration c, beside nobody |
| g_h | `shapes` | what neighbours add under hypothesis h |
| d_t | `SPEED_SD` | the machine's speed of the interval, which all models share |
| C | `cores` | cores of the machine |
| u, o | `Beside.own_threads`, `.mean` | threads at work: of the model, and of its neighbours |
| O | | the same of a moment: binomial, as each neighbours' instance is busy with probability p or not |
| s | `Beside.slope` | d ln S / d ln n of the model itself: what its own instances are seen to slow it by |

| hypothesis | g |
|---|---|
| apart | 0: every model has its own cores |
| alike, θ | θ · s · ln((u + o) / u): a busy thread of another model slows ours as one of our own does |
| sharing, θ | θ · E ln(max(1, (u + O) / C) / max(1, u / C)): C cores are shared out among all threads |

What is expected is the mean of g over the hypotheses, weighed by their likelihood.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rrl.belief import cholesky
from rrl.space import ConfigurationSpace

ALIKE, SHARING = (0.5, 1.0), (0.5, 0.8, 1.0, 1.3)  # θ
PRIOR = np.log([0.1, *[0.15] * len(ALIKE), *[0.15] * len(SHARING)])
TEMPER = 0.5  # of the likelihood: an interval's service times depend on more than is written above
LEVEL_SD = 3.0  # of μ over models
VALUE_SD, OWN_SD = 0.35, 0.15  # of what each value of a knob, and each configuration, adds to μ
SPEED_SD = 0.05
NOISE_SD = 0.03
MEMORY = 60  # intervals
MOST_BUSY = 0.999  # p
MOST_INSTANCES = 16  # of the neighbours together; more are counted as so many


class Beside(NamedTuple):
    """Models beside their neighbours: K cases, (K,) each."""

    own_threads: np.ndarray  # u
    instances: np.ndarray  # of all neighbours
    share: np.ndarray  # p: of the time that one of those is busy
    threads: np.ndarray  # of one of those, on average
    slope: np.ndarray  # s

    @property
    def mean(self) -> np.ndarray:
        """o"""
        return self.instances * self.share * self.threads


class SeenModel(NamedTuple):
    """One model in one interval."""

    model: int
    time: int  # the interval's number since the first, as its own belief counts
    number: int  # of its own configuration
    log_time: float  # ln of the mean service time of a batch
    shapes: np.ndarray  # (H,) g under each hypothesis


def shapes(beside: Beside, cores: float) -> np.ndarray:
    """(K, H) g under each hypothesis."""
    u, o = beside.own_threads, beside.mean
    alike = np.maximum(beside.slope, 0.0) * np.log1p(o / u)
    sharing = _sharing(beside, cores)
    columns = [np.zeros(len(u)), *(θ * alike for θ in ALIKE), *(θ * sharing for θ in SHARING)]
    return np.stack(columns, axis=1)


def _sharing(beside: Beside, cores: float) -> np.ndarray:
    """(K,) E ln(max(1, (u + O) / C) / max(1, u / C))"""
    u = beside.own_threads
    count = np.minimum(np.ceil(beside.instances), MOST_INSTANCES)
    share = np.clip(beside.share * beside.instances / np.maximum(count, 1.0), 0.0, 1.0)
    odds = np.minimum(share, MOST_BUSY) / (1.0 - np.minimum(share, MOST_BUSY))
    probability = (1.0 - np.minimum(share, MOST_BUSY)) ** count  # that none is busy
    expected = np.zeros(len(u))
    for busy in range(int(count.max(initial=0)) + 1):
        expected += probability * np.log(np.maximum(1.0, (u + busy * beside.threads) / cores))
        probability = probability * np.maximum(count - busy, 0.0) / (busy + 1) * odds
    return np.asarray(expected - np.log(np.maximum(1.0, u / cores)))


class Neighbours:
    """The hypotheses and how likely each is."""

    def __init__(self, spaces: Sequence[ConfigurationSpace]) -> None:
        self._spaces = spaces
        self._seen: deque[list[SeenModel]] = deque(maxlen=MEMORY)
        self.weights = np.exp(PRIOR) / np.exp(PRIOR).sum()
        """(H,) probability of each hypothesis."""

    def learn(self, interval: list[SeenModel]) -> None:
        """Takes in what the models took in one interval."""
        self._seen.append(interval)
        rows = [(time, row) for time, each in enumerate(self._seen) for row in each]
        times = np.array([time for time, _ in rows])
        models = np.array([row.model for _, row in rows])
        numbers = np.array([row.number for _, row in rows])
        covariance = SPEED_SD**2 * (times[:, None] == times[None]) + NOISE_SD**2 * np.eye(len(rows))
        covariance += self._alike(models, numbers)
        logs = np.array([row.log_time for _, row in rows])
        for model in np.unique(models):
            logs[models == model] -= logs[models == model].mean()
        rests = logs[:, None] - np.stack([row.shapes for _, row in rows])  # (R, H)
        factor = cholesky.factored(covariance)
        evidence = -0.5 * np.einsum("rh,rh->h", rests, cholesky.solved(factor, rests))
        plausibility = PRIOR + TEMPER * (evidence - evidence.max())
        weights = np.exp(plausibility - plausibility.max())
        self.weights = weights / weights.sum()

    def log_slower(self, of_shapes: np.ndarray) -> np.ndarray:
        """(...,) the g expected, of (..., H) those of the hypotheses."""
        return np.asarray(of_shapes @ self.weights)

    def past(self, model: int) -> dict[int, float]:
        """What neighbours are now believed to have slowed one model by, by the interval's number."""
        rows = [row for each in self._seen for row in each if row.model == model]
        return {row.time: float(row.shapes @ self.weights) for row in rows}

    def _alike(self, models: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """(R, R) prior covariance of μ."""
        covariance = np.zeros((len(models), len(models)))
        for model in np.unique(models):
            rows = np.flatnonzero(models == model)
            index = self._spaces[model].indices[numbers[rows]]
            same = index[:, None] == index[None]  # (r, r, knobs)
            own = LEVEL_SD**2 + VALUE_SD**2 * same.sum(axis=2) + OWN_SD**2 * same.all(axis=2)
            covariance[np.ix_(rows, rows)] = own
        return covariance
