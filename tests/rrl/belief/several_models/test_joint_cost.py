"""What the costs of several models come to together."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.belief.several_models.joint_cost import JointCost
from rrl.objective import LeastResources

THREADS = JointCost(LeastResources(50.0))
WEIGHTS = np.array([0.5, 0.5])


def test_threads_add_up_where_every_model_keeps_its_limit() -> None:
    assert THREADS.combined(np.array([4.0, 6.0]), WEIGHTS) == 10.0


def test_what_is_worse_for_each_model_is_no_better_for_all() -> None:
    """A limit breaks with a probability, so a cost passes through that of a broken one without a step."""
    costs = np.linspace(2.0, 1500.0, 400)[:, None] * np.array([1.0, 0.9])
    assert np.all(np.diff(THREADS.combined(costs, WEIGHTS)) >= 0)


def test_a_sum_of_threads_is_as_unsure_as_its_parts() -> None:
    means, sds = np.log([[16.0, 8.0]]), np.array([[0.0, 1.0]])
    _, sd = THREADS.of_logs(means, sds, WEIGHTS)
    assert sd[0] == pytest.approx(1 / 3)
