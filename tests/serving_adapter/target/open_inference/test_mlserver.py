"""A real MLServer: without Triton's extensions it can be observed by its metrics page, and not be tuned."""

import math

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from envs.live import LiveServing
from envs.profiler import measure
from scripts.triton_server.mlserver import MODEL, MODEL_MS, install, running
from serving_adapter.target import OpenInferenceTarget, TargetError
from tests.support.servers.steady import steadily

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def command():
    try:
        return install(say=lambda text: None)
    except RuntimeError as error:
        pytest.fail(f"{error}; or leave these tests out with: pytest -m 'not triton'")


@pytest.fixture(scope="module")
def mlserver(command):
    with running(command) as server:
        yield server


@pytest.fixture
def infer(mlserver):
    """Sends one request; True if it was answered."""
    with grpc.insecure_channel(mlserver.address, [("grpc.enable_http_proxy", 0)]) as channel:
        yield _sender(GRPCInferenceServiceStub(channel))


def _sender(stub):
    def send(value=1.0):
        request = messages.ModelInferRequest(model_name=MODEL)
        tensor = request.inputs.add(name="x", datatype="FP32", shape=[1])
        tensor.contents.fp32_contents.append(value)
        try:
            stub.ModelInfer(request, timeout=10)
        except grpc.RpcError:
            return False
        return True

    return send


@pytest.fixture
def target(mlserver):
    target = OpenInferenceTarget(mlserver.address, metrics_url=mlserver.metrics_url)
    target.connect(control=False)
    yield target
    target.close()


def test_it_is_observed_by_its_page(target, infer):
    assert target.model == MODEL
    assert target.server.startswith("mlserver ")
    assert target.configuration() == {}
    assert "tells neither its knobs nor how many requests wait" in target.notes[0]
    before = target.read()
    assert [infer(value) for value in (1.0, -1.0, 2.0, 3.0)] == [True, False, True, True]
    assert target.glance().success == before.success + 3
    measurement = measure(before, target.read())
    assert (measurement.arrivals, measurement.completions, measurement.failures) == (4, 3, 1)
    assert measurement.latency.mean_ms >= MODEL_MS
    assert math.isnan(measurement.latency.p95_ms)
    assert math.isnan(measurement.queue.mean_ms)
    assert math.isnan(measurement.mean_batch_size)
    assert measurement.gap == ""
    assert set(target.calls) <= {"ServerMetadata", "RepositoryIndex", "metrics page"}


def test_an_interval_of_its_traffic_is_measured(target, infer):
    env = LiveServing(target, advise=True, interval_s=0.6, settle_s=0.1, poll_s=0.1)
    with steadily(infer):
        measurement = env.reset(seed=0)[1]["measurement"]
    assert measurement.completions > 0
    assert measurement.arrivals == measurement.completions
    assert measurement.latency.mean_ms >= MODEL_MS


def test_its_page_is_read_before_the_first_request_of_a_server_with_workers_too(command):
    with running(command, workers=1) as server:
        target = OpenInferenceTarget(server.address, MODEL, server.metrics_url)
        target.connect(control=False)
        assert target.read().success == 0
        with grpc.insecure_channel(server.address, [("grpc.enable_http_proxy", 0)]) as channel:
            assert _sender(GRPCInferenceServiceStub(channel))()
        assert target.read().success == 1
        target.close()


def test_tuning_it_is_refused_with_what_works_instead(mlserver):
    target = OpenInferenceTarget(mlserver.address, MODEL, mlserver.metrics_url)
    says = (
        "lacks Triton's extensions statistics, model_configuration, model_repository, without which no model "
        "can be tuned: it can only be observed, with --advise and --metrics-url; to tune the model, serve it"
    )
    with pytest.raises(TargetError, match=says):
        target.connect()


def test_without_its_page_it_cannot_be_observed(mlserver):
    with pytest.raises(TargetError, match="only its metrics page tells how it fares; give --metrics-url"):
        OpenInferenceTarget(mlserver.address, MODEL).connect(control=False)


def test_its_other_ports_are_told_from_the_grpc_port(mlserver):
    metrics_address = mlserver.metrics_url.removeprefix("http://").removesuffix("/metrics")
    with pytest.raises(TargetError, match="answers, but not gRPC"):
        OpenInferenceTarget(metrics_address).connect(control=False)
    with pytest.raises(TargetError, match="does not answer with HTTP"):
        OpenInferenceTarget(mlserver.address, MODEL, f"http://{mlserver.address}/metrics").connect(
            control=False
        )
