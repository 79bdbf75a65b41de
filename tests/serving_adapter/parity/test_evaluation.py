"""Accuracies of reconstruction: exact for linear models, Eq. (1), groups, codes that do not fit together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from serving_adapter.parity.evaluation import (
    Coding,
    Evaluation,
    answers,
    check_rows,
    degraded_accuracies,
    evaluate,
    groups,
)
from serving_adapter.parity.scoring import SCORES

SAMPLES, CLASSES = 61, 4


@pytest.fixture
def linear():
    """A linear model without bias, whose best parity model under the sum encoder is itself."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(9, CLASSES, bias=False)).eval()


@pytest.fixture
def images():
    return np.random.default_rng(0).standard_normal((SAMPLES, 1, 3, 3), dtype=np.float32)


@pytest.mark.parametrize(("k", "r"), [(2, 1), (3, 1), (4, 1), (2, 2), (4, 3)])
def test_a_linear_model_is_reconstructed_exactly_whatever_is_lost(linear, images, k, r):
    labels = np.random.default_rng(1).integers(CLASSES, size=SAMPLES)
    parities = [(Coding(k, row, r), linear) for row in range(r)]
    own = answers(linear, images).argmax(axis=-1)
    agreement = evaluate(linear, parities, images, None)
    assert agreement.available == 1.0
    assert agreement.degraded == dict.fromkeys(range(1, r + 1), 1.0)
    of_labels = degraded_accuracies(parities, images, answers(linear, images), labels, rounds=300)
    assert of_labels[1] == pytest.approx(np.mean(own == labels), abs=0.02)


def test_a_parity_model_that_knows_nothing_is_worse_than_the_deployed_one(linear, images):
    class Nothing(nn.Module):
        def forward(self, x):
            return torch.zeros(len(x), CLASSES)

    found = evaluate(linear, [(Coding(2), Nothing())], images, None)
    assert found.degraded[1] < 0.5 < found.available


def test_the_default_answer_is_the_most_frequent_class(linear, images):
    labels = np.array([3] * 40 + [1] * 21)
    found = evaluate(linear, [(Coding(2), linear)], images, labels)
    assert found.default == pytest.approx(40 / 61)


def test_overall_accuracy_is_equation_1():
    found = Evaluation(available=0.9, degraded={1: 0.8, 2: 0.4}, default=0.1)
    assert found.overall(0.0) == pytest.approx(0.9)
    assert found.overall(0.1) == pytest.approx(0.9 * 0.9 + 0.1 * 0.8)
    assert found.overall(1.0, lost=2) == pytest.approx(0.4)


def test_every_sample_is_in_one_group_of_a_round_or_left_over():
    places = groups(11, 3, seed=0, rounds=2)
    assert len(places) == 3
    for round_ in range(2):
        drawn = np.concatenate([place[3 * round_ : 3 * round_ + 3] for place in places])
        assert len(set(drawn.tolist())) == 9
    assert all(np.array_equal(a, b) for a, b in zip(places, groups(11, 3, seed=0, rounds=2), strict=True))
    assert not np.array_equal(places[0], groups(11, 3, seed=1, rounds=2)[0])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"k": 1}, "k must be from 2 to 64, got 1"),
        ({"k": 2, "row": 1}, "row must be from 0 to r - 1, got row=1 and r=1"),
        ({"k": 2, "r": 0}, "row must be from 0 to r - 1"),
        ({"k": 2, "r": 3, "row": 2}, "r=3 is more than k=2, the size of a coding group"),
        ({"k": 20, "r": 4, "row": 3}, "k=20 with r=4 weighs queries up to"),
        ({"k": 2, "encoder": "xor"}, "unknown encoder 'xor'; known: sum, concat"),
    ],
)
def test_codes_that_do_not_exist_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Coding(**options)


@pytest.mark.parametrize(
    ("codings", "sentence"),
    [
        ([Coding(2, 0, 2)], "a code of r=2 needs 2 parity models, got 1"),
        ([Coding(2, 1, 2), Coding(2, 0, 2)], "parity model 1 must be of row 0, it is of row 1"),
        ([Coding(2, 0, 2), Coding(3, 1, 2)], "must be of one code, got k=2, r=2, sum beside k=3"),
        ([Coding(2), Coding(2)], "parity model 2 must be of row 1"),
    ],
)
def test_parity_models_that_make_no_code_are_refused(codings, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_rows(codings)


def test_too_few_images_for_a_group_are_refused(linear, images):
    with pytest.raises(ValueError, match="a group of k=4 needs as many test images, there are 3"):
        evaluate(linear, [(Coding(4), linear)], images[:3], None)


def test_a_regressor_is_judged_by_its_own_score(linear, images):
    """A linear one is reconstructed exactly, so its reconstructions are worth as much as its answers."""
    own = answers(linear, images)
    off = own + np.random.default_rng(2).standard_normal(own.shape).astype(np.float32)
    found = evaluate(linear, [(Coding(2), linear)], images, off, score=SCORES["r2"])
    assert found.available == pytest.approx(SCORES["r2"].mean(own, off))
    assert found.available < 0.99
    assert found.degraded[1] == pytest.approx(found.available, abs=0.02)
    assert found.default == 0.0


def test_boxes_that_are_reconstructed_badly_have_a_lower_iou(images):
    class Boxes(nn.Module):
        """Every item has its box at the place that its first pixel says."""

        def forward(self, x):
            corner = x.reshape(len(x), -1)[:, :1]
            return torch.cat([corner, corner, corner + 1, corner + 1], dim=1)

    class HalfAway(Boxes):
        """A parity model that answers the sum of two boxes, and half a side more in each direction."""

        def forward(self, x):
            return super().forward(x) + torch.tensor([0.5, 0.5, 1.5, 1.5])

    boxes = answers(Boxes(), images)
    found = evaluate(Boxes(), [(Coding(2), HalfAway())], images, boxes, score=SCORES["iou"])
    assert found.available == pytest.approx(1.0)
    assert found.degraded[1] == pytest.approx(1 / 7, abs=1e-4)
