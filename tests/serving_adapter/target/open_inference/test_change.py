"""How a target puts a configuration in force, and what it says when it cannot."""

import grpc
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter.model_configuration import edited, knob_values, parse
from serving_adapter.target import LostInChange, ModelAbsent, NotPutBack, Overtaken, TargetError
from serving_adapter.target.open_inference import change as target_change
from serving_adapter.target.open_inference.reconfiguration import LONG_QUEUE
from tests.support.servers.fake_triton import CONFIG, PAGE


def test_takes_the_only_ready_model_and_reads_its_knobs(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    assert target.model == "m"
    assert target.server == "triton 2.51"
    assert target.configuration() == {
        "instances": 1,
        "intra_op_threads": 2,
        "max_batch_size": 4,
        "max_queue_delay_us": 100,
    }
    assert target.knobs()["instances"] == (1, 64)
    assert "inter_op_threads" not in target.knobs()


def test_without_a_dynamic_batcher_the_batch_size_is_no_knob(triton, make_target):
    triton.configs["m"].ClearField("dynamic_batching")
    target = make_target(triton.address)
    target.connect()
    assert set(target.knobs()) == {"instances", "intra_op_threads"}


def test_apply_changes_the_knobs_and_keeps_every_other_field(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.unready_answers = 3  # it waits until the model is ready again
    target.apply({"instances": 3, "max_queue_delay_us": 0})
    assert triton.unready_answers < 0
    assert target.configuration() == knob_values(CONFIG) | {"instances": 3, "max_queue_delay_us": 0}
    assert triton.configs["m"] == edited(parse(CONFIG), {"instances": 3, "max_queue_delay_us": 0})


@pytest.mark.parametrize("preferred", [[2, 3], [2], [4], []])
def test_preferred_batch_sizes_come_back_with_the_configuration_found(triton, make_target, preferred):
    triton.configs["m"].dynamic_batching.preferred_batch_size[:] = preferred
    found = edited(triton.configs["m"], {})
    target = make_target(triton.address)
    target.connect()
    target.apply({"max_batch_size": 2})
    assert set(triton.configs["m"].dynamic_batching.preferred_batch_size) <= {2}
    target.connect()
    target.apply({"max_batch_size": 4})
    assert triton.configs["m"] == found


def test_preferred_batch_sizes_come_back_after_a_kill_too(triton, make_target):
    triton.configs["m"].dynamic_batching.preferred_batch_size[:] = [2, 3]
    found = edited(triton.configs["m"], {})
    killed = make_target(triton.address)
    killed.connect()
    text = killed.config_text()
    killed.apply({"max_batch_size": 2})
    next_run = make_target(triton.address)
    next_run.connect()
    next_run.restore({"max_batch_size": 4}, text)
    assert triton.configs["m"] == found


def test_preferred_batch_sizes_that_somebody_else_sets_meanwhile_stay_and_come_back(triton, make_target):
    triton.configs["m"].dynamic_batching.preferred_batch_size[:] = [2, 4]
    target = make_target(triton.address)
    target.connect()
    target.apply({"instances": 2})
    triton.configs["m"].dynamic_batching.preferred_batch_size[:] = [1, 3]
    theirs = edited(triton.configs["m"], {})
    target.apply({"max_batch_size": 2, "instances": 1})
    assert triton.configs["m"].dynamic_batching.preferred_batch_size == [1]
    target.apply({"max_batch_size": 4, "instances": 2})
    assert triton.configs["m"] == theirs


def test_a_model_that_somebody_else_has_take_no_batches_meanwhile_keeps_to_that(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.configs["m"].max_batch_size = 0
    target.apply({"instances": 2})
    assert triton.configs["m"].max_batch_size == 0
    assert triton.configs["m"].instance_group[0].count == 2


def test_applying_what_is_in_force_sends_nothing(triton, make_target):
    target = make_target(triton.address)
    target.connect(control=False)
    target.apply({"instances": 1})
    assert triton.loads == 0


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        ({"instances": 0}, "instances must be from 1 to 64, got 0"),
        ({"instances": 2.5}, "instances must be an integer"),
        ({"inter_op_threads": 2}, "has no knob inter_op_threads; it has instances"),
    ],
)
def test_a_bad_configuration_is_refused_before_it_is_sent(triton, make_target, configuration, says):
    target = make_target(triton.address)
    target.connect(control=False)
    with pytest.raises(TargetError, match=says):
        target.apply(configuration)
    assert triton.loads == 0


def test_how_a_configuration_came_into_force(triton, make_target):
    """As Triton does: the instance count alone in place, all the rest in one new load."""
    target = make_target(triton.address)
    target.connect()
    assert target.apply({"instances": 3})[:3] == (True, 2, True)
    assert target.apply({"instances": 2, "max_batch_size": 4})[:3] == (True, 0, True)
    assert triton.loads == 2
    assert target.apply({"instances": 3, "max_batch_size": 8, "intra_op_threads": 1})[:3] == (False, 3, True)
    assert triton.loads == 3
    assert target.apply({"instances": 3})[:3] == (True, 0, False)
    assert triton.loads == 3


@pytest.mark.parametrize(
    ("at_once", "configuration", "counts"),
    [
        (1, {"instances": 4}, [2, 3, 4]),
        (2, {"instances": 4}, [3, 4]),
        (1, {"instances": 3, "max_batch_size": 8}, [1, 2, 3]),
        (2, {"instances": 4, "max_batch_size": 8}, [2, 4]),
        (4, {"instances": 3, "max_batch_size": 8}, [3]),
        (None, {"instances": 4, "max_batch_size": 8}, [4]),
        (1, {"max_batch_size": 8}, [1]),
    ],
)
def test_instances_that_are_added_start_in_turns(triton, make_target, at_once, configuration, counts):
    target = make_target(triton.address)
    target.starts_at_once = at_once
    target.connect()
    target.apply(configuration)
    assert [config.instance_group[0].count for config in triton.loaded] == counts
    assert {config.max_batch_size for config in triton.loaded} == {configuration.get("max_batch_size", 4)}
    assert target.configuration() == knob_values(CONFIG) | configuration


@pytest.mark.parametrize(
    ("configuration", "loaded"),
    [
        ({"instances": 3, "max_batch_size": 8}, [(3, 100)]),
        ({"instances": 3}, [(3, 101), (3, 100)]),  # no addition in place, which would wait for the queue
        ({"max_batch_size": 8}, [(1, 100)]),
    ],
)
def test_before_a_long_queue_instances_come_together_by_a_reload(
    triton, metrics, make_target, configuration, loaded
):
    metrics.page = PAGE.replace(
        'count{model="m",version="1"} 3', f'count{{model="m",version="1"}} {LONG_QUEUE}'
    )
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.starts_at_once = 1
    target.connect()
    assert not target.apply(configuration).in_place
    assert [
        (config.instance_group[0].count, config.dynamic_batching.max_queue_delay_microseconds)
        for config in triton.loaded
    ] == loaded
    assert target.configuration() == knob_values(CONFIG) | configuration


def test_a_new_load_never_has_fewer_instances_than_served_before(triton, make_target):
    triton.configs["m"].instance_group[0].count = 3
    target = make_target(triton.address)
    target.starts_at_once = 1
    target.connect()
    target.apply({"instances": 4, "max_batch_size": 8})
    target.apply({"instances": 2, "max_batch_size": 4})
    assert [config.instance_group[0].count for config in triton.loaded] == [3, 4, 2]


def test_an_instance_that_cannot_be_added_takes_the_whole_change_back(triton, make_target):
    target = make_target(triton.address)
    target.starts_at_once = 1
    target.connect()
    triton.most_instances = 2
    with pytest.raises(TargetError, match=r"no room.*the previous configuration is in force"):
        target.apply({"instances": 3, "max_batch_size": 8})
    assert triton.configs["m"] == edited(parse(CONFIG), {})


def test_an_in_place_change_that_loaded_the_model_anew_is_seen(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.executions = -5  # the model's files had changed: its statistics began again
    assert target.apply({"instances": 3})[:3] == (False, 3, True)


def test_instances_of_all_groups_are_cold_after_a_new_load(triton, make_target):
    triton.configs["m"].instance_group.add(name="gpus", count=2, kind="KIND_GPU", gpus=[0, 1])
    found = edited(triton.configs["m"], {})
    target = make_target(triton.address)
    target.connect()
    assert "the knob instances is the count of the first" in target.notes[0]
    assert target.apply({"instances": 2})[:3] == (True, 1, True)
    assert target.apply({"max_batch_size": 2})[:3] == (False, 2 + 2 * 2, True)
    assert triton.configs["m"].instance_group[1] == found.instance_group[1]


def test_a_load_that_fails_or_does_nothing_leaves_the_previous_configuration(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    failure = "load failed for model 'm': version 1: Internal: no memory\n\nAt:\n  model.py(3): initialize\n"
    triton.load_error = (grpc.StatusCode.INVALID_ARGUMENT, failure)
    says = r"Load: .*: no memory \(the previous configuration is in force\)$"
    with pytest.raises(TargetError, match=says):
        target.apply({"instances": 2})
    triton.load_error, triton.ignore_loads = None, True
    says = r"reports instances=1 instead of 2 \(the previous configuration is in force\)$"
    with pytest.raises(TargetError, match=says):
        target.apply({"instances": 2})


def test_a_model_that_does_not_become_ready_gets_its_previous_configuration_back(
    triton, make_target, monkeypatch
):
    monkeypatch.setattr(target_change, "TIMEOUT_S", 2.0)
    found = edited(triton.configs["m"], {})
    target = make_target(triton.address)
    target.connect()
    triton.breaks_at = 8
    says = r"not ready 2 s after .*\(the previous configuration is in force\)$"
    with pytest.raises(TargetError, match=says):
        target.apply({"max_batch_size": 8, "instances": 2})
    assert triton.configs["m"] == found
    triton.breaks_at = 4
    with pytest.raises(NotPutBack, match="could not be put back: model 'm' is not ready"):
        target.apply({"instances": 2})


@pytest.mark.parametrize("preferred", [[], [4]])
def test_a_server_that_makes_something_else_of_what_is_changed_is_not_taken_for_another_client(
    triton, make_target, preferred
):
    triton.configs["m"].dynamic_batching.preferred_batch_size[:] = preferred
    found = edited(triton.configs["m"], {})
    target = make_target(triton.address)
    target.connect()
    triton.takes = lambda config: edited(config, {"max_batch_size": min(4, config.max_batch_size)})
    says = r"reports max_batch_size=4 instead of 8 \(the previous configuration is in force\)$"
    with pytest.raises(TargetError, match=says) as refused:
        target.apply({"instances": 2, "max_batch_size": 8})
    assert not isinstance(refused.value, Overtaken)
    assert triton.configs["m"] == found
    assert triton.loads == 2


def test_sizes_of_outputs_that_the_server_learns_meanwhile_are_no_other_clients_change(triton, make_target):
    triton.configs["m"].output.add(name="y", dims=[7, 3])
    target = make_target(triton.address)
    target.connect()

    def learns(config):
        found = edited(config, {"instances": 1})
        found.output[0].dims[0] = -1
        return found

    triton.takes = learns
    says = r"reports instances=1 instead of 2 \(the previous configuration is in force\)$"
    with pytest.raises(TargetError, match=says) as refused:
        target.apply({"instances": 2})
    assert not isinstance(refused.value, Overtaken | NotPutBack)


def test_a_previous_configuration_that_comes_back_otherwise_is_told(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.takes = lambda config: edited(config, {"instances": 4})
    with pytest.raises(
        NotPutBack, match=r"instead of 2 \(.* could not be put back: the server reports another"
    ):
        target.apply({"instances": 2})


def test_so_is_one_that_comes_back_otherwise_after_a_model_that_does_not_become_ready(
    triton, make_target, monkeypatch
):
    monkeypatch.setattr(target_change, "TIMEOUT_S", 2.0)
    target = make_target(triton.address)
    target.connect()
    triton.breaks_at = 8
    otherwise = parse('{"name": "m", "instance_group": [{"count": 1}]}')
    triton.takes = lambda config: config if config.max_batch_size == 8 else otherwise
    with pytest.raises(NotPutBack, match=r"not ready .* could not be put back: the server reports another"):
        target.apply({"max_batch_size": 8})


@pytest.mark.parametrize("room", [100, 1])  # 1: the target's own load is refused
def test_what_another_client_loads_while_a_configuration_is_put_in_force_stays(triton, make_target, room):
    target = make_target(triton.address)
    target.connect()
    triton.most_instances = room
    theirs = triton.set_meanwhile = edited(parse(CONFIG), {"instances": 2, "max_batch_size": 8})
    with pytest.raises(Overtaken, match=r"another client set instances=2, .* which stays in force$"):
        target.apply({"instances": 3})
    assert triton.configs["m"] == theirs
    assert triton.loads == 1


def test_after_a_refused_load_it_stays_where_it_sets_the_same_knob_too(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.most_instances = 2
    theirs = triton.set_meanwhile = edited(parse(CONFIG), {"instances": 2})
    with pytest.raises(Overtaken):
        target.apply({"instances": 3})
    assert triton.configs["m"] == theirs


def test_nor_do_instances_that_start_in_turns_replace_it(triton, make_target):
    target = make_target(triton.address)
    target.starts_at_once = 1
    target.connect()
    theirs = triton.set_meanwhile = edited(parse(CONFIG), {"max_batch_size": 8})
    with pytest.raises(Overtaken):
        target.apply({"instances": 4})
    assert triton.configs["m"] == theirs
    assert triton.loads == 1


def test_after_a_refused_load_nothing_is_loaded_that_is_in_force(triton, make_target):
    """Another client's load may wait for its turn by then."""
    target = make_target(triton.address)
    target.connect()
    triton.most_instances = 2
    with pytest.raises(TargetError, match="the previous configuration is in force"):
        target.apply({"instances": 3})
    assert triton.loads == 1


def test_after_a_load_that_was_not_answered_the_previous_configuration_is_loaded_all_the_same(
    triton, make_target
):
    """The server may still put in force what it has not answered."""
    target = make_target(triton.address)
    target.connect()
    triton.most_instances, triton.beyond_them = 2, (grpc.StatusCode.DEADLINE_EXCEEDED, "")
    with pytest.raises(TargetError, match=r"has not loaded .*\(the previous configuration is in force\)$"):
        target.apply({"instances": 3})
    assert [config.instance_group[0].count for config in triton.loaded] == [3, 1]


def test_a_server_that_dies_in_mid_change_is_lost(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.dies_at_a_load = True
    with pytest.raises(LostInChange, match=r"is lost \(.*\) in the middle of a change to instances=2$"):
        target.apply({"instances": 2})


def test_the_models_config_pbtxt(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    assert text_format.Parse(target.config_text(), ModelConfig()) == parse(CONFIG)
    changed = text_format.Parse(target.config_text({"instances": 3}), ModelConfig())
    assert changed == edited(parse(CONFIG), {"instances": 3})
    with pytest.raises(TargetError, match="instances must be from 1 to 64"):
        target.config_text({"instances": 0})
    assert triton.loads == 0


def test_what_a_model_was_found_with_may_stay_and_come_back_whatever_our_limits(triton, make_target):
    triton.configs["m"].max_batch_size = 4096
    triton.configs["m"].instance_group[0].count = 80
    found = edited(triton.configs["m"], {})
    target = make_target(triton.address)
    target.connect()
    knobs = target.configuration()
    target.apply({"intra_op_threads": 1})
    target.apply({"max_batch_size": 8, "instances": 4})
    with pytest.raises(TargetError, match="max_batch_size must be from 1 to 1024, got 4097"):
        target.apply({"max_batch_size": 4097})
    target.apply(knobs)
    assert triton.configs["m"] == found


def test_without_its_counters_a_target_can_be_changed_while_its_page_is_away(triton, make_target):
    target = make_target(triton.address, metrics_url="http://127.0.0.1:9/metrics")
    with pytest.raises(TargetError, match="does not answer"):
        target.connect(control=False)
    target.connect(control=False, counters=False)
    target.apply({"instances": 2})
    target.apply({"max_batch_size": 8})
    assert knob_values(triton.configs["m"])["max_batch_size"] == 8


def test_after_a_change_that_ctrl_c_broke_off_even_what_seems_in_force_is_sent(
    triton, make_target, monkeypatch
):
    """The server may go on with the load, and put it in force when nobody looks any more."""

    def broken_off(*_):
        raise KeyboardInterrupt

    target = make_target(triton.address)
    target.connect()
    found = target.configuration()
    with monkeypatch.context() as patched:
        patched.setattr(target_change, "put_in_force", broken_off)
        with pytest.raises(KeyboardInterrupt):
            target.apply({"instances": 3})
    target.connect(control=False, counters=False)
    target.apply(found)
    assert [knob_values(config) for config in triton.loaded] == [found]
    target.apply(found)
    assert triton.loads == 1


def test_what_is_restored_after_a_kill_is_sent_even_where_it_seems_in_force(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    found = target.configuration()
    target.restore(found, target.config_text())
    assert [knob_values(config) for config in triton.loaded] == [found]
    target.apply(found)
    assert triton.loads == 1


def test_threads_that_are_left_to_the_backend_are_no_knob_and_stay(triton, make_target):
    triton.configs["m"].parameters["INTRA_OP_THREAD_COUNT"].string_value = "0"
    target = make_target(triton.address)
    target.connect()
    assert "intra_op_threads" not in target.configuration()
    assert any("intra_op_threads" in note and "a value of 1 or more" in note for note in target.notes)
    target.apply({"instances": 2})
    assert triton.configs["m"].parameters["INTRA_OP_THREAD_COUNT"].string_value == "0"


def test_threads_are_found_in_lower_case_as_the_onnx_runtime_backend_spells_them(triton, make_target):
    parameters = triton.configs["m"].parameters
    del parameters["INTRA_OP_THREAD_COUNT"]
    parameters["intra_op_thread_count"].string_value = "2"
    target = make_target(triton.address)
    target.connect()
    assert target.configuration()["intra_op_threads"] == 2
    target.apply({"intra_op_threads": 1})
    parameters = triton.configs["m"].parameters
    assert parameters["intra_op_thread_count"].string_value == "1"
    assert "INTRA_OP_THREAD_COUNT" not in parameters


def test_requests_of_several_items_are_noticed_beside_answers_from_the_response_cache(triton, make_target):
    triton.configs["m"].response_cache.enable = True
    triton.success = triton.cache_hits = 30
    triton.more_items = 10  # 10 requests of 20 items were run
    target = make_target(triton.address)
    target.connect()
    assert target.requests_hold_several_items()
    triton.cache_hits = 0
    assert not target.requests_hold_several_items()


def test_a_single_request_of_two_items_is_noticed(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    assert not target.requests_hold_several_items()
    triton.more_items = 1
    assert target.requests_hold_several_items()


def test_what_a_smaller_batch_size_may_refuse_is_told(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    assert not target.refuses_more_than_found({"max_batch_size": 4})
    assert "was 4 and is 2" in target.refuses_more_than_found({"max_batch_size": 2})
    triton.name = "rrl-serve"
    target.connect()
    assert not target.refuses_more_than_found({"max_batch_size": 2})


def test_a_model_that_somebody_unloads_is_absent_and_neither_slow_nor_an_error(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.unload("m")
    for ask in (target.read, target.configuration, lambda: target.apply({"instances": 2})):
        with pytest.raises(ModelAbsent, match="the model is not loaded"):
            ask()
    assert triton.loads == 0


def test_a_model_that_somebody_unloads_while_it_is_configured_is_neither_waited_for_nor_put_back(
    triton, make_target
):
    target = make_target(triton.address)
    target.connect()
    triton.unloads_after_a_load = True
    with pytest.raises(ModelAbsent, match="unloaded while it was configured"):
        target.apply({"instances": 2})
    assert triton.loads == 1
    assert not triton.configs
