"""The share of the variance of ln cost that each knob explains alone."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.belief.knob_importance import CAP, knob_importances
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 4], max_batch_size=[1, 8], max_queue_delay_us=[0])
ALL = np.arange(len(SPACE))
INSTANCES, BATCH = SPACE.values[:, 0], SPACE.values[:, 1]


def test_knobs_that_act_alone_explain_everything_between_them() -> None:
    found = knob_importances(SPACE, ALL, 10.0 * np.sqrt(INSTANCES) * np.where(BATCH == 8, 1.5, 1.0))
    assert [knob.name for knob in found.knobs] == ["instances", "max_batch_size"]
    of_instances = np.var(np.log([1.0, 2.0, 4.0]) / 2)
    of_batch = np.var([0.0, np.log(1.5)])
    shares = [knob.share for knob in found.knobs]
    assert shares == pytest.approx(np.array([of_instances, of_batch]) / (of_instances + of_batch))
    assert found.together == pytest.approx(0.0, abs=1e-9)
    assert found.knobs[0].times_the_lowest == pytest.approx({1: 1.0, 2: 2**0.5, 4: 2.0})


def test_what_knobs_do_only_in_combination_is_told_apart() -> None:
    space = ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 8])
    found = knob_importances(space, np.arange(4), np.array([10.0, 30.0, 30.0, 10.0]))
    assert [knob.share for knob in found.knobs] == pytest.approx([0.0, 0.0])
    assert found.together == pytest.approx(1.0)


def test_an_overload_counts_no_more_than_the_cap() -> None:
    costs = np.where(INSTANCES == 1, 1e9, 10.0 + BATCH)
    capped = np.where(INSTANCES == 1, CAP * costs.min(), 10.0 + BATCH)
    assert knob_importances(SPACE, ALL, costs) == knob_importances(SPACE, ALL, capped)


def test_a_knob_seen_at_one_value_and_a_grid_of_equals_have_no_importance() -> None:
    one = ALL[BATCH == 1]
    assert [knob.name for knob in knob_importances(SPACE, one, 5.0 + INSTANCES[one]).knobs] == ["instances"]
    flat = knob_importances(SPACE, ALL, np.full(len(ALL), 7.0))
    assert {knob.share for knob in flat.knobs} == {0.0}
    assert flat.together == 0.0
