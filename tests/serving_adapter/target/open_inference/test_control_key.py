"""With which calls the control key travels, and over which connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import add_GRPCInferenceServiceServicer_to_server

from serving_adapter.control_key import CONTROL_KEY_HEADER
from serving_adapter.target import OpenInferenceTarget, TargetError
from serving_adapter.target.open_inference.connection import Connection
from tests.support.servers.fake_triton import Triton

KEY = "secret"


class Lock(grpc.ServerInterceptor):
    """Asks for the key with some methods, as `--grpc-restricted-protocol` does, and notes where it comes."""

    def __init__(self, *locked: str) -> None:
        self.locked, self.opened, self.called = locked, set[str](), set[str]()

    def intercept_service(self, continuation, details):
        method = details.method.rpartition("/")[2]
        self.called.add(method)
        if dict(details.invocation_metadata).get(CONTROL_KEY_HEADER) == KEY:
            self.opened.add(method)
        elif method in self.locked:
            return grpc.unary_unary_rpc_method_handler(_refuse)
        return continuation(details)


def _refuse(request, context):
    header = f"This protocol is restricted, expecting header '{CONTROL_KEY_HEADER}'"
    context.abort(grpc.StatusCode.UNAVAILABLE, header)


@pytest.fixture(params=[("RepositoryModelLoad",), ("RepositoryModelLoad", "ModelConfig", "ModelStatistics")])
def locked(request) -> Iterator[tuple[str, Lock]]:
    lock = Lock(*request.param)
    server = grpc.server(futures.ThreadPoolExecutor(4), interceptors=[lock])
    add_GRPCInferenceServiceServicer_to_server(Triton(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", lock
    server.stop(None).wait()


def test_the_key_goes_with_the_calls_that_the_server_locks_and_with_no_other(locked):
    address, lock = locked
    target = OpenInferenceTarget(address, control_key=KEY, timeout_s=20.0)
    target.connect()
    target.read()
    target.close()
    assert lock.opened == set(lock.locked)
    assert lock.opened < lock.called


def test_the_key_does_not_travel_unencrypted_to_another_machine(locked):
    address, lock = locked
    far = Connection(address, False, 20.0, Counter(), KEY)
    load = messages.RepositoryModelLoadRequest(model_name="m")
    with pytest.raises(TargetError, match=r"would travel unencrypted .*--tls-ca"):
        far.call("RepositoryModelLoad", load)
    if "ModelStatistics" in lock.locked:
        with pytest.raises(TargetError, match="would travel unencrypted"):
            far.call("ModelStatistics", messages.ModelStatisticsRequest(name="m"))
    assert far.call("ServerMetadata", messages.ServerMetadataRequest()).name == "triton"
    far.close()
    assert not lock.opened
