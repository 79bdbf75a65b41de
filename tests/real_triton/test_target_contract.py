"""What a target does is the same with our own server and with a stock Triton, each of them real."""

import socket

import grpc
import pytest

from serving_adapter.knob_limits import KNOBS
from serving_adapter.model_configuration import knob_values
from serving_adapter.target import OpenInferenceTarget, RequestsRefused, TargetError
from serving_adapter.target.testing import PROMISES
from tests.support.servers.triton_served import without_preferred_sizes

RELOADING = {"max_batch_size": 4, "max_queue_delay_us": 300}
"""What Triton can only put in force by loading the model anew."""


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps_the_contract_of_a_target(served, promise):
    def make():
        return OpenInferenceTarget(served.address, served.model, served.metrics_url)

    promise(make, {"instances": 2}, served.infer)


def test_connecting_finds_the_model_its_knobs_and_its_page(served, make_target):
    before = served.config(), served.completed()
    target = make_target(served)
    assert target.model == "sleep"
    assert target.configuration() == knob_values(served.config())
    assert set(target.configuration()) <= set(KNOBS)
    assert {"instances", "max_batch_size", "max_queue_delay_us"} <= set(target.knobs())
    assert target.notes == []
    assert (served.config(), served.completed()) == before  # nothing was changed by it


@pytest.mark.parametrize(
    "change", [{"instances": 3}, {"max_queue_delay_us": 700}, {"max_batch_size": 2}, RELOADING], ids=str
)
def test_a_change_leaves_every_other_field_as_it_was(served, make_target, change):
    before = served.config()
    target = make_target(served)
    found = target.configuration()
    target.apply(change)
    assert target.configuration() == found | change
    assert other_fields(served.config()) == other_fields(before)


def other_fields(config):
    """All that no knob sets."""
    config.ClearField("max_batch_size")
    config.instance_group[0].ClearField("count")
    config.dynamic_batching.ClearField("max_queue_delay_microseconds")
    return without_preferred_sizes(config)


def test_what_is_in_force_already_is_not_sent(served, make_target):
    target = make_target(served)
    loads = target.calls["RepositoryModelLoad"]
    assert target.apply(target.configuration())[:2] == (True, 0)
    assert target.calls["RepositoryModelLoad"] == loads


def test_instances_change_in_place_and_the_statistics_go_on(served, make_target):
    target = make_target(served)
    for _ in range(5):
        served.infer()
    before = target.read(), served.completed()
    assert target.apply({"instances": 3})[:2] == (True, 2 if served.is_triton else 0)
    assert target.apply({"instances": 1})[:2] == (True, 0)
    served.infer()
    assert target.read().success > before[0].success
    assert served.completed() > before[1]  # Triton's statistics begin again at a reload


def test_changes_that_need_a_reload_are_one_load(served, make_target):
    target = make_target(served)
    target.starts_at_once = None  # whatever cores this machine has
    loads = target.calls["RepositoryModelLoad"]
    started = served.started_instances() if served.is_triton else 0
    applied = target.apply({"instances": 2} | RELOADING)
    assert target.calls["RepositoryModelLoad"] == loads + 1
    if served.is_triton:
        assert applied[:2] == (False, 2)
        assert served.started_instances() == started + 2
    else:
        assert applied[:2] == (True, 0)


def test_instances_beyond_those_before_start_in_turns(served, make_target):
    target = make_target(served)
    target.starts_at_once = 1
    loads = target.calls["RepositoryModelLoad"]
    started = served.started_instances() if served.is_triton else 0
    applied = target.apply({"instances": 3} | RELOADING)
    if served.is_triton:
        assert applied[:2] == (False, 3)
        assert target.calls["RepositoryModelLoad"] == loads + 3
        assert served.started_instances() == started + 3  # none of them twice
    else:
        assert target.calls["RepositoryModelLoad"] == loads + 1
    assert target.configuration().items() >= ({"instances": 3} | RELOADING).items()
    served.infer()


@pytest.mark.parametrize("metrics", [True, False], ids=["metrics", "statistics"])
def test_what_is_answered_during_changes_is_answered_and_counted(served, make_target, load, metrics):
    target = make_target(served, metrics)
    start = target.read()
    with load(served) as sending:
        for change in ({"instances": 2}, RELOADING, {"instances": 1}, {"max_batch_size": 8}):
            for reading in (target.glance(), target.read()):
                assert reading.failure == 0
            target.apply(change)
    assert sending.failed == {}
    assert sending.sent > 0
    if metrics or not served.is_triton:
        assert target.read().success - start.success >= sending.sent  # and a model's warm-up


def test_a_page_goes_on_counting_over_a_reload(served, make_target):
    target = make_target(served)
    served.infer()
    before = target.read()
    target.apply(RELOADING)
    served.infer()
    after = target.read()
    assert after.success > before.success
    assert after.request_s > before.request_s
    assert after.execution_count > before.execution_count


def test_statistics_that_began_again_are_told_from_those_that_go_on(served, make_target):
    target = make_target(served, metrics=False)
    for _ in range(5):
        served.infer()
    before = target.read()
    assert before.executions_since_load >= 5 if served.is_triton else before.success >= 5
    applied = target.apply(RELOADING)
    after = target.read()
    assert applied.in_place == (not served.is_triton)
    assert (after.success >= before.success) == applied.in_place


