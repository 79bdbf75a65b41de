"""Too many, half-closed and silent connections leave room for others."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading

import grpc
import pytest

from serving_adapter import messages
from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from tests.support.pipes import line_of
from tests.support.stores.hostile_clients import ended_by_store, open_and_check
from tests.support.stores.running_store import RunningStore, Seen, script
from tests.support.waiting import until

A_THOUSAND = 1000
MAX_CONNECTIONS_A_PROCESS = 16


@pytest.mark.parametrize("how", [socket.SHUT_WR, socket.SHUT_RD, socket.SHUT_RDWR])
def test_a_half_closed_connection_gives_its_references_back(unharmed, good_file, how):
    sock, session = unharmed.session()
    with contextlib.closing(sock), unharmed.stub() as stub, good_file.open("rb") as file:
        messages.send(sock, {"ticket": "t"}, (file.fileno(),))
        request = pb.OpenRequest(session=session, ticket="t", address=pb.Address(name="x"))
        stub.Open(request)
        sock.shutdown(how)
        request.ticket = ""  # what the store would answer goes nowhere
        request.address.name = "served"
        with contextlib.suppress(grpc.RpcError):
            stub.Open(request)
        sock.close()


def test_a_half_closed_greeting_is_ended(unharmed):
    with contextlib.closing(unharmed.raw()) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert ended_by_store(sock)


def test_a_thousand_connections_from_one_process_leave_room_for_others(unharmed):
    socks = []
    for _ in range(A_THOUSAND):
        sock = unharmed.raw()
        socks.append(sock)
    admitted = [messages.receive(sock) or {"error": "gone"} for sock in socks]
    assert sum("session" in answer for answer in admitted) <= MAX_CONNECTIONS_A_PROCESS
    unharmed.good.is_served_again()
    for sock in socks:
        sock.close()


def test_a_thousand_connections_that_say_nothing_leave_room_for_others(unharmed):
    text = """
import socket, sys
socks = []
for _ in range(1000):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(sys.argv[1])
    socks.append(sock)
print("connected", flush=True)
sys.stdin.read()
"""
    with script(text, unharmed.endpoint.descriptors) as hostile:
        assert line_of(hostile)
        unharmed.good.is_served_again()


def test_a_client_waits_its_turn_while_the_store_is_overrun_with_connections(running, good_file):
    """The kernel refuses to queue more than the backlog of a store that is busy for a moment."""
    socks = []
    running.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(300):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.setblocking(False)
            socks.append(sock)
            try:
                sock.connect(str(running.endpoint.descriptors))
            except BlockingIOError:
                break
        else:
            pytest.skip("this kernel queues 300 connections")
        failures: list[BaseException] = []

        def good() -> None:
            try:
                with running.client() as client:
                    open_and_check(client, good_file)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=good, daemon=True)
        thread.start()
        thread.join(0.3)  # no matter how long: it must not have given up
    finally:
        running.process.send_signal(signal.SIGCONT)
        for sock in socks:
            sock.close()
    thread.join(30)
    assert not failures


def test_a_refused_connection_is_told_why(running):
    """Whatever comes first: the client's greeting or the store's refusal."""
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS_A_PROCESS):
            stack.enter_context(contextlib.closing(running.raw()))
        for _ in range(50):
            with pytest.raises(StoreError, match="this process has 16 connections"):
                running.client().open("net")
    until(lambda: "connections" not in refusal_of_nothing(running), "the connections are let go")


def refusal_of_nothing(store: RunningStore) -> str:
    """What a client is told that asks for what there is not."""
    with pytest.raises(StoreError) as refused, store.client() as client:
        client.open("net")
    return str(refused.value)


def test_a_thousand_rpc_connections_that_say_nothing_are_put_up_with(unharmed):
    socks = []
    for _ in range(A_THOUSAND):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(10)
        with contextlib.suppress(BlockingIOError):
            sock.connect(str(unharmed.endpoint.rpc))
        socks.append(sock)
    unharmed.good.is_served_again()
    with unharmed.client() as late:
        assert Seen(late).references >= 0
    for sock in socks:
        sock.close()
