"""What a target refuses before anything is changed."""

import grpc
import pytest

from serving_adapter.model_configuration import parse
from serving_adapter.target import Room, TargetError
from tests.support.servers.fake_triton import CONFIG


def test_connecting_loads_nothing(triton, make_target):
    make_target(triton.address).connect()
    assert triton.loads == 0


ENSEMBLE = """{"name": "e", "platform": "ensemble", "max_batch_size": 4,
               "ensemble_scheduling": {"step": [{"model_name": "m"}, {"model_name": "n"}]}}"""


def test_a_step_takes_as_large_batches_as_its_ensemble_and_that_is_refused(triton, make_target):
    triton.configs["e"] = parse(ENSEMBLE)
    target = make_target(triton.address, "m")
    target.connect()
    assert "'m' is a step of the ensemble 'e'" in target.notes[0]
    assert target.knobs()["max_batch_size"].low == 4
    with pytest.raises(TargetError, match=r"max_batch_size 2 is below the 4 of the ensemble 'e'"):
        target.apply({"max_batch_size": 2})
    with pytest.raises(TargetError, match=r"'e' at .* is an ensemble, .* --model e tunes its steps \(m, n\)"):
        make_target(triton.address, "e").connect()
    assert triton.loads == 0
    target.apply({"max_batch_size": 8})
    assert triton.loads == 1
    del triton.configs["e"]
    target.connect()
    target.apply({"max_batch_size": 2})


def test_the_nodes_of_a_unit_are_a_knob_where_the_model_can_be_split(triton, make_target):
    parameters = triton.configs["m"].parameters
    parameters["CLUSTER_NODES_PER_UNIT"].string_value = "1"
    target = make_target(triton.address, "m")
    target.connect()
    assert "nodes_per_unit" not in target.knobs()
    assert "nodes_per_unit" not in target.configuration()
    parameters["LIMIT_NODES_PER_UNIT"].string_value = "12"
    assert target.knobs()["nodes_per_unit"] == (1, 12)
    target.apply({"nodes_per_unit": 3})
    assert target.configuration()["nodes_per_unit"] == 3