def test_the_configuration_found_comes_back_to_the_last_field(served, make_target):
    found = served.config()
    target = make_target(served)
    configuration = target.configuration()
    target.apply({"instances": 2, "max_batch_size": 2, "max_queue_delay_us": 100})
    target.apply({"max_batch_size": 16})
    target.apply(configuration)
    assert served.config() == found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"instances": 0}, "instances must be from 1 to 64, got 0"),
        ({"instances": 2.5}, "instances must be an integer"),
        ({"max_batch_size": 5000}, "max_batch_size must be from 1 to 1024, got 5000"),
        ({"max_queue_delay_us": -1}, "max_queue_delay_us must be from 0"),
        ({"inter_op_thread": 2}, "has no knob inter_op_thread; it has instances"),
    ],
)
def test_a_bad_change_is_refused_before_it_is_sent(served, make_target, change, says):
    found = served.config()
    target = make_target(served)
    loads = target.calls["RepositoryModelLoad"]
    with pytest.raises(TargetError, match=says):
        target.apply({"max_queue_delay_us": 50} | change)
    assert target.calls["RepositoryModelLoad"] == loads
    assert served.config() == found


def test_a_model_that_is_not_there_is_told_with_those_that_are(served, make_target):
    with pytest.raises(TargetError, match=r"'slep' is not there at .*; ready: .*sleep"):
        make_target(served, model="slep")


def test_a_port_that_is_not_grpc_is_told_as_such(served, make_target):
    port = served.metrics_url.split("/")[2]
    with pytest.raises(TargetError, match=r"answers, but not gRPC: it .* HTTP or metrics port"):
        make_target_at(port)


def test_tritons_http_port_is_told_as_such(triton):
    with pytest.raises(TargetError, match=r"answers, but not gRPC: it .* HTTP or metrics port"):
        make_target_at(triton.http_address)


def test_a_port_where_nothing_listens(served):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        with pytest.raises(TargetError, match=r"does not answer .*; start the server"):
            make_target_at(f"127.0.0.1:{holder.getsockname()[1]}")


def make_target_at(address):
    target = OpenInferenceTarget(address, "sleep", timeout_s=2.0)
    try:
        target.connect()
    finally:
        target.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://{address}/metrics", "does not answer with HTTP .* it may be a gRPC port"),
        ("http://127.0.0.1:1/metrics", "does not answer .*connection refused"),
        ("{address}", "the metrics URL must be like http://HOST:PORT/metrics"),
    ],
)
def test_a_page_that_cannot_be_read_is_an_error_of_one_sentence(served, make_target, url, says):
    with pytest.raises(TargetError, match=says) as caught:
        make_target(served, metrics_url=url.format(address=served.address))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://{triton.http_address}/metrics", "answers 4.. .* instead of a metrics page"),
        ("{triton.metrics_url}/nothing", "answers 404|is empty"),
    ],
)
def test_a_triton_page_at_the_wrong_place(triton, serve, make_target, url, says):
    with pytest.raises(TargetError, match=says):
        make_target(serve(triton, "sleep"), metrics_url=url.format(triton=triton))


@pytest.mark.parametrize("asked", ["rrl-serve", "triton"])
def test_the_page_of_another_server_whose_model_has_that_name(asked, make_target, serve, server, triton):
    ours, theirs = serve(server, "sleep"), serve(triton, "sleep")
    asked, other = (ours, theirs) if asked == "rrl-serve" else (theirs, ours)
    with pytest.raises(TargetError, match="the page of another server"):
        read_while_it_answers(make_target, asked, other.metrics_url)


def read_while_it_answers(make_target, served, metrics_url):
    """What of two servers' counts cannot be of the same requests shows after a while."""
    target = make_target(served, metrics_url=metrics_url)
    for _ in range(4):
        for _ in range(60):
            served.infer()
        target.read()


def test_the_page_of_another_server_without_that_model(make_target, serve, server, triton):
    with pytest.raises(TargetError, match="no series of model 'member', only of sleep"):
        make_target(serve(triton, "member"), metrics_url=server.metrics_url)


def test_a_reading_is_one_call_and_one_page_at_most(served, make_target):
    target = make_target(served)
    before = target.calls.copy()
    target.read()
    assert max((target.calls - before).values()) == 1
    assert len(target.calls - before) <= 2


def test_requests_of_several_items_are_noticed_where_a_smaller_batch_size_would_refuse_them(
    served, make_target
):
    target = make_target(served)
    found = target.configuration()
    assert not target.requests_hold_several_items()
    target.apply({"max_batch_size": 2})
    if served.is_triton:
        with pytest.raises(grpc.RpcError, match="batch-size must be <= 2"):
            served.request(items=4)
    target.apply(found)
    for _ in range(20):
        served.infer(items=4)
    assert target.requests_hold_several_items() is served.is_triton
    if served.is_triton:
        with pytest.raises(RequestsRefused, match=r"max_batch_size 2 is below the \d+ it was found with"):
            target.apply({"max_batch_size": 2})
        assert target.configuration() == found
