"""What a hostile client does hurts nobody else, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest
import torch
from running_store import (
    RunningStore,
    Seen,
    in_repository,
    rrl_store,
    saved,
    script,
    some_weights,
    stores,
    until,
    with_header,
)

from serving_adapter import messages
from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.tensors import state_dict

A_THOUSAND = 1000
MAX_CONNECTIONS_A_PROCESS = 16


@pytest.fixture(scope="module")
def good_file(tmp_path_factory):
    return saved(some_weights(), tmp_path_factory.mktemp("weights") / "good.safetensors")


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[RunningStore]:
    root = tmp_path_factory.mktemp("repository")
    in_repository(root, "served", "1", some_weights(seed=1))
    with stores(tmp_path_factory.mktemp("store")) as start:
        yield start("--remote", f"file://{root}", "--client-quota", "64M")


@pytest.fixture
def start_store(tmp_path):
    with stores(tmp_path) as start:
        yield start


GOOD_CLIENT = """
import sys
from pathlib import Path
import torch
from running_store import some_weights
from serving_adapter.model_store import Client
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.tensors import state_dict
endpoint, path, expected = Endpoint(Path(sys.argv[1])), Path(sys.argv[2]), some_weights()
for _ in sys.stdin:
    with Client(endpoint, starts_store=False) as client, path.open("rb") as file:
        weights = state_dict(client.open_file(file, "good"))
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
        del weights
    print("good", flush=True)
"""


class GoodClient:
    """A process that connects, opens, checks every byte, closes and disconnects, again and again."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.rounds, self.fails = 0, False
        self._process, self._pause = process, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._pause.is_set():
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            if self._process.stdout.readline() != "good\n":
                self.fails = True
                self._process.wait()
                return
            self.rounds += 1

    def __enter__(self) -> GoodClient:
        self._thread.start()
        self.is_served_again()
        return self

    def is_served_again(self) -> None:
        """A whole round that began after now."""
        rounds = self.rounds
        until(lambda: self.rounds >= rounds + 2 or self.fails, "the good client is answered")
        assert not self.fails

    def __exit__(self, *_: object) -> None:
        self._pause.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert not self.fails


@pytest.fixture(scope="module")
def good_processes() -> Iterator[tuple[contextlib.ExitStack, list[subprocess.Popen[str]]]]:
    with contextlib.ExitStack() as stack:
        yield stack, []


@pytest.fixture
def good_process(running, good_file, good_processes) -> subprocess.Popen[str]:
    """The same one for all tests while none of them harms it."""
    stack, processes = good_processes
    if not processes or processes[-1].poll() is not None:
        path = os.path.dirname(__file__)
        process = script(GOOD_CLIENT, running.folder, good_file, PYTHONPATH=path)
        processes.append(stack.enter_context(process))
    return processes[-1]


def open_and_check(client, path) -> None:
    with path.open("rb") as file:
        opened = state_dict(client.open_file(file, "good"))
    for name, tensor in some_weights().items():
        assert torch.equal(opened[name], tensor)


def evict_all_but(seen: Seen, kept: list[str]) -> bool:
    """Models that were read whole before their client left stay until there is need of room."""
    others = [model.address for model in seen.models() if model.address.name not in kept]
    for address in others:
        with contextlib.suppress(StoreError):
            seen.client.call("Evict", pb.EvictRequest(address=address))
    return not others


@pytest.fixture
def unharmed(running, good_file, good_process):
    """The store; after the test its bytes, references, sessions and descriptors are as before."""
    with running.client() as watching:
        seen = Seen(watching)
        open_and_check(watching, good_file)
        watching.open("served")
        until(lambda: seen.references == 0, "the references return before the test")
        until(lambda: seen.has_written, "the model is written to disk")
        before, descriptors = seen.stats(), running.descriptors()
        kept = [model.address.name for model in seen.models()]
        with GoodClient(good_process) as good:
            running.good = good
            yield running
            good.is_served_again()
        until(lambda: seen.stats().clients == before.clients, "the sessions go")
        until(lambda: seen.references == 0, "the references return")
        until(
            lambda: evict_all_but(seen, kept) and len(running.descriptors()) <= len(descriptors),
            f"the descriptors return to {Counter(descriptors)}: {Counter(running.descriptors())}",
        )
        after = seen.stats()
        assert {t.tier: t.used_bytes for t in after.tiers} == {t.tier: t.used_bytes for t in before.tiers}
        assert after.pid == running.pid


