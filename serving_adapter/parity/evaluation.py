"""Accuracy of deployed models and of what parity models reconstruct (ParM, section 5.1).

Accuracy is the mean of a score of `scoring`: of regressors the IoU, say.

| symbol | meaning |
|---|---|
| A_a | accuracy of the deployed model, whose answers are available |
| A_d | accuracy of reconstructed answers (degraded mode) |
| f | share of the answers that are unavailable |
| A_o(f) | overall accuracy, (1 - f) A_a + f A_d, Eq. (1) |

Test samples are put into groups of k at random, and every scenario of one loss, two losses, ... up to r of a
group is simulated. Where nobody labelled the images, what the deployed model answers stands for the labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import nn

from serving_adapter.parity.coding import ENCODERS, check_code, coefficients, decode
from serving_adapter.parity.scoring import SCORES, Score

ROWS_AT_ONCE = 500
MIN_RECONSTRUCTIONS = 10_000  # a small test set is grouped anew until there are as many
TOP_1 = SCORES["top-1"]


@dataclass(frozen=True)
class Coding:
    """What a parity is: `row` of the `r` parities of groups of `k`, made by an encoder."""

    k: int
    row: int = 0
    r: int = 1
    encoder: str = "sum"

    def __post_init__(self) -> None:
        if not 2 <= self.k <= 64:
            raise ValueError(f"k must be from 2 to 64, got {self.k}")
        if self.r < 1 or not 0 <= self.row < self.r:
            raise ValueError(f"row must be from 0 to r - 1, got row={self.row} and r={self.r}")
        check_code(self.k, self.r)
        if self.encoder not in ENCODERS:
            raise ValueError(f"unknown encoder {self.encoder!r}; known: {', '.join(ENCODERS)}")

    @property
    def weights(self) -> np.ndarray:
        """(k,), with which the outputs stand in the parity's output."""
        return coefficients(self.k, self.r)[self.row]

    def encode(self, queries: Sequence[np.ndarray]) -> np.ndarray:
        """The parity queries of k arrays of queries, each (rows, *item)."""
        out = np.empty_like(queries[0])
        ENCODERS[self.encoder].encode(queries, self.weights, out)
        return out


@dataclass(frozen=True)
class Evaluation:
    available: float
    """A_a."""
    degraded: dict[int, float]
    """A_d by the number of a group's answers that are lost at once."""
    default: float
    """Accuracy of the best answer that is always the same: the floor."""

    def overall(self, f: float, lost: int = 1) -> float:
        """A_o, Eq. (1)."""
        return (1 - f) * self.available + f * self.degraded[lost]


def answers(module: nn.Module, x: np.ndarray, device: str = "cpu") -> np.ndarray:
    """What a module in evaluation mode answers to (N, *item), float32."""
    with torch.inference_mode():
        parts = torch.from_numpy(np.ascontiguousarray(x)).split(ROWS_AT_ONCE)
        return torch.cat([module(part.to(device)).float().cpu() for part in parts]).numpy()


def groups(samples: int, k: int, seed: int, rounds: int) -> list[np.ndarray]:
    """(rounds x (samples // k)) x k: which sample is at which place; k arrays, one for each place."""
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(samples)[: samples // k * k].reshape(-1, k) for _ in range(rounds)]
    return list(np.concatenate(drawn).T)


def rounds_for(samples: int, reconstructions: int = MIN_RECONSTRUCTIONS) -> int:
    return max(1, -(-reconstructions // samples))


def degraded_accuracies(
    parities: Sequence[tuple[Coding, nn.Module]],
    x: np.ndarray,
    outputs: np.ndarray,
    labels: np.ndarray,
    seed: int = 0,
    rounds: int = 1,
    device: str = "cpu",
    score: Score = TOP_1,
) -> dict[int, float]:
    """A_d for one loss, two losses, ... of a group, as many as there are parity models."""
    first = parities[0][0]
    places = groups(len(x), first.k, seed, rounds)
    parity_outputs: list[np.ndarray | None] = [None] * first.r
    for coding, module in parities:
        queries = coding.encode([x[place] for place in places])
        parity_outputs[coding.row] = answers(module, queries, device)
    matrix = coefficients(first.k, first.r)
    found = {}
    for lost in range(1, len(parities) + 1):
        found_of_each = []
        for missing in combinations(range(first.k), lost):
            there = [None if i in missing else outputs[place] for i, place in enumerate(places)]
            reconstructed = decode(matrix, there, parity_outputs)
            found_of_each += [score.mean(reconstructed[i], labels[places[i]]) for i in missing]
        found[lost] = float(np.mean(found_of_each))
    return found


def evaluate(
    deployed: nn.Module,
    parities: Sequence[tuple[Coding, nn.Module]],
    x: np.ndarray,
    y: np.ndarray | None,
    seed: int = 0,
    device: str = "cpu",
    score: Score = TOP_1,
) -> Evaluation:
    """Of a deployed model and the parity models of all rows 0 .. r - 1; ValueError if these do not fit."""
    check_rows([coding for coding, _ in parities])
    if len(x) < parities[0][0].k:
        raise ValueError(f"a group of k={parities[0][0].k} needs as many test images, there are {len(x)}")
    outputs = answers(deployed, x, device)
    labels = score.labels_of(outputs) if y is None else y
    degraded = degraded_accuracies(parities, x, outputs, labels, seed, rounds_for(len(x)), device, score)
    return Evaluation(score.mean(outputs, labels), degraded, score.floor(labels))


def check_rows(codings: Sequence[Coding]) -> None:
    """ValueError unless these are rows 0 .. r - 1 of one code."""
    first = codings[0]
    for row, coding in enumerate(codings):
        if (coding.k, coding.r, coding.encoder) != (first.k, first.r, first.encoder):
            raise ValueError(
                f"the parity models must be of one code, got k={first.k}, r={first.r}, {first.encoder} "
                f"beside k={coding.k}, r={coding.r}, {coding.encoder}"
            )
        if coding.row != row:
            raise ValueError(f"parity model {row + 1} must be of row {row}, it is of row {coding.row}")
    if len(codings) != first.r:
        raise ValueError(f"a code of r={first.r} needs {first.r} parity models, got {len(codings)}")
