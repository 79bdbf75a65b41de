"""What answers are worth: of classes, of boxes, of numbers; and of one that is always the same."""

from __future__ import annotations

import numpy as np
import pytest

from serving_adapter.parity.scoring import SCORES, intersection_over_union, score_for

CLASSES = np.array([0, 1, 2, 2])
NUMBERS = np.array([[0.0, 1.0], [2.0, 5.0], [4.0, 0.0]])


def box(*sides: float) -> np.ndarray:
    return np.array([sides])


def test_top_5_counts_a_label_among_the_five_largest_outputs() -> None:
    outputs = np.arange(8.0)[None].repeat(8, axis=0)
    labels = np.arange(8)
    assert SCORES["top-5"].each(outputs, labels).tolist() == [False] * 3 + [True] * 5
    assert SCORES["top-1"].each(outputs, labels).tolist() == [False] * 7 + [True]


@pytest.mark.parametrize("name", ["top-1", "top-5"])
def test_an_answer_that_is_no_number_is_of_no_class(name: str) -> None:
    outputs = np.array([[np.nan] * 8, [1.0] + [0.0] * 7])
    assert SCORES[name].each(outputs, np.array([0, 0])).tolist() == [False, True]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (box(0, 0, 2, 2), 1.0),
        (box(1, 0, 3, 2), 2 / 6),
        (box(1, 1, 3, 3), 1 / 7),
        (box(2, 0, 4, 2), 0.0),
        (box(5, 5, 6, 6), 0.0),
        (box(0, 0, 4, 4), 4 / 16),
        (box(2, 2, 0, 0), 0.0),  # no box at all
    ],
)
def test_intersection_over_union(other: np.ndarray, expected: float) -> None:
    assert intersection_over_union(box(0, 0, 2, 2), other) == pytest.approx([expected])
    assert intersection_over_union(other, box(0, 0, 2, 2)) == pytest.approx([expected])


def test_two_empty_boxes_share_nothing() -> None:
    assert intersection_over_union(box(1, 1, 1, 1), box(1, 1, 1, 1)) == pytest.approx([0.0])


def test_r2_is_1_for_the_labels_and_0_for_their_mean() -> None:
    score = SCORES["r2"]
    assert score.mean(NUMBERS, NUMBERS) == 1.0
    assert score.mean(np.broadcast_to(NUMBERS.mean(axis=0), NUMBERS.shape), NUMBERS) == pytest.approx(0.0)
    assert score.mean(-NUMBERS, NUMBERS) < 0.0


@pytest.mark.parametrize(
    ("name", "labels", "floor"),
    [
        ("top-1", CLASSES, 0.5),
        ("top-5", CLASSES, 1.0),
        ("top-5", np.array([0, 0, 1, 2, 3, 4, 5, 6]), 6 / 8),
        ("r2", NUMBERS, 0.0),
        ("iou", np.repeat(box(0, 0, 2, 2), 3, axis=0), 1.0),
    ],
)
def test_the_floor_is_what_the_best_default_answer_has(name: str, labels: np.ndarray, floor: float) -> None:
    assert SCORES[name].floor(labels) == pytest.approx(floor)


def test_what_a_model_answers_is_right_for_itself() -> None:
    outputs = np.random.default_rng(0).uniform(0, 1, (20, 4))
    outputs[:, 2:] += 1.0
    for score in SCORES.values():
        assert score.mean(outputs, score.labels_of(outputs)) == 1.0


def test_the_usual_score_follows_from_the_labels() -> None:
    assert score_for(None).name == score_for(CLASSES).name == "top-1"
    assert score_for(NUMBERS).name == "r2"
    assert score_for(CLASSES, "top-5").name == score_for(None, "top-5").name == "top-5"


@pytest.mark.parametrize(
    ("labels", "name", "sentence"),
    [
        (NUMBERS, "top-1", r"the score top-1 is for labels that are classes \(N,\), these are \(3, 2\)"),
        (CLASSES, "r2", r"the score r2 is for labels that are numbers \(N, d\), these are \(4,\)"),
        (NUMBERS, "iou", r"the score iou is for boxes \(N, 4\), the labels are \(3, 2\)"),
    ],
)
def test_a_score_that_does_not_fit_the_labels_is_refused(
    labels: np.ndarray, name: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        score_for(labels, name)
