"""`rrl-tune --advise` on a real MLServer: what it does is said, and why nothing can be recommended."""

import contextlib

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from rrl.command_line import main
from scripts.triton_server.mlserver import MODEL, install, running
from tests.support.servers.steady import steadily


@pytest.fixture(scope="module")
def mlserver():
    try:
        command = install(say=lambda text: None)
    except RuntimeError as error:
        pytest.fail(f"{error}; or leave these tests out with: pytest -m 'not triton'")
    with running(command) as server:
        yield server


@contextlib.contextmanager
def requests_to(address):
    """One after the other."""
    request = messages.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        with steadily(lambda: stub.ModelInfer(request, timeout=10)):
            yield


@pytest.mark.parametrize("knobs", [(), ("--knobs", "instances=1:4")])
def test_what_can_only_be_observed_is_observed(mlserver, capsys, knobs):
    target = ("--target", mlserver.address, "--metrics-url", mlserver.metrics_url)
    with requests_to(mlserver.address), pytest.raises(SystemExit) as ended:
        main([*target, "--advise", "--interval-s", "0.6", "--settle-s", "0.1", *knobs])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "observed: " in said
    assert "no recommendation: mlserver" in said
    assert "lacks Triton's extensions" in said
    assert "to tune the model, serve it with rrl-serve or Triton" in said
