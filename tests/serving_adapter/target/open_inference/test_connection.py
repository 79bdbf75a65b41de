"""Addresses where no target answers, and targets that are lost."""

import socket
import threading
from collections import Counter
from concurrent import futures
from contextlib import contextmanager

import grpc
import hpack
import pytest
from tritonclient.grpc import service_pb2 as messages

from serving_adapter.tap.frames import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    FrameReader,
)
from serving_adapter.target import TargetError, TargetLost
from serving_adapter.target.open_inference.connection import MAX_IDLE_S, Connection
from tests.support.servers.fake_triton import Triton, serve


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1:1", r"does not answer \(connection refused\); start the server"),
        ("no-such-host.invalid:8500", r"does not answer \(domain name not found\)"),
        ("localhost", "must be HOST:PORT, e.g. localhost:8500 or .* got 'localhost'"),
        ("localhost:http", "must be HOST:PORT"),
        ("localhost:99999", "must be HOST:PORT"),
        ("http://localhost:8001", "must be HOST:PORT"),
    ],
)
def test_an_address_where_nothing_answers(make_target, address, says):
    with pytest.raises(TargetError, match=says):
        make_target(address, timeout_s=60.0).connect()  # a name may take long


def test_a_metrics_port_is_told_from_a_grpc_port(metrics, make_target):
    with pytest.raises(TargetError, match="answers, but not gRPC: it looks like an HTTP or metrics port"):
        make_target(f"127.0.0.1:{metrics.server_port}").connect()


def test_a_grpc_server_of_another_service(make_target):
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pytest.raises(TargetError, match="speaks gRPC but does not know ServerMetadata"):
        make_target(f"127.0.0.1:{port}").connect()
    server.stop(None).wait()


def test_tls_asked_of_a_server_without(triton, make_target, tmp_path):
    with pytest.raises(TargetError, match=r"cannot read the TLS certificates .*; give a PEM file"):
        make_target(triton.address, tls_ca=str(tmp_path / "none.pem")).connect()


def test_calls_before_connect_are_refused(make_target):
    with pytest.raises(TargetError, match="call connect"):
        make_target("127.0.0.1:1").read()


def test_a_target_that_disappears_is_lost_and_found_again(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.server.stop(None).wait()
    with pytest.raises(TargetLost, match="is lost"):
        target.read()
    with pytest.raises(TargetError, match="does not answer"):
        target.connect()
    again, _ = serve(triton, int(triton.address.rpartition(":")[2]))
    again.start()
    target.connect()
    assert target.read().success == 10
    again.stop(None).wait()


def test_a_model_unloaded_in_mid_run_is_lost(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.configs.clear()
    with pytest.raises(TargetLost):
        target.configuration()


def test_the_model_stays_the_one_that_was_taken_when_there_are_others(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.configs["another"] = triton.configs["m"]
    target.connect()
    assert target.model == "m"
    del triton.configs["m"]
    with pytest.raises(TargetError, match="model 'm' is not there"):
        target.connect()


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def reset(error):
    return lambda stream: frame(RST_STREAM, 0, stream, error.to_bytes(4))


def http_status(status):
    block = hpack.Encoder().encode([(":status", status), ("content-type", "text/html")])
    return lambda stream: frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


@contextmanager
def balancer(answer):
    """Speaks HTTP/2 in the place of a server, and answers the first call by these frames."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_one():
            connection, _ = server.accept()
            with connection:
                connection.sendall(frame(SETTINGS, 0, 0))
                frames = FrameReader(PREFACE)
                while data := connection.recv(1 << 16):
                    for each in frames.read(data):
                        if each.kind == HEADERS:
                            connection.sendall(answer(each.stream))

        thread = threading.Thread(target=answer_one)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [reset(0), reset(2), reset(7), reset(11), http_status("404"), http_status("500"), http_status("503")],
    ids=["no_error", "internal_error", "refused_stream", "calm", "404", "500", "503"],
)
def test_a_known_target_whose_balancer_ends_a_call_is_lost(answer):
    with balancer(answer) as address:
        connection = Connection(address, True, 20.0, Counter())
        connection.known = True
        with pytest.raises(TargetLost, match=f"the target {address} is lost"):
            connection.call("ServerMetadata", messages.ServerMetadataRequest())
        connection.close()


class Peers(Triton):
    """Notes from which connections it is asked."""

    def __init__(self):
        super().__init__()
        self.peers = []

    def ServerMetadata(self, request, context):
        self.peers.append(context.peer())
        return super().ServerMetadata(request, context)


def test_after_a_silence_a_call_goes_over_a_new_connection_as_balancers_forget_old_ones():
    peers, now_s = Peers(), [0.0]
    server, port = serve(peers)
    server.start()
    connection = Connection(f"127.0.0.1:{port}", True, 20.0, Counter(), clock_s=lambda: now_s[0])
    for silence_s in (0.0, MAX_IDLE_S, MAX_IDLE_S + 1, 1.0):
        now_s[0] += silence_s
        connection.call("ServerMetadata", messages.ServerMetadataRequest())
    connection.close()
    server.stop(None).wait()
    first, second, third, fourth = peers.peers
    assert first == second != third == fourth
