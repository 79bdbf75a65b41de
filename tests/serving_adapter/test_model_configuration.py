"""The knobs in a Triton ModelConfig: read, set, checked."""

import json

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter.knob_limits import KNOBS, Configuration, check
from serving_adapter.model_configuration import (
    as_json,
    edited,
    instances_that_fit,
    is_on_cluster,
    knob_values,
    limits,
    parse,
)

FULL = """{
  "name": "m", "backend": "python", "max_batch_size": 4,
  "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1", "3"]}],
  "instance_group": [{"name": "m_0", "kind": "KIND_CPU", "count": 2}],
  "dynamic_batching": {"preferred_batch_size": [4], "max_queue_delay_microseconds": "500"},
  "parameters": {"INTRA_OP_THREAD_COUNT": {"string_value": "2"},
                 "INTER_OP_THREAD_COUNT": {"string_value": "1"},
                 "OTHER": {"string_value": "kept"}},
  "optimization": {"priority": "PRIORITY_MAX"}
}"""

configurations = st.fixed_dictionaries(
    {}, optional={name: st.integers(low, high) for name, (low, high) in KNOBS.items()}
)


def with_knobs(config: ModelConfig | str, configuration: Configuration) -> str:
    """The JSON of a configuration with these knobs set and every other field as it was."""
    return as_json(edited(parse(config) if isinstance(config, str) else config, configuration))


def test_reads_the_knobs_of_a_configuration():
    assert knob_values(FULL) == {
        "instances": 2,
        "intra_op_threads": 2,
        "inter_op_threads": 1,
        "max_batch_size": 4,
        "max_queue_delay_us": 500,
    }


def test_reads_only_the_knobs_that_the_configuration_has():
    assert knob_values('{"name": "m"}') == {}
    assert knob_values('{"instance_group": [{"count": 3}]}') == {"instances": 3}
    assert knob_values('{"dynamic_batching": {}}') == {"max_queue_delay_us": 0}


CLUSTERED = """{"name": "m", "parameters": {"CLUSTER_NODES_PER_UNIT": {"string_value": "2"},
                                            "LIMIT_NODES_PER_UNIT": {"string_value": "6"}}}"""


def test_the_nodes_of_a_unit_are_a_knob_up_to_the_parts_of_the_model():
    assert knob_values(CLUSTERED) == {"nodes_per_unit": 2}
    assert limits(parse(CLUSTERED))["nodes_per_unit"] == (1, 6)
    assert knob_values(with_knobs(CLUSTERED, {"nodes_per_unit": 6})) == {"nodes_per_unit": 6}
    with pytest.raises(ValueError, match="nodes_per_unit must be from 1 to 6, got 7"):
        edited(parse(CLUSTERED), {"nodes_per_unit": 7})


def test_a_cluster_may_have_more_instances_than_one_machine():
    assert limits(parse(FULL))["instances"] == (1, 64)
    assert limits(parse(CLUSTERED))["instances"] == (1, 10_000)
    assert knob_values(with_knobs(CLUSTERED, {"instances": 65}))["instances"] == 65
    with pytest.raises(ValueError, match="instances must be from 1 to 64, got 65"):
        edited(parse(FULL), {"instances": 65})


@pytest.mark.parametrize(
    ("cpus_by_node", "nodes", "nodes_per_unit", "instances"),
    [
        ((8, 8, 8), 0, 1, 24),
        ((8, 16, 4), 2, 1, 24),  # the largest two
        ((8, 8, 8), 0, 2, 12),
        ((22, 1, 1), 0, 2, 2),  # a unit has its workers on different nodes
        ((8,), 0, 2, 1),
    ],
)
def test_as_many_instances_fit_as_the_nodes_in_use_have_cpus(
    cpus_by_node: tuple[int, ...], nodes: int, nodes_per_unit: int, instances: int
) -> None:
    parameters = {"CLUSTER_NODES": nodes, "CLUSTER_NODES_PER_UNIT": nodes_per_unit}
    config = ModelConfig()
    for name, value in parameters.items():
        config.parameters[name].string_value = str(value)
    assert is_on_cluster(config)
    assert instances_that_fit(config, cpus_by_node) == instances
    assert not is_on_cluster(parse(FULL))


