"""Hostile requests over gRPC are refused with a sentence."""

from __future__ import annotations

import contextlib
import random
import socket

import grpc
import pytest

from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from tests.support.pipes import line_of
from tests.support.running_store import Seen, script


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
        request = pb.OpenRequest(session=session, ticket="never", address=pb.Address(name="x"))
        waiting = [stub.Open.future(request) for _ in range(200)]
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
