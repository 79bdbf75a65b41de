"""A tap between stock clients and a real server: nothing is changed, everything is counted."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Queue

import grpc
import numpy as np
import pytest
from tritonclient import grpc as triton
from tritonclient import http as http_triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from envs.profiler import measure
from rrl.objective import slo_violated
from serving_adapter.tap.client import LatencyInterceptor, count_requests_of, serve_tally
from serving_adapter.tap.tally import ClientTally
from serving_adapter.target import OpenInferenceTarget
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import until


@dataclass
class RunningTap:
    process: subprocess.Popen[str]
    address: str
    metrics_url: str

    def page(self) -> str:
        return urllib.request.urlopen(self.metrics_url, timeout=30).read().decode()

    def value(self, name: str, *labels: str) -> float:
        rows = [row for row in self.page().splitlines() if row.split("{")[0].split(" ")[0] == name]
        return sum(float(row.rpartition(" ")[2]) for row in rows if all(label in row for label in labels))


def tapped(target: str, metrics_url: str) -> RunningTap:
    command = [sys.executable, "-m", "serving_adapter.tap.command_line", "--target", target]
    command += ["--target-metrics-url", metrics_url, "--listen", ":0", "--metrics-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    match = re.search(r"on (\S+:\d+), metrics on (\S+)", process.stdout.readline())
    assert match is not None
    return RunningTap(process, match[1], match[2])


def ended(tap: RunningTap) -> None:
    tap.process.terminate()
    tap.process.wait(30)
    assert tap.process.stdout is not None
    tap.process.stdout.close()


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="module")
def server(gate) -> Iterator[RunningServer]:
    held = ("--model", "tests.support.models.gated:held", "--model-option", f"held.gate={gate}")
    server = start("--model", "noop", *held, "--intra-op-threads", 1)
    yield server
    server.stop()
    assert server.process.stdout is not None
    server.process.stdout.close()


@pytest.fixture(scope="module")
def tap(server) -> Iterator[RunningTap]:
    tap = tapped(server.address, server.metrics_url)
    yield tap
    ended(tap)


def request_of(model: str = "noop", rows: int = 1, value: float = 1.0) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[rows, 16])
    request.raw_input_contents.append(np.full((rows, 16), value, np.float32).tobytes())
    return request


@pytest.fixture
def stub(tap) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(tap.address) as channel:
        yield GRPCInferenceServiceStub(channel)


def test_answers_pass_untouched_and_are_counted(stub, tap):
    before = tap.value("rrl_tap_requests", 'model="noop"', 'status="OK"')

    def asked(k: int) -> bool:
        request = request_of(rows=1 + k % 64, value=float(k))
        return stub.ModelInfer(request).raw_output_contents[0] == request.raw_input_contents[0]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(asked, range(400)))
    assert tap.value("rrl_tap_requests", 'model="noop"', 'status="OK"') - before == 400
    assert tap.value("rrl_in_flight_request_count", 'model="noop"') == 0
    assert tap.value("rrl_request_latency_seconds_count", 'model="noop"') >= 400
    assert tap.value("rrl_tap_unwatched_connections") == 0


def test_a_large_message_passes_whole(stub):
    request = request_of(rows=1024)
    assert stub.ModelInfer(request).raw_output_contents[0] == request.raw_input_contents[0]


def test_other_calls_pass_too_and_are_not_counted(tap):
    counted = tap.value("rrl_tap_requests")
    with triton.InferenceServerClient(tap.address) as client:
        assert client.is_server_ready()
        config = client.get_model_config("noop", as_json=True)["config"]
        client.load_model("noop", config="{}")
        assert client.get_model_config("noop", as_json=True)["config"] == config
    assert tap.value("rrl_tap_requests") == counted


def test_failures_are_counted_by_their_status(stub, tap):
    request = request_of()
    request.inputs[0].name = "y"
    with pytest.raises(grpc.RpcError, match="takes the inputs"):
        stub.ModelInfer(request)
    until(lambda: tap.value("rrl_tap_requests", 'model="noop"', 'status="INVALID_ARGUMENT"') == 1)


def test_what_clients_give_up_is_told_from_what_came_too_late(stub, tap, server):
    call = stub.ModelInfer.future(request_of("held", value=7.0))
    until(lambda: tap.value("rrl_in_flight_request_count", 'model="held"') == 1)
    call.cancel()
    until(lambda: tap.value("rrl_tap_requests", 'model="held"', 'status="CANCELLED"') == 1)
    with pytest.raises(grpc.RpcError, match=r"(?i)deadline"):
        stub.ModelInfer(request_of("held", value=7.0), timeout=1.0)
    until(lambda: tap.value("rrl_tap_requests", 'model="held"', 'status="DEADLINE_EXCEEDED"') == 1)


def test_a_percentile_does_not_leave_out_what_came_too_late(stub, tap, gate):
    target = OpenInferenceTarget(tap.address, model="held", metrics_url=tap.metrics_url)
    target.connect()
    try:
        gate.touch()  # also for what other tests have left
        stub.ModelInfer(request_of("held", value=7.0))
        gate.unlink()
        before = target.read()
        for _ in range(16):
            stub.ModelInfer(request_of("held"))
        for _ in range(4):
            with pytest.raises(grpc.RpcError, match=r"(?i)deadline"):
                stub.ModelInfer(request_of("held", value=7.0), timeout=1.0)
        until(lambda: tap.value("rrl_in_flight_request_count", 'model="held"') == 0)
        measured = measure(before, target.read())
    finally:
        gate.unlink(missing_ok=True)
        target.close()
    assert measured.latency.p50_ms < 1000
    assert slo_violated(measured, slo_p95_ms=1000)


def test_what_a_dead_server_leaves_is_no_fault_of_its_clients(server, gate):
    held = ("--model", "tests.support.models.gated:held", "--model-option", f"held.gate={gate}")
    dying = start(*held, "--intra-op-threads", 1)
    other = tapped(dying.address, server.metrics_url)
    try:
        with grpc.insecure_channel(other.address) as channel:
            infer = GRPCInferenceServiceStub(channel).ModelInfer
            calls = [infer.future(request_of("held", value=7.0)) for _ in range(5)]
            until(lambda: other.value("rrl_in_flight_request_count", 'model="held"') == 5)
            dying.process.kill()
            assert {call.code() for call in calls} == {grpc.StatusCode.UNAVAILABLE}
            until(lambda: other.value("rrl_in_flight_request_count", 'model="held"') == 0)
        assert other.value("rrl_tap_requests", 'model="held"', 'status="UNAVAILABLE"') == 5
        assert other.value("rrl_tap_requests") == 5
    finally:
        ended(other)
        dying.process.kill()
        dying.process.wait(30)
        assert dying.process.stdout is not None
        dying.process.stdout.close()


def test_a_tap_ends_once_what_is_under_way_is_answered(server, gate):
    other = tapped(server.address, server.metrics_url)
    try:
        with grpc.insecure_channel(other.address) as channel:
            call = GRPCInferenceServiceStub(channel).ModelInfer.future(request_of("held", value=7.0))
            until(lambda: other.value("rrl_in_flight_request_count", 'model="held"') == 1)
            other.process.terminate()
            until(lambda: refuses(other.address))
            assert not call.done()
            gate.touch()
            assert call.result().raw_output_contents[0] == request_of(value=7.0).raw_input_contents[0]
        assert other.process.wait(30) == 0
    finally:
        gate.unlink(missing_ok=True)
        ended(other)


def refuses(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) != 0


def test_the_tuner_reads_percentiles_from_the_page(stub, tap):
    for _ in range(5):
        stub.ModelInfer(request_of())
    target = OpenInferenceTarget(tap.address, model="noop", metrics_url=tap.metrics_url)
    target.connect()
    reading = target.read()
    assert reading.latency is not None
    assert reading.success > 0


def test_what_is_no_http2_is_handed_on_and_not_counted(tap):
    listener = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    thread = threading.Thread(target=echo)
    thread.start()
    other = tapped(f"127.0.0.1:{listener.getsockname()[1]}", tap.metrics_url)
    try:
        host, _, port = other.address.rpartition(":")
        sent = b"\x16\x03\x01" + bytes(range(256)) * 4096
        with socket.create_connection((host, int(port))) as client:

            def send() -> None:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)

            sending = threading.Thread(target=send)
            sending.start()
            received = b""
            while data := client.recv(1 << 16):
                received += data
            sending.join()
        assert received == sent
        assert other.value("rrl_tap_unwatched_connections") == 1
    finally:
        ended(other)
        thread.join()
        listener.close()


def test_a_server_that_is_not_there_is_told(tap):
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    other = tapped(f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/metrics")
    try:
        with grpc.insecure_channel(other.address) as channel, pytest.raises(grpc.RpcError) as refused:
            GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(urllib.error.HTTPError, match="502"):
            other.page()
    finally:
        ended(other)


def test_an_interceptor_counts_the_same_within_a_client(server):
    tally = ClientTally()
    port = serve_tally(tally, 0, server.metrics_url)
    with grpc.insecure_channel(server.address) as plain:
        stub = GRPCInferenceServiceStub(grpc.intercept_channel(plain, LatencyInterceptor(tally)))
        stub.ModelInfer(request_of())
        with pytest.raises(grpc.RpcError):
            stub.ModelInfer(pb.ModelInferRequest(model_name="nobody"))
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    assert 'rrl_tap_requests{model="noop",status="OK"} 1' in page
    assert 'rrl_tap_requests{model="nobody",status="NOT_FOUND"} 1' in page
    assert "nv_inference_request_success" in page


def test_a_client_of_tritonclient_is_counted_by_one_call(server, gate):
    tally = ClientTally()
    item = triton.InferInput("x", [1, 16], "FP32")
    item.set_data_from_numpy(np.ones((1, 16), np.float32))
    with triton.InferenceServerClient(server.address) as client:
        count_requests_of(client, tally)
        assert client.infer("noop", [item]).as_numpy("y").tolist() == [[1.0] * 16]
        answers: Queue[object] = Queue()
        client.async_infer("noop", [item], lambda result, error: answers.put(error))
        assert answers.get(timeout=60) is None
        until(lambda: tally.ended["noop"] == {"OK": 2})
        item.set_data_from_numpy(np.full((1, 16), 7.0, np.float32))
        with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
            client.infer("held", [item], client_timeout=0.5)
    until(lambda: tally.ended["held"] == {"DEADLINE_EXCEEDED": 1})
    assert tally.latency["held"].sum_s > 0.5
    assert tally.under_way.total() == 0


def test_a_client_of_another_kind_is_refused():
    client = http_triton.InferenceServerClient("localhost:1")
    with pytest.raises(TypeError, match=r"must be a .*InferenceServerClient, got tritonclient.http"):
        count_requests_of(client, ClientTally())
    client.close()
