"""Several models in one grid, and their measurements in one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rrl.joint import JointSpace, by_model, is_joint, of_models, together
from rrl.knobs import change_in_words, in_words, threads_of
from rrl.measurement import LatencySummary, Measurement
from rrl.space import MAX_ROWS, ConfigurationSpace

A = ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 4, 8])
B = ConfigurationSpace.of(instances=[1, 2, 4], intra_op_threads=[1, 2])
JOINT = JointSpace({"resnet.v1": A, "bert": B})


def test_a_joint_number_is_one_of_each_model() -> None:
    space = JOINT.space
    assert len(space) == len(A) * len(B)
    numbers = np.arange(len(space))
    parts = JOINT.parts(numbers)
    assert JOINT.joined(parts).tolist() == numbers.tolist()
    for number, (a, b) in zip(numbers.tolist(), parts.tolist(), strict=True):
        assert by_model(space.configuration(number)) == {
            "resnet.v1": A.configuration(a),
            "bert": B.configuration(b),
        }


def test_the_grids_of_the_models_are_told_by_the_names_of_the_knobs() -> None:
    again = JointSpace.of(JOINT.space)
    assert again.members == JOINT.members
    assert is_joint(JOINT.space)
    assert not is_joint(A)
    with pytest.raises(ValueError, match=r"named MODEL\.knob, got instances, max_batch_size"):
        JointSpace.of(A)


def test_threads_of_several_models_add_up() -> None:
    space = JOINT.space
    for number in range(len(space)):
        configuration = space.configuration(number)
        parts = by_model(configuration).values()
        assert space.threads[number] == threads_of(configuration) == sum(map(threads_of, parts))
    assert threads_of({"instances": 2, "intra_op_threads": 3, "max_batch_size": 8}) == 6


def test_a_grid_too_large_to_write_out_is_counted_through() -> None:
    member = ConfigurationSpace.of(
        instances=range(1, 9), intra_op_threads=[1, 2, 4, 8], max_batch_size=[1, 2, 4, 8, 16]
    )
    space = JointSpace({"a": member, "b": member, "c": member}).space
    assert len(space) > MAX_ROWS
    for number in (0, 1, 12_345, len(space) - 1):
        configuration = space.configuration(number)
        assert space.number(configuration) == number
        assert space.number_of_action(space.action(number)) == number
        assert space.features_of(number).max() <= 1.0
    assert "indices" not in vars(space)


def test_words_name_the_model() -> None:
    configuration = {"bert.instances": 2, "bert.max_queue_delay_us": 2000}
    assert in_words(configuration) == "bert 2 inst. · bert delay 2 ms"
    assert change_in_words({"bert.instances": 1}, {"bert.instances": 3}) == "bert instances 1 -> 3"
    assert of_models({"bert": {"instances": 1}}) == {"bert.instances": 1}
    assert of_models(by_model(configuration)) == configuration


def measured(completions: int, mean_ms: float, p95_ms: float, backlog: int = 0) -> Measurement:
    latency = LatencySummary(mean_ms, mean_ms, p95_ms, p95_ms)
    return Measurement(4.0, completions, completions, 0, latency, latency, latency, 2.0, backlog)


def test_each_request_counts_alike_and_the_slowest_model_has_the_percentiles() -> None:
    joint = together({"a": measured(300, 10.0, 20.0, backlog=1), "b": measured(100, 50.0, 90.0, backlog=2)})
    assert joint.completions == joint.arrivals == 400
    assert joint.latency.mean_ms == pytest.approx((300 * 10 + 100 * 50) / 400)
    assert joint.latency.p95_ms == 90.0
    assert joint.backlog == 3
    assert joint.mean_batch_size == pytest.approx(2.0)


def test_a_model_without_requests_changes_nothing_and_one_without_percentiles_leaves_none() -> None:
    silent = Measurement(4.0, 0, 0, 0)
    assert together({"a": measured(300, 10.0, 20.0), "b": silent}).latency.mean_ms == 10.0
    untold = Measurement(4.0, 100, 100, 0, LatencySummary(mean_ms=30.0))
    joint = together({"a": measured(100, 10.0, 20.0), "b": untold})
    assert joint.latency.mean_ms == 20.0
    assert math.isnan(joint.latency.p95_ms)


def test_a_gap_of_one_model_is_a_gap_of_all() -> None:
    gone = Measurement(4.0, 0, 0, 0, gap="the server restarted", gap_by_others=False)
    joint = together({"a": measured(10, 1.0, 2.0), "b": gone})
    assert joint.gap == "b: the server restarted"
    assert not joint.gap_by_others


def test_the_journal_keeps_the_measurement_of_each_model() -> None:
    joint = together({"a": measured(300, 10.0, 20.0), "b": measured(100, 50.0, 90.0)})
    again = Measurement.from_json(json.loads(json.dumps(joint.to_json())))
    assert again.models["b"].latency == joint.models["b"].latency
    assert again.to_json() == joint.to_json()
    assert "models" not in joint.models["a"].to_json()


def test_a_model_with_braces_in_its_name_has_knobs_in_words() -> None:
    assert in_words({"a{b}.instances": 2}) == "a{b} 2 inst."
    assert in_words({"a{}.unknown": 2}) == "a{}.unknown 2"