def ended_by_store(sock: socket.socket) -> bool:
    """Whether the store closes the connection, whatever it says before."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


# --- the descriptors' socket -----------------------------------------------------------------------


def hostile_packets() -> list[bytes]:
    randomly = random.Random(0)
    return [
        b"\0",
        b"{",
        b"null",
        b"[]",
        b"17",
        b'"ticket"',
        b"NaN",
        b"9" * 10_000,
        b"[" * 100_000,
        b'{"a":' * 20_000,
        b"\xff\xfe" * 50,
        b'{"ticket": {"ticket": {}}}',
        b'{"ticket": "\\ud800"}',
        b'{"token": "\\ud800"}',
        b'{"token": ' + b'"' + b"x" * 100_000 + b'"}',
        b"x" * (127 << 10),
        *(randomly.randbytes(randomly.randrange(1, 2000)) for _ in range(30)),
    ]


def test_garbage_on_the_descriptors_socket_disconnects_its_sender(unharmed):
    for packet in hostile_packets():
        with contextlib.closing(unharmed.raw()) as sock:  # as the first packet
            sock.send(packet)
            sock.shutdown(socket.SHUT_WR)
            assert ended_by_store(sock)
        sock, _ = unharmed.session()
        with contextlib.closing(sock):  # and within a session
            sock.send(packet)
            assert ended_by_store(sock)


def test_garbage_where_a_token_is_wanted_leaves_no_connection_behind(start_store):
    store = start_store(token="open sesame")
    with store.client(token="open sesame") as client:
        seen = Seen(client)
        seen.stats()
        before = len(store.descriptors())
        for packet in [*hostile_packets(), b'{"token": null}', b'{"token": 5}', b'{"token": "\xc3\xa9"}']:
            with contextlib.closing(store.raw()) as sock:
                sock.send(packet)
                assert ended_by_store(sock), packet[:40]
        until(lambda: len(store.descriptors()) <= before, "the descriptors return")
        assert seen.stats().clients == 0


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"name": "../../etc/passwd"},
        {"name": ["served"], "version": {}},
        {"name": "served", "namespace": "pickle"},
        {"name": "served", "device": "cuda:7"},
        {"name": "s" * 60_000},
    ],
)
def test_hostile_questions_are_refused_with_a_sentence_and_the_next_is_answered(unharmed, question):
    sock, _ = unharmed.session()
    with contextlib.closing(sock):
        messages.send(sock, {"open": question, "id": 1})
        refusal = messages.receive(sock)
        assert refusal["id"] == 1
        assert 10 < len(refusal["error"]) < 1000
        messages.send(sock, {"open": {"name": "served"}, "id": 2})
        answer, descriptors = messages.receive_with_descriptors(sock, 253)
        for descriptor in descriptors:
            os.close(descriptor)
        assert answer["id"] == 2
        assert answer["lease"]


@pytest.mark.parametrize("question", [5, "served", ["served"], None])
def test_what_is_no_question_disconnects_its_sender(unharmed, question):
    sock, _ = unharmed.session()
    with contextlib.closing(sock):
        messages.send(sock, {"open": question})
        assert ended_by_store(sock)


def test_more_questions_at_once_than_a_client_may_ask_disconnect_it(unharmed):
    sock, _ = unharmed.session()
    with contextlib.closing(sock), contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for number in range(10_000):
            messages.send(sock, {"open": {"name": "served"}, "id": number})
        pytest.fail("it was never disconnected")


def test_a_packet_larger_than_any_message_disconnects_its_sender(unharmed):
    sock, _ = unharmed.session()
    with contextlib.closing(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sock.send(json.dumps({"ticket": "x" * (150 << 10)}).encode())
        assert ended_by_store(sock)


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


def test_descriptors_beside_garbage_are_closed(unharmed):
    reading, writing = os.pipe()
    packets = [(b"\0garbage", 1), (b"{}", 4), (b"[]", 4), (b"null", 4), (b'{"ticket":"t"}', 3)]
    packets += [(b'{"ticket":"t"}', 200), (b"{}", 250)]
    for packet, count in packets:
        for first in (True, False):
            sock = unharmed.raw() if first else unharmed.session()[0]
            with contextlib.closing(sock):
                socket.send_fds(sock, [packet], [writing] * count)
                if not (first and packet.startswith(b"{")):  # a greeting may be any object
                    assert ended_by_store(sock)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b""  # nobody holds the other end


def test_more_tickets_than_a_client_may_have_disconnect_it(unharmed, good_file):
    sock, _ = unharmed.session()
    with contextlib.closing(sock), good_file.open("rb") as file:

        def send_many() -> None:
            for i in range(10_000):
                messages.send(sock, {"ticket": str(i)}, (file.fileno(),))

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_many()


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
        assert hostile.stdout.readline()
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


# --- gRPC ------------------------------------------------------------------------------------------


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
        theirs = other.stdout.readline().strip()
        for lease in (theirs, theirs[:-1], "", "x" * 10_000):
            with pytest.raises(grpc.RpcError, match="no lease"):
                stub.Close(pb.CloseRequest(session=session, lease=lease))
        with unharmed.client() as client:
            (model,) = (m for m in Seen(client).models() if m.address.name == "served")
            assert model.references == 1
            with pytest.raises(StoreError, match="in use"):
                client.call("Evict", pb.EvictRequest(address=pb.Address(name="served")))


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


# --- descriptors that are no weights ---------------------------------------------------------------


def refusal_of(store: RunningStore, descriptor: int, namespace: str = "safetensors") -> grpc.RpcError:
    sock, session = store.session()
    with contextlib.closing(sock), store.stub() as stub:
        messages.send(sock, {"ticket": "t"}, (descriptor,))
        address = pb.Address(name="hostile", namespace=namespace)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Open(pb.OpenRequest(session=session, ticket="t", address=address), timeout=30)
    return refused.value


@contextlib.contextmanager
def opened_fd(path, flags: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def test_descriptors_that_are_no_files_are_refused(unharmed, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    ours, theirs = socket.socketpair()
    with contextlib.closing(ours), contextlib.closing(theirs), contextlib.ExitStack() as stack:
        for fd in (
            stack.enter_context(opened_fd(tmp_path)),
            stack.enter_context(opened_fd(tmp_path / "fifo", os.O_RDWR)),
            stack.enter_context(opened_fd("/dev/zero")),
            stack.enter_context(opened_fd("/dev/null")),
            ours.fileno(),
        ):
            for _ in range(3):
                error = refusal_of(unharmed, fd)
                assert error.code() in (
                    grpc.StatusCode.FAILED_PRECONDITION,
                    grpc.StatusCode.INVALID_ARGUMENT,
                ), error
                assert error.details()


@contextlib.contextmanager
def lingering(store: RunningStore) -> Iterator[socket.socket]:
    """A socket whose last closing waits, until after the block, for a reader that reads nothing.

    The store is stopped when the block begins, to be continued in it when the socket is only the store's.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
    with contextlib.closing(reader):
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(bytes(1 << 20))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
        os.kill(store.pid, signal.SIGSTOP)
        try:
            yield sock
        finally:
            os.kill(store.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "packets",
    [
        [(b'{"open":{"name":"x"},"id":1}', 1)],
        [(b'{"open":{"name":"x","namespace":"pickle"},"id":1}', 1)],
        [(b"garbage", 1)],
        [(b"{}", 250)],
        [(b"garbage", 0), (b"never read", 1)],
        [(b'{"ticket":"t"}', 1), (b"garbage", 0)],
    ],
    ids=["asked", "refused", "garbage", "many", "unread", "ticket"],
)
def test_a_descriptor_whose_closing_waits_holds_up_nobody(unharmed, packets):
    sock, _ = unharmed.session()
    with contextlib.closing(sock), lingering(unharmed) as stuck:
        for packet, count in packets:
            socket.send_fds(sock, [packet], [stuck.fileno()] * count)
        stuck.close()
        os.kill(unharmed.pid, signal.SIGCONT)
        unharmed.good.is_served_again()


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_PATH])
def test_a_descriptor_that_cannot_be_read_from_gives_no_weights_of_a_file_that_others_opened(
    unharmed, good_file, flags
):
    """Anybody who sees a file's name has an O_PATH descriptor of it, whatever its permissions."""
    with opened_fd(good_file, flags) as fd:
        refusal_of(unharmed, fd)


