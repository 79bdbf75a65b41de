"""Hostile requests over gRPC are refused with a sentence."""

from __future__ import annotations

import contextlib
import random
import socket

import grpc
import pytest

from serving_adapter import messages
from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from tests.support.pipes import line_of
from tests.support.stores.running_store import Seen, script
from tests.support.waiting import until


def test_random_bytes_on_the_rpc_socket_disturb_nobody(unharmed):
    randomly = random.Random(0)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for i in range(60):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(unharmed.endpoint.rpc))
            with contextlib.suppress(BrokenPipeError):
                sock.sendall((preface if i % 2 else b"") + randomly.randbytes(randomly.randrange(1, 100_000)))
            if i % 3 == 0:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)


def test_random_bytes_as_requests_are_refused(unharmed):
    randomly = random.Random(0)
    with grpc.insecure_channel(f"unix:{unharmed.endpoint.rpc}") as channel:
        for method in ("Open", "Close", "List", "Pin", "Evict", "Stats", "Nothing"):
            call = channel.unary_unary(f"/rrl.model_store.ModelStore/{method}")
            for size in (1, 10, 1000, 60_000, 1 << 20):
                with contextlib.suppress(grpc.RpcError):
                    call(randomly.randbytes(size), timeout=10)


def test_hostile_requests_are_refused_with_a_sentence(unharmed):
    sock, session = unharmed.session()
    addresses = [
        pb.Address(),
        pb.Address(name="../../etc/passwd", version="1"),
        pb.Address(name="/etc/passwd", version="1"),
        pb.Address(name="served", version="../1"),
        pb.Address(name="served", version="1/../1"),
        pb.Address(name="served\0", version="1"),
        pb.Address(name="x" * 60_000, version="1"),
        pb.Address(name="served", version="1", namespace="pickle"),
        pb.Address(name="[/red]", version="1"),
    ]
    with contextlib.closing(sock), unharmed.stub() as stub:
        for address in addresses:
            for method, request in (
                ("Open", pb.OpenRequest(session=session, address=address)),
                ("Pin", pb.PinRequest(address=address, pinned=True)),
                ("Evict", pb.EvictRequest(address=address)),
                ("Evict", pb.EvictRequest(address=address, tier="nowhere" * 100)),
            ):
                with pytest.raises(grpc.RpcError) as refused:
                    getattr(stub, method)(request, timeout=10)
                assert refused.value.code() in (
                    grpc.StatusCode.NOT_FOUND,
                    grpc.StatusCode.FAILED_PRECONDITION,
                    grpc.StatusCode.INVALID_ARGUMENT,
                ), (method, address)
        request = pb.OpenRequest(
            session=session, address=pb.Address(name="served"), device="cuda:" + "9" * 50
        )
        with pytest.raises(grpc.RpcError, match="cannot open models on"):
            stub.Open(request)


def test_nobody_opens_without_a_session(unharmed):
    with unharmed.stub() as stub:
        for session in ("", "x", "0" * 32):
            with pytest.raises(grpc.RpcError, match="no such session"):
                stub.Open(pb.OpenRequest(session=session, address=pb.Address(name="served")))
            with pytest.raises(grpc.RpcError, match="no such session"):
                stub.Close(pb.CloseRequest(session=session, lease="x"))


def test_leases_of_others_cannot_be_closed(unharmed):
    """A client is a process: another one is needed for a lease of somebody else's."""
    text = """
import sys
from pathlib import Path
from serving_adapter.model_store import Client
from serving_adapter.model_store.endpoint import Endpoint
with Client(Endpoint(Path(sys.argv[1])), starts_store=False) as client:
    opened = client.open("served")
    print(opened.lease, flush=True)
    sys.stdin.read()
"""
    sock, session = unharmed.session()
    with script(text, unharmed.folder) as other, contextlib.closing(sock), unharmed.stub() as stub:
        theirs = line_of(other).strip()
        for lease in (theirs, theirs[:-1], "", "x" * 10_000):
            with pytest.raises(grpc.RpcError, match="no lease"):
                stub.Close(pb.CloseRequest(session=session, lease=lease))
        with unharmed.client() as client:
            (model,) = (m for m in Seen(client).models() if m.address.name == "served")
            assert model.references == 1
            with pytest.raises(StoreError, match="in use"):
                client.call("Evict", pb.EvictRequest(address=pb.Address(name="served")))


def test_a_ticket_without_a_descriptor_is_refused_while_others_are_served(unharmed):
    sock, session = unharmed.session()
    with contextlib.closing(sock), unharmed.stub() as stub:
        address = pb.Address(name="x")
        requests = [pb.OpenRequest(session=session, ticket=f"never {i}", address=address) for i in range(200)]
        waiting = [stub.Open.future(request) for request in requests]
        unharmed.good.is_served_again()
        for call in waiting:
            with pytest.raises(grpc.RpcError, match="no file descriptor came"):
                call.result(30)


def test_a_client_that_leaves_while_its_ticket_is_awaited_leaves_nothing(unharmed):
    with unharmed.stub() as stub:
        for _ in range(20):
            sock, session = unharmed.session()
            request = pb.OpenRequest(session=session, ticket="never", address=pb.Address(name="x"))
            call = stub.Open.future(request)
            sock.close()
            with pytest.raises(grpc.RpcError):
                call.result(30)


METHODS = ("Open", "Close", "List", "Pin", "Evict", "Stats")


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message_are_refused_with_a_sentence(unharmed, method):
    with grpc.insecure_channel(f"unix:{unharmed.endpoint.rpc}") as channel:
        call = channel.unary_unary(f"/rrl.model_store.ModelStore/{method}")
        with pytest.raises(grpc.RpcError, match=f"no message for .*{method}") as refused:
            call(b"\x0a\xff", timeout=10)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["x" * 60_000, "中" * 9_000])
def test_long_names_come_back_in_short_sentences(unharmed, name):
    with unharmed.stub() as stub:
        for address in (pb.Address(name="served", namespace=name), pb.Address(name=name)):
            with pytest.raises(grpc.RpcError) as refused:
                stub.Pin(pb.PinRequest(address=address, pinned=True), timeout=10)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            assert 10 < len(refused.value.details()) < 1000


def test_calls_that_wait_for_one_ticket_do_not_take_it_from_each_other(unharmed, good_file):
    sock, session = unharmed.session()
    request = pb.OpenRequest(session=session, ticket="t", address=pb.Address(name="x"))
    with contextlib.closing(sock), unharmed.stub() as stub, good_file.open("rb") as file:
        both = [stub.Open.future(request, timeout=30) for _ in range(2)]
        until(lambda: any(call.done() for call in both), "one of them is refused")
        refused, answered = sorted(both, key=lambda call: not call.done())
        assert "another call waits for this ticket" in refused.exception().details()
        messages.send(sock, {"ticket": "t"}, (file.fileno(),))
        assert answered.result().lease


def test_a_lease_that_its_client_gave_up_waiting_for_is_given_back(unharmed):
    """Its descriptors find no room in a connection that nobody reads."""
    sock, session = unharmed.session()
    request = pb.OpenRequest(session=session, address=pb.Address(name="served"))
    with contextlib.closing(sock), unharmed.stub() as stub, unharmed.client() as client:
        opened: list[str] = []

        def open_many() -> None:
            while len(opened) < 10_000:
                opened.append(stub.Open(request, timeout=1.0).lease)

        with pytest.raises(grpc.RpcError) as given_up:
            open_many()
        assert given_up.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: Seen(client).stats().references == len(opened), "the last lease is given back")