def test_a_model_that_cannot_be_split_has_no_such_knob():
    assert "nodes_per_unit" not in limits(parse(FULL))
    alone = '{"name": "m", "parameters": {"CLUSTER_NODES_PER_UNIT": {"string_value": "of another program"}}}'
    assert knob_values(alone) == {}
    with pytest.raises(ValueError, match="unknown knob 'nodes_per_unit'"):
        edited(parse(FULL), {"nodes_per_unit": 2})


def test_camel_case_and_snake_case_read_alike():
    camel = json_format.MessageToJson(parse(FULL))
    assert "maxBatchSize" in camel
    assert parse(camel) == parse(FULL)


@given(configurations)
def test_setting_knobs_changes_them_and_nothing_else(configuration):
    # FULL prefers its largest batch, as Triton fills in; that follows max_batch_size.
    override = parse(with_knobs(FULL, configuration))
    assert knob_values(override) == knob_values(FULL) | configuration
    assert edited(override, knob_values(FULL)) == parse(FULL)


@given(configurations)
def test_setting_knobs_makes_the_fields_that_were_missing(configuration):
    assert knob_values(edited(ModelConfig(name="m"), configuration)) == configuration


def preferred_after(preferred, max_batch_size, new):
    config = ModelConfig(max_batch_size=max_batch_size)
    config.dynamic_batching.preferred_batch_size[:] = preferred
    return list(edited(config, {"max_batch_size": new}).dynamic_batching.preferred_batch_size)


def test_preferred_batch_sizes_stay_within_the_largest():
    assert preferred_after([8], 8, 4) == [4]  # filled in by Triton
    assert preferred_after([4], 4, 16) == [16]
    assert preferred_after([2, 4, 8], 8, 4) == [2, 4]
    assert preferred_after([2, 4], 8, 16) == [2, 4]
    assert preferred_after([], 8, 4) == []


def test_the_override_is_a_json_object_and_the_original_is_untouched():
    config = parse(FULL)
    assert json.loads(with_knobs(config, {"max_batch_size": 8}))["max_batch_size"] == 8
    assert config.max_batch_size == 4


def test_refuses_to_drop_fields_of_a_newer_server():
    unknown_field = b"\xf2\x3f\x05hello"  # field 1022, five bytes
    newer = ModelConfig.FromString(parse(FULL).SerializeToString() + unknown_field)
    with pytest.raises(ValueError, match="tritonclient does not know"):
        with_knobs(newer, {"instances": 3})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Expecting property name"),
        ("[1]", "not a ModelConfig in JSON"),
        ("null", "not a ModelConfig in JSON"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ('{"max_batch": 3}', 'no field named "max_batch"'),
        ('{"max_batch_size": "many"}', "max_batch_size"),
        ('{"max_batch_size": true}', "max_batch_size"),
        ('{"max_batch_size": 99999999999}', "out of range"),
        ('{"instance_group": 3}', "instance_group"),
    ],
)
def test_what_is_not_a_model_configuration_gets_one_sentence(text, says):
    with pytest.raises(ValueError, match=says) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["all", "", "2.0", "1_0", "\u0662", "0x2", "2e1", "9" * 5000])
def test_a_thread_count_that_is_not_a_number_gets_one_sentence(text):
    with pytest.raises(ValueError, match=r"INTRA_OP_THREAD_COUNT.*must be an integer as text"):
        knob_values(json.dumps({"parameters": {"INTRA_OP_THREAD_COUNT": {"string_value": text}}}))


def test_a_thread_count_may_have_a_sign_and_blanks_as_for_other_readers():
    text = {"parameters": {"INTRA_OP_THREAD_COUNT": {"string_value": " +2 "}}}
    assert knob_values(json.dumps(text)) == {"intra_op_threads": 2}


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        ({"instances": 0}, "instances must be from 1 to 64, got 0"),
        ({"instances": -1}, "from 1 to 64, got -1"),
        ({"max_queue_delay_us": 10_000_001}, "from 0 to 10000000"),
        ({"max_batch_size": True}, r"integer from 1 to 1024, got True \(bool\)"),
        ({"max_batch_size": 2.0}, r"got 2.0 \(float\)"),
        ({"intra_op_threads": "2"}, r"got '2' \(str\)"),
        ({"inter_op_threads": None}, "got None"),
        ({"threads": 2}, "unknown knob 'threads'; known: instances"),
    ],
)
def test_a_bad_configuration_gets_one_sentence(configuration, says):
    with pytest.raises(ValueError, match=says):
        check(configuration)
    with pytest.raises(ValueError, match=says):
        with_knobs(FULL, configuration)