def test_a_server_on_a_cluster_tells_what_fits_on_its_nodes(triton, metrics, make_target):
    target = make_target(triton.address, "m", metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    assert target.room() is None
    parameters = triton.configs["m"].parameters
    parameters["CLUSTER_NODES_PER_UNIT"].string_value = "1"
    metrics.page += "".join(f'rrl_node_cpu_count{{model="m",node="{node}"}} 8.0\n' for node in "abc")
    target.connect()
    assert target.room() == Room(instances=24, threads=8)
    parameters["CLUSTER_NODES"].string_value = "2"
    target.connect()
    assert target.room() == Room(instances=16, threads=8)


def test_a_sequence_batcher_leaves_the_instances_alone_to_tune(triton, make_target):
    """A new load cuts the sequences in progress; with the strategy `oldest` a Triton that shrinks crashes."""
    triton.configs["m"].sequence_batching.direct.SetInParent()  # it takes the dynamic batcher's place
    target = make_target(triton.address)
    target.connect()
    assert target.knobs().keys() == {"instances"}
    assert "the instances are its only knob" in target.notes[0]
    with pytest.raises(TargetError, match="has no knob intra_op_threads; it has instances"):
        target.apply({"intra_op_threads": 1})
    target.apply({"instances": 2})
    triton.configs["m"].sequence_batching.oldest.max_candidate_sequences = 4
    with pytest.raises(
        TargetError, match=r"strategy 'oldest', which forbids every knob: .*; use the strategy"
    ):
        target.connect()
    target.connect(control=False)
    assert target.configuration() == {}


def test_a_model_without_a_dynamic_batcher_is_told_what_it_misses(triton, make_target):
    triton.configs["m"].ClearField("dynamic_batching")
    target = make_target(triton.address)
    target.connect()
    assert not {"max_batch_size", "max_queue_delay_us"} & target.knobs().keys()
    assert "add 'dynamic_batching { }' to have them tuned" in target.notes[0]


@pytest.mark.parametrize("field", [{"backend": "pytorch"}, {"platform": "pytorch_libtorch"}])
def test_threads_of_the_pytorch_backend_are_said_to_be_the_whole_servers(triton, make_target, field):
    for name, value in field.items():
        setattr(triton.configs["m"], name, value)
    target = make_target(triton.address)
    target.connect()
    assert "are the whole server's" in target.notes[0]
    triton.name = "named-by-its-owner"  # tritonserver --id
    target.connect()
    assert "are the whole server's" in target.notes[0]
    del triton.configs["m"].parameters["INTRA_OP_THREAD_COUNT"]
    triton.configs["m"].parameters.pop("INTER_OP_THREAD_COUNT", None)
    target.connect()
    assert not any("PyTorch" in note for note in target.notes)


def test_a_decoupled_model_and_one_without_knobs(triton, make_target):
    triton.configs["m"].model_transaction_policy.decoupled = True
    target = make_target(triton.address)
    target.connect()
    assert "latencies go to the last response" in target.notes[0]
    triton.configs["m"] = parse('{"name": "m"}')
    with pytest.raises(TargetError, match=r"'m' at .* has no knob: its configuration needs"):
        target.connect()


def test_a_model_that_is_not_there_is_told_with_those_that_are(triton, make_target):
    with pytest.raises(TargetError, match=r"model 'x' is not there at .*; ready: m"):
        make_target(triton.address, "x").connect()
    with pytest.raises(TargetError, match="model 'broken' is not ready"):
        make_target(triton.address, "broken").connect()


def test_several_models_ask_for_a_name(triton, make_target):
    triton.configs["n"] = parse(CONFIG)
    with pytest.raises(TargetError, match="serves several models; name one of m, n"):
        make_target(triton.address).connect()
    target = make_target(triton.address, "n")
    target.connect()
    assert target.model == "n"


def test_no_model_at_all(triton, make_target):
    triton.configs.clear()
    with pytest.raises(TargetError, match="no model is ready"):
        make_target(triton.address).connect()


def test_missing_extensions_say_what_that_means(triton, make_target):
    triton.extensions = ["model_configuration"]
    with pytest.raises(TargetError, match="lacks Triton's extensions statistics, model_repository") as caught:
        make_target(triton.address).connect()
    assert "can only be observed, with --advise and --metrics-url" in str(caught.value)


def test_a_server_without_statistics_needs_its_page(triton, make_target):
    triton.extensions = []
    with pytest.raises(TargetError, match="only its metrics page tells how it fares; give --metrics-url"):
        make_target(triton.address).connect(control=False)


def test_a_triton_without_model_control_says_how_to_start_it(triton, make_target):
    triton.load_error = (
        grpc.StatusCode.UNAVAILABLE,
        "explicit model load / unload is not allowed if polling is enabled",
    )
    target = make_target(triton.address)
    with pytest.raises(TargetError, match="--model-control-mode=explicit"):
        target.connect()
    target.connect(control=False)  # it may still be observed
    with pytest.raises(TargetError, match="--model-control-mode=explicit"):
        target.check_control()
    assert target.read().success == 10


def test_a_locked_server_wants_its_key(triton, make_target):
    triton.key = "secret"
    with pytest.raises(TargetError, match="wants a control key"):
        make_target(triton.address).connect()
    with pytest.raises(TargetError, match="wants a control key"):
        make_target(triton.address, control_key="wrong").connect()
    target = make_target(triton.address, control_key="secret")
    target.connect()
    target.check_control()
    target.apply({"instances": 2})
    triton.load_error = (grpc.StatusCode.PERMISSION_DENIED, "no")
    with pytest.raises(TargetError, match="wants a control key"):
        target.check_control()
