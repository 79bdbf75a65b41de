"""What the server's port bears, whom it lets in, and from which moment on it answers."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain
from typing import BinaryIO

import grpc
import psutil
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.server.options import ServeOptions
from serving_adapter.server.protocol import listening
from serving_adapter.target import OpenInferenceTarget
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import until

SERVE = [sys.executable, "-m", "serving_adapter.server.command_line"]
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GO_AWAY = 4, 6, 7  # types of HTTP/2 frames


def frame(kind: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, 0, 0) + content


def read_frame(stream: BinaryIO) -> tuple[int, bytes]:
    head = stream.read(9)
    return head[3], stream.read(int.from_bytes(head[:3], "big"))


def request(model: str) -> pb.ModelInferRequest:
    asked = pb.ModelInferRequest(model_name=model)
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    asked.raw_input_contents.append(bytes(64))
    return asked


HEALTH_OF = ("", "inference.GRPCInferenceService", "gated")


def health(channel: grpc.Channel, service: str) -> bytes:
    """The answer to a probe, in which field 1 is 1 for SERVING and 2 for NOT_SERVING."""
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    return bytes(check(b"\x0a" + bytes([len(service)]) + service.encode() if service else b"", timeout=30))


def test_a_probe_of_what_there_is_not_is_refused_in_a_sentence(server):
    with grpc.insecure_channel(server.address) as channel:
        assert health(channel, "") == b"\x08\x01"
        with pytest.raises(grpc.RpcError, match="unknown service 'another'; ask for a model") as refused:
            health(channel, "another")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError, match="these bytes are no") as refused:
            check(b"\xff\xff", timeout=30)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_watch_of_what_there_is_not_tells_that(server):
    with grpc.insecure_channel(server.address) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        assert next(watch(b"\x0a\x07another", timeout=60)) == b"\x08\x03"


def test_reflection_tells_the_protocol(server):
    with grpc.insecure_channel(server.address) as channel:
        told = ProtoReflectionDescriptorDatabase(channel)
        assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(told.get_services())
        described = told.FindFileContainingSymbol("inference.GRPCInferenceService")
        assert "ModelInfer" in {method.name for method in described.service[0].method}


def test_pings_one_after_the_other_on_a_connection_that_carries_nothing_are_all_answered(server):
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(HTTP2_PREFACE + frame(SETTINGS))
        with connection.makefile("rb") as stream:
            for number in range(20):
                connection.sendall(frame(PING, number.to_bytes(8, "big")))
                kind, content = read_frame(stream)
                while kind != PING:
                    assert kind != GO_AWAY, content
                    kind, content = read_frame(stream)
                assert int.from_bytes(content, "big") == number


def test_it_lives_and_is_not_ready_before_its_model_is_built(tmp_path):
    gate = tmp_path / "gate"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = ("--model", "tests.support.models.gated:gated", "--model-option", f"gate={gate}")
    process = subprocess.Popen([*SERVE, *model, "--port", str(port), "--metrics-port", "0"])
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = GRPCInferenceServiceStub(channel)
            assert stub.ServerLive(pb.ServerLiveRequest(), timeout=30, wait_for_ready=True).live
            assert not stub.ServerReady(pb.ServerReadyRequest(), timeout=30).ready
            assert not stub.ModelReady(pb.ModelReadyRequest(name="gated"), timeout=30).ready
            assert [health(channel, name) for name in HEALTH_OF] == [b"\x08\x02"] * len(HEALTH_OF)
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=60)
            assert next(watch) == b"\x08\x02"
            load = pb.RepositoryModelLoadRequest(model_name="gated")
            for call, asked in ((stub.ModelInfer, request("gated")), (stub.RepositoryModelLoad, load)):
                with pytest.raises(grpc.RpcError, match="'gated' is starting") as refused:
                    call(asked, timeout=30)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            gate.touch()
            until(lambda: stub.ServerReady(pb.ServerReadyRequest(), timeout=30).ready)
            assert [health(channel, name) for name in HEALTH_OF] == [b"\x08\x01"] * len(HEALTH_OF)
            assert next(watch) == b"\x08\x01"
            assert len(stub.ModelInfer(request("gated"), timeout=30).outputs) == 1
    finally:
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize(("flag", "does"), [("--port", "listen"), ("--metrics-port", "serve metrics")])
def test_a_port_of_another_server_is_refused_in_one_sentence(server, flag, does):
    """`localhost` may have another address, where the port is free. It is not shared for all that."""
    port = server.address.rpartition(":")[2]
    ports = {"--port": "0", "--metrics-port": "0"} | {flag: port}
    command = [*SERVE, "--model", "noop", "--host", "localhost", *chain.from_iterable(ports.items())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    (sentence,) = ended.stderr.splitlines()
    assert f"cannot {does} on localhost:{port} (Address already in use); choose another {flag}" in sentence


def test_a_port_is_free_only_if_no_address_of_the_host_has_it_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "0.0.0.0"):
            with pytest.raises(OSError, match="Address already in use"):
                listening.check_free(host, port)
        listening.check_free("127.0.0.2", port)
    listening.check_free("localhost", port)


def test_a_host_that_is_not_this_machine_is_told_why():
    with pytest.raises(OSError, match="Cannot assign requested address"):
        listening.check_free("192.0.2.1", 0)


def test_compressed_requests_are_refused_by_name(server):
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as refused:
        GRPCInferenceServiceStub(channel).ModelInfer(request("sleep"), compression=grpc.Compression.Gzip)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "gzip" in refused.value.details()


def test_it_does_not_listen_beyond_loopback_with_its_control_open():
    command = [*SERVE, "--model", "noop", "--host", "0.0.0.0", "--port", "0", "--metrics-port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert (
        "everybody who does could change its configuration; lock that with --control-key-file" in ended.stderr
    )


def test_a_host_that_cannot_be_looked_up_is_refused_with_its_name(capsys):
    with pytest.raises(SystemExit):
        listening.check_locked("::%lo", None, has_tls=False)
    assert "--host '::%lo' is no address or name that can be looked up" in capsys.readouterr().err


def test_a_tls_file_that_cannot_be_read_is_named(tmp_path, capsys):
    async def bound():
        listening.bind(grpc.aio.server(), "127.0.0.1", 0, tmp_path / "cert.pem", tmp_path / "key.pem")

    with pytest.raises(SystemExit):
        asyncio.run(bound())
    said = f"cannot read the TLS file {tmp_path / 'key.pem'}: No such file or directory; give PEM files"
    assert said in capsys.readouterr().err


def test_with_a_key_it_listens_beyond_loopback_and_nothing_it_starts_inherits_the_key(
    start_server, monkeypatch
):
    monkeypatch.setenv(listening.KEY_VARIABLE, "secret")
    server = start_server("--model", "noop", "--host", "0.0.0.0")
    with grpc.insecure_channel(server.address.replace("0.0.0.0", "127.0.0.1")) as channel:
        stub = GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="control of this server is locked"):
            stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="noop"), timeout=30)
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert children
    assert not [child for child in children if listening.KEY_VARIABLE in child.environ()]


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
def test_what_a_server_on_ipv6_prints_can_be_called(start_server):
    server = start_server("--model", "noop", "--host", "::1")
    with closing(OpenInferenceTarget(server.address, metrics_url=server.metrics_url)) as target:
        target.connect()
        assert target.address == server.address
        assert target.read().cores
    with urllib.request.urlopen(f"{server.rest_url}/health/ready", timeout=60) as answer:
        assert answer.status == 200


@pytest.fixture(scope="module")
def strict_server() -> Iterator[RunningServer]:
    """One that pings soon, and bears few pings itself."""
    bears = ("--grpc-http2-max-ping-strikes", 1, "--grpc-http2-min-recv-ping-interval-without-data", 60_000)
    server = start("--model", "noop", "--grpc-keepalive-time", 1000, *bears)
    yield server
    server.stop()
    assert server.process.stdout is not None
    server.process.stdout.close()


@contextmanager
def http2_of(server: RunningServer) -> Iterator[tuple[socket.socket, BinaryIO]]:
    """A connection that has said which protocol it speaks, and what the server sends."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(HTTP2_PREFACE + frame(SETTINGS))
        with connection.makefile("rb") as stream:
            yield connection, stream


