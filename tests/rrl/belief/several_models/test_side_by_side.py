"""What models are expected to slow each other by: the more, the more work the others have."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.belief.belief import Work
from rrl.belief.several_models import side_by_side
from rrl.belief.several_models.neighbours import Neighbours
from rrl.belief.several_models.side_by_side import expected_log_slower
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 4])
CORES = 4.0


def work(in_service: float) -> Work:
    """Of a model with three configurations, each instance of one thread."""
    ones = np.ones(3)
    return Work(in_service * ones, np.array([1.0, 2.0, 4.0]), ones, 0.5 * ones)


def slowed(*in_service: float) -> np.ndarray:
    """(3, M) g of models with so many batches in service."""
    models = [work(each) for each in in_service]
    return expected_log_slower(models, Neighbours([SPACE] * len(models)), CORES)


def test_beside_models_without_work_nothing_is_slowed() -> None:
    g = slowed(2.0, 0.0)
    np.testing.assert_allclose(g[:, 0], 0.0, atol=1e-5)
    assert (g[:, 1] > 0).all()


def test_each_is_slowed_the_more_the_busier_its_neighbour_is() -> None:
    less, more = slowed(1.0, 0.5), slowed(1.0, 4.0)
    assert (more[:, 0] > less[:, 0]).all()


def test_a_model_that_is_slowed_is_busier_and_so_slows_its_neighbour_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_turns = slowed(2.0, 2.0)
    monkeypatch.setattr(side_by_side, "ROUNDS", 1)
    at_once = slowed(2.0, 2.0)
    assert (in_turns >= at_once).all()
    assert (in_turns[2] > at_once[2]).all()  # where instances are left for more batches


def test_models_with_the_same_work_slow_each_other_alike() -> None:
    g = slowed(1.5, 1.5)
    np.testing.assert_allclose(g[:, 0], g[:, 1])
