"""A server that is told to stop ends in order at any moment, and at once when it is told twice.

Which signals tell it is tested without a server.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import urllib.request

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.server import command_line
from tests.support.waiting import eventually, until

SERVE = [sys.executable, "-m", "serving_adapter.server.command_line", "--port", "0", "--metrics-port", "0"]


HANGS = 13.0


def request_of(value: float) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="sleep")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(np.full((1, 16), value, np.float32).tobytes())
    return request


def test_a_start_is_broken_off_whatever_the_model_does(tmp_path):
    begun = tmp_path / "begun"
    model = ["--model", "tests.support.models.fragile:never_built", "--model-option", f"tells={begun}"]
    process = subprocess.Popen([*SERVE, *model], stdout=subprocess.PIPE, text=True)
    try:
        until(begun.exists)
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
        assert not psutil.wait_procs(family, timeout=10)[1]
        assert process.communicate()[0] == ""
    finally:
        process.kill()


def test_a_model_that_takes_too_long_to_be_built_is_given_up_with_what_to_do(tmp_path):
    model = [
        "--model",
        "tests.support.models.fragile:never_built",
        "--model-option",
        f"tells={tmp_path / 'x'}",
    ]
    ended = subprocess.run(
        [*SERVE, *model, "--start-timeout-s", "1"], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    says = "was not built within 1 s; raise --start-timeout-s if it needs longer"
    assert says in ended.stderr.splitlines()[-1]


def test_a_start_that_takes_long_says_what_it_waits_for(monkeypatch, caplog):
    class Slow:
        name = "bert"

        async def start(self) -> None:
            await eventually(lambda: "model bert is still being built" in caplog.text)

    monkeypatch.setattr(command_line, "SLOW_START_S", 0.0)
    caplog.set_level("INFO")
    asyncio.run(command_line._started(Slow()))  # type: ignore[arg-type]


@pytest.fixture
def busy(start_server):
    """A server with a request in flight, which takes half a second or for ever."""

    def start(value: float):
        options = ("--model-option", "ms=500", "--model-option", f"hang_on={HANGS:g}")
        server = start_server("--model", "sleep", *options)
        channel = grpc.insecure_channel(server.address)
        channels.append(channel)
        stub = GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer.future(request_of(value), timeout=60)
        until(lambda: _received(server) == 1)
        return server, answer

    channels: list[grpc.Channel] = []
    yield start
    for channel in channels:
        channel.close()


def _received(server) -> float:
    page = urllib.request.urlopen(server.metrics_url, timeout=10).read().decode()
    rows = [row for row in page.splitlines() if row.startswith("rrl_in_flight_request_count{")]
    return sum(float(row.rpartition(" ")[2]) for row in rows)


def value_of(answer) -> float:
    return float(np.frombuffer(answer.result().raw_output_contents[0], np.float32)[0])


def test_told_twice_it_ends_at_once_and_takes_its_processes_along(busy):
    server, _ = busy(HANGS)
    family = psutil.Process(server.process.pid).children(recursive=True)
    server.process.terminate()
    assert server.process.stdout.readline().startswith("draining")
    server.process.terminate()
    assert server.process.wait(10) == -signal.SIGTERM
    assert not psutil.wait_procs(family, timeout=10)[1]


def test_a_closed_terminal_with_its_pipe_loses_no_request(busy):
    server, answer = busy(7.0)
    server.process.stdout.close()
    for _ in range(2):  # from the terminal and from its shell
        server.process.send_signal(signal.SIGHUP)
    assert value_of(answer) == 7.0
    assert server.process.wait(30) == 0


def test_a_recording_that_cannot_be_written_is_said_to_be_lost(start_server, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    server = start_server("--model", "sleep", "--record", folder / "requests.npz")
    with grpc.insecure_channel(server.address) as channel:
        GRPCInferenceServiceStub(channel).ModelInfer(request_of(1.0), timeout=60)
    folder.rmdir()
    assert server.stop() == 1
    assert "the recorded requests are lost: cannot read or write" in server.process.stdout.read()