def test_a_silent_connection_is_pinged_as_soon_as_the_server_is_told(strict_server):
    with http2_of(strict_server) as (_, stream):
        while read_frame(stream)[0] != PING:
            pass


def test_a_client_that_pings_too_often_is_told_to_go_where_the_server_is_told_to_count(strict_server):
    with http2_of(strict_server) as (connection, stream):
        connection.sendall(b"".join(frame(PING, bytes(8)) for _ in range(10)))
        kind, content = read_frame(stream)
        while kind != GO_AWAY:
            kind, content = read_frame(stream)
    assert b"too_many_pings" in content


@pytest.mark.parametrize(
    ("name", "value"), [("grpc_keepalive_time", 0), ("grpc_http2_max_ping_strikes", 1 << 31)]
)
def test_numbers_of_pings_that_grpc_does_not_take_are_refused(name, value):
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} must be a whole number from"):
        ServeOptions(**{name: value})


def test_a_key_that_others_may_read_is_noted(tmp_path, caplog):
    key = tmp_path / "key"
    key.write_text("secret\n")
    key.chmod(0o644)
    assert listening.control_key(key) == "secret"
    assert "chmod 600" in caplog.text
    caplog.clear()
    os.chmod(key, 0o600)
    assert listening.control_key(key) == "secret"
    assert not caplog.text


def test_a_private_key_that_others_may_read_is_noted(tmp_path, caplog):
    key = tmp_path / "key.pem"
    key.touch(0o644)
    with pytest.raises(SystemExit):
        listening.bind(None, "127.0.0.1", 0, tmp_path / "absent.pem", key)
    assert f"others than its owner may read {key}; close it with chmod 600" in caplog.text


def test_descriptors_are_allowed_for_many_connections_whatever_the_shell_allows():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = ["bash", "-c", 'ulimit -Sn 256; exec "$@"', "-"]
    server = start("--model", "noop", before=few)
    with server.process:
        allowed = psutil.Process(server.process.pid).rlimit(psutil.RLIMIT_NOFILE)[0]
        assert server.stop() == 0
    assert allowed == min(hard, listening.MAX_DESCRIPTORS)


def test_a_server_listens_with_the_largest_limits_that_its_options_take():
    options = ServeOptions(max_message_bytes=1 << 30, max_queue_size=1_000_000)
    models = 1000

    async def listen() -> None:
        most_calls = listening.most_calls(models * options.max_queue_size)
        server = listening.grpc_server(options.max_message_bytes, most_calls, options)
        assert listening.bind(server, "127.0.0.1", 0, None, None)
        await server.start()
        await server.stop(None)

    asyncio.run(listen())


def test_a_key_that_no_header_can_carry_is_refused(tmp_path, capsys):
    key = tmp_path / "key"
    key.write_text("geheim\N{SNOWMAN}")
    with pytest.raises(SystemExit):
        listening.control_key(key)
    assert "must be printable ASCII" in capsys.readouterr().err
