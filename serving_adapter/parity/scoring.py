"""How good answers are: accuracies and their like, of which A_a and A_d are the means (ParM, section 5).

| score | labels | of one answer | floor, what a default answer has |
|---|---|---|---|
| `top-1` | classes (N,) | 1 if the largest output is the label's | of always the most frequent class |
| `top-5` | classes (N,) | 1 if the label's is among the five largest | of always the five most frequent |
| `iou` | boxes (N, 4) | intersection over union (section 5.2.1) | of always the mean box |
| `r2` | numbers (N, d) | 1 - squared error / variance of the labels | 0, of always the mean |

A box is (left, top, right, bottom). All four scores are at most 1, and that is a right answer's. An answer
with a NaN is of no class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

TOP = 5


@dataclass(frozen=True)
class Score:
    """A way to judge answers; the arrays are those of the table above, outputs (N, numbers)."""

    name: str
    takes_classes: bool
    """Whether its labels are classes (N,), and not numbers (N, d)."""
    each: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """(N,) of outputs and their labels."""
    floor: Callable[[np.ndarray], float]
    """What the best default answer has, of the labels."""

    def mean(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        return float(self.each(outputs, labels).mean())

    def labels_of(self, outputs: np.ndarray) -> np.ndarray:
        """What the outputs say, to stand for labels where nobody gave any."""
        return outputs.argmax(axis=-1) if self.takes_classes else outputs


def _top(count: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def each(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        are_numbers = ~np.isnan(outputs).any(axis=-1)
        if count == 1:
            return are_numbers & (outputs.argmax(axis=-1) == labels)
        own = np.take_along_axis(outputs, labels[:, np.newaxis], axis=-1)
        return are_numbers & ((outputs > own).sum(axis=-1) < count)

    return each


def _most_frequent(count: int) -> Callable[[np.ndarray], float]:
    return lambda labels: float(np.sort(np.bincount(labels))[-count:].sum() / len(labels))


def intersection_over_union(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(N,) of two arrays of boxes (N, 4). A box whose right is left of its left is empty."""
    low, high = np.maximum(boxes[:, :2], others[:, :2]), np.minimum(boxes[:, 2:], others[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=1)
    areas = [np.clip(each[:, 2:] - each[:, :2], 0, None).prod(axis=1) for each in (boxes, others)]
    union = areas[0] + areas[1] - shared
    return np.divide(shared, union, out=np.zeros(len(union)), where=union > 0)


def _r2(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    variance = labels.var(axis=0).sum()
    return 1 - ((outputs - labels) ** 2).sum(axis=1) / max(variance, np.finfo(np.float32).tiny)


def _of_the_mean_box(labels: np.ndarray) -> float:
    mean = np.broadcast_to(labels.mean(axis=0), labels.shape)
    return float(intersection_over_union(mean, labels).mean())


SCORES = {
    score.name: score
    for score in (
        Score("top-1", True, _top(1), _most_frequent(1)),
        Score("top-5", True, _top(TOP), _most_frequent(TOP)),
        Score("iou", False, intersection_over_union, _of_the_mean_box),
        Score("r2", False, _r2, lambda labels: 0.0),
    )
}


def score_for(labels: np.ndarray | None, name: str | None = None) -> Score:
    """The score of that name, or the usual one of such labels: `r2` of numbers, else `top-1`.

    ValueError where the named one does not fit the labels.
    """
    if name is None:
        return SCORES["top-1" if labels is None or labels.ndim == 1 else "r2"]
    score = SCORES[name]
    if labels is None:
        return score
    if score.takes_classes != (labels.ndim == 1):
        wanted = "classes (N,)" if score.takes_classes else "numbers (N, d)"
        raise ValueError(f"the score {name} is for labels that are {wanted}, these are {labels.shape}")
    if name == "iou" and labels.shape[1] != 4:
        raise ValueError(f"the score iou is for boxes (N, 4), the labels are {labels.shape}")
    return score