def f32(elements: int, begin: int = 0) -> dict[str, object]:
    return {"dtype": "F32", "shape": [elements], "data_offsets": [begin, begin + 4 * elements]}


BIG = 1 << 40

HOSTILE_FILES = {
    "empty": lambda p: p.write_bytes(b""),
    "seven bytes": lambda p: p.write_bytes(b"1234567"),
    "a header of 2^64 bytes": lambda p: p.write_bytes(b"\xff" * 8),
    "a header of 100 MB that is a hole": lambda p: hole(p, 100 << 20),
    "no JSON": lambda p: with_header(p, b"{]"),
    "deep JSON": lambda p: with_header(p, b"[" * 1_000_000),
    "a list": lambda p: with_header(p, []),
    "no entries": lambda p: with_header(p, {"a": 3}),
    "a tensor of terabytes": lambda p: with_header(p, {"a": f32(BIG)}),
    "a tensor of terabytes that are a hole": lambda p: with_header(p, {"a": f32(BIG)}, 4 * BIG),
    "a tensor beyond any integer": lambda p: with_header(p, {"a": f32(1 << 80)}),
    "a negative shape": lambda p: with_header(p, {"a": f32(-5)}),
    "overlapping tensors": lambda p: with_header(p, {"a": f32(100), "b": f32(100, 200)}, 600),
    "a truncated tensor": lambda p: with_header(p, {"a": f32(1 << 20)}, 1000),
    "many truncated tensors": lambda p: with_header(
        p, {str(i): f32(1 << 15, 4 * i << 15) for i in range(100)}, 99 * (4 << 15)
    ),
    "more descriptors than there are": lambda p: with_header(
        p, {str(i): f32(1 << 14, 4 * i << 14) for i in range(4000)}, 4000 * (4 << 14) - 1
    ),
}


