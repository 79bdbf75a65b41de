"""The grid of a live target spans its knobs, within the limits that it tells."""

from __future__ import annotations

import pytest

from envs.target_space import check_space, cores_of, default_space
from rrl.space import ConfigurationSpace
from serving_adapter import resources
from serving_adapter.knob_limits import KNOBS, KNOBS_ON_CLUSTER, Limits
from serving_adapter.target import Room
from tests.support.runs.fake_target import FakeClock, FakeTarget


@pytest.mark.parametrize("cores", [6, None])
def test_another_machines_cores_are_known_only_where_the_target_tells_them(cores: int | None) -> None:
    target = FakeTarget(FakeClock())
    target.is_local, target.cores = False, cores
    assert cores_of(target) == cores


def test_the_operators_word_on_cores_counts_before_the_tuners_own_and_after_the_servers() -> None:
    target = FakeTarget(FakeClock())
    target.is_local, target.cores = True, None
    assert cores_of(target) == resources.cores()
    assert cores_of(target, given=48) == 48
    target.cores = 6
    assert cores_of(target, given=48) == 6
    assert cores_of(target, given=2) == 6


def only(*names: str) -> dict[str, Limits]:
    return {name: KNOBS[name] for name in names}


def test_the_default_space_of_a_machine_that_does_not_tell_its_cores_is_a_usual_one():
    knobs = only("instances", "intra_op_threads")
    assert default_space(knobs, cores=None).to_json() == default_space(knobs, cores=4).to_json()


def test_the_default_space_spans_the_targets_knobs():
    space = default_space(only("instances", "intra_op_threads", "max_batch_size"), cores=6)
    assert space.to_json() == {
        "instances": [1, 2, 3, 4],
        "intra_op_threads": [1, 2, 4],
        "max_batch_size": [1, 2, 4, 8, 16],
    }
    assert default_space(only("instances", "max_queue_delay_us"), cores=1).to_json() == {
        "instances": [1, 2],
        "max_queue_delay_us": [0, 1000, 2000, 5000],
    }


def test_no_grid_holds_larger_batches_than_the_model_takes():
    knobs = only("instances") | {"max_batch_size": Limits(1, 6)}
    assert default_space(knobs, cores=1).to_json()["max_batch_size"] == [1, 2, 4]
    check_space(ConfigurationSpace.of(max_batch_size=[1, 6]), knobs)
    with pytest.raises(ValueError, match="max_batch_size must be from 1 to 6, got 8"):
        check_space(ConfigurationSpace.of(max_batch_size=[1, 8]), knobs)


@pytest.mark.parametrize(
    ("knob", "limits", "values"),
    [
        ("max_batch_size", Limits(32, 1024), [32]),  # a step of an ensemble takes no smaller batches
        ("max_batch_size", Limits(8, 1024), [8, 16]),
        ("max_ongoing_requests", Limits(1, 4), [4]),
        ("max_queue_delay_us", Limits(10, 500), [10, 500]),
    ],
)
def test_a_knob_that_may_have_no_usual_value_has_the_nearest(knob: str, limits: Limits, values: list[int]):
    knobs = only("instances") | {knob: limits}
    space = default_space(knobs, cores=1)
    assert space.to_json()[knob] == values
    check_space(space, knobs)


def test_what_was_found_is_on_the_grid_whatever_our_limits():
    found = {"max_batch_size": 4096}
    check_space(ConfigurationSpace.of(max_batch_size=[8, 4096]), KNOBS, found)
    check_space(ConfigurationSpace.of(max_batch_size=[8, 2048, 4096]), KNOBS, found, {"max_batch_size": 2048})
    with pytest.raises(ValueError, match="max_batch_size must be from 1 to 1024, got 2048"):
        check_space(ConfigurationSpace.of(max_batch_size=[8, 2048, 4096]), KNOBS, found)


def test_a_knob_that_only_one_kind_of_server_has_is_in_the_grid_of_its_targets():
    knobs = only("instances") | {"max_ongoing_requests": Limits(1, 32)}
    assert default_space(knobs, cores=1).to_json() == {"instances": [1, 2], "max_ongoing_requests": [5, 16]}


def test_on_a_cluster_threads_fit_on_a_node_and_instances_on_all():
    knobs = {name: KNOBS_ON_CLUSTER[name] for name in ("instances", "intra_op_threads", "inter_op_threads")}
    assert default_space(knobs, 24, Room(instances=24, threads=8)).to_json() == {
        "instances": [1, 2, 4, 8, 16, 24],
        "intra_op_threads": [1, 2, 4, 8],
        "inter_op_threads": [1, 2, 4, 8],
    }
    assert default_space(knobs, 160, Room(instances=160, threads=1)).to_json()["instances"][-2:] == [128, 160]
    assert default_space(knobs, 2, Room(instances=1, threads=1)).to_json()["instances"] == [1]