def hole(path, header_bytes: int) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<Q", header_bytes))
        file.truncate(8 + header_bytes)


@pytest.mark.parametrize("case", HOSTILE_FILES)
def test_hostile_files_are_refused(unharmed, tmp_path, case):
    HOSTILE_FILES[case](tmp_path / "hostile")
    with opened_fd(tmp_path / "hostile") as fd:
        error = refusal_of(unharmed, fd)
    assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED), error
    assert error.details()


def test_a_shape_of_huge_numbers_does_not_hold_up_the_others(start_store, tmp_path):
    """Their product would take minutes, during which Python runs nothing else."""
    shape = ", ".join(["9" * 4000] * 1500)
    text = f'{{"a": {{"dtype": "F32", "shape": [{shape}], "data_offsets": [0, 4]}}}}'
    with_header(tmp_path / "hostile", text.encode(), 4)
    with opened_fd(tmp_path / "hostile") as fd:
        error = refusal_of(start_store(), fd)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error


def test_an_unknown_format_is_refused(unharmed, good_file):
    with opened_fd(good_file) as fd:
        assert "unknown namespace" in (refusal_of(unharmed, fd, "pickle").details() or "")


def test_a_file_that_shrinks_and_grows_while_it_is_read_harms_nobody(unharmed, tmp_path):
    path = tmp_path / "changing"
    size = 4 << 20
    with_header(path, {"a": f32(size // 4)}, size)
    with path.open("r+b") as file, contextlib.ExitStack() as stack:
        done = threading.Event()

        def change() -> None:
            whole = os.fstat(file.fileno()).st_size
            for i in itertools.cycle((whole, whole // 2)):
                if done.is_set():
                    return
                os.ftruncate(file.fileno(), i)

        thread = threading.Thread(target=change, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(done.set)
        with unharmed.client() as client:
            for _ in range(20):
                with contextlib.suppress(StoreError):
                    client.open_file(file, "changing")


def test_a_client_that_leaves_while_its_file_is_read_leaves_nothing(unharmed, tmp_path):
    """What is cancelled closes the descriptor, whose number then names another client's file."""
    path, size = tmp_path / "slow", 48 << 20
    with_header(path, {str(i): f32(size // 16, i * size // 4) for i in range(4)}, size)
    for i in range(15):
        os.utime(path, ns=(i, i))  # a file of its own each time
        sock, session = unharmed.session()
        with contextlib.closing(sock), unharmed.stub() as stub, opened_fd(path) as fd:
            messages.send(sock, {"ticket": "t"}, (fd,))
            call = stub.Open.future(
                pb.OpenRequest(session=session, ticket="t", address=pb.Address(name=f"slow{i}"))
            )
            time.sleep(0.002 * i)  # anywhere within the reading
            call.cancel()


def test_a_client_that_leaves_fails_nobody_who_opens_the_same_file(unharmed, tmp_path):
    path, size = tmp_path / "popular", 48 << 20
    with_header(path, {"a": f32(size // 4)}, size)
    for i in range(6):
        os.utime(path, ns=(i, i))
        sock, session = unharmed.session()
        with contextlib.closing(sock), unharmed.stub() as stub, opened_fd(path) as fd:
            messages.send(sock, {"ticket": "t"}, (fd,))
            leaving = stub.Open.future(
                pb.OpenRequest(session=session, ticket="t", address=pb.Address(name="popular"))
            )
            other, other_session = unharmed.session()
            with contextlib.closing(other):
                messages.send(other, {"ticket": "t"}, (fd,))
                staying = stub.Open.future(
                    pb.OpenRequest(session=other_session, ticket="t", address=pb.Address(name="popular"))
                )
                time.sleep(0.005)  # both are probably being served by one reading now
                leaving.cancel()
                assert staying.result(30).tensors


# --- limits ----------------------------------------------------------------------------------------


def test_opens_without_closes_end_at_the_limit_and_return_with_the_connection(unharmed):
    with unharmed.stub() as stub:
        sock, session = unharmed.session()
        with contextlib.closing(sock):
            request = pb.OpenRequest(session=session, address=pb.Address(name="served"))

            def read() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        message, descriptors = messages.receive_with_descriptors(sock, 253)
                        for descriptor in descriptors:
                            os.close(descriptor)
                        if message is None:
                            return

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            opened = []

            def open_many() -> None:
                while len(opened) < 20_000:
                    opened.append(stub.Open(request).lease)

            with pytest.raises(grpc.RpcError, match="10,000 models open, the most it may"):
                open_many()
            assert len(opened) == 10_000
            unharmed.good.is_served_again()
            sock.shutdown(socket.SHUT_RDWR)
            reader.join(30)


def test_a_client_that_never_reads_its_descriptors_is_disconnected(unharmed):
    with unharmed.stub() as stub:
        sock, session = unharmed.session()
        with contextlib.closing(sock):
            request = pb.OpenRequest(session=session, address=pb.Address(name="served"))

            def open_many() -> None:
                for _ in range(9_000):
                    stub.Open(request)

            with pytest.raises(grpc.RpcError, match="does not take the descriptors"):
                open_many()
            with pytest.raises(grpc.RpcError, match="no such session"):
                stub.Open(request)


def test_a_quota_binds_a_client_and_nobody_else(unharmed, tmp_path):
    """Connecting again does not help, for a client is a process."""
    path = saved({"a": torch.zeros(12 << 20)}, tmp_path / "48M.safetensors")
    other = saved({"a": torch.ones(12 << 20)}, tmp_path / "other.safetensors")
    with unharmed.client() as client, unharmed.client() as again:
        with path.open("rb") as file:
            held = client.open_file(file, "quota-a")
            once_more = again.open_file(file, "quota-a")  # the same model counts once
        with other.open("rb") as file, pytest.raises(StoreError, match="--client-quota"):
            again.open_file(file, "quota-b")
        unharmed.good.is_served_again()
        del held, once_more


def test_a_client_over_its_quota_evicts_nothing_of_others(start_store, tmp_path):
    store = start_store("--host-bytes", "64M", "--client-quota", "1M")
    small = saved({"a": torch.ones(10_000)}, tmp_path / "small.safetensors")
    with_header(tmp_path / "large", {"a": f32(15 << 20)}, 60 << 20)
    with store.client() as client, store.client() as hostile:
        for label in ("first", "second"):
            os.utime(small, ns=(len(label), len(label)))
            with small.open("rb") as file:
                client.open_file(file, label)
        until(lambda: Seen(client).references == 0)
        with (tmp_path / "large").open("rb") as file, pytest.raises(StoreError, match="quota"):
            hostile.open_file(file, "large")
        assert {model.address.name for model in Seen(client).models()} >= {"first", "second"}


def test_a_store_short_of_descriptors_recovers(start_store, tmp_path, good_file):
    store = start_store(
        "--granularity", "tensor",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150)),
    )  # fmt: skip
    with_header(tmp_path / "many", {str(i): f32(1 << 14, 4 * i << 14) for i in range(300)}, 300 * (4 << 14))
    with store.client() as client:
        open_and_check(client, good_file)
        until(lambda: Seen(client).references == 0)
        before = len(store.descriptors())
        for _ in range(3):
            with (tmp_path / "many").open("rb") as file, pytest.raises(StoreError):
                client.open_file(file, "many")
        open_and_check(client, good_file)
        until(lambda: len(store.descriptors()) <= before, "the descriptors return")


@pytest.mark.parametrize("label", ["[/red]", "[bold]x[/bold]", "\x1b[2J\x1b]0;owned\x07", "a\nb", "\u202e"])
def test_a_hostile_label_is_shown_as_it_is_or_not_at_all(start_store, tmp_path, label):
    store = start_store()
    path = saved(some_weights(), tmp_path / "labelled")
    with store.client() as client, path.open("rb") as file:
        client.open_file(file, label)
        listed = rrl_store("ls", "--folder", store.folder)
    assert listed.returncode == 0, listed.stderr[-300:]
    assert "\x1b" not in listed.stdout
    if label.isprintable():
        assert label in listed.stdout
