"""Descriptors that are no weights are refused, and hold up nobody."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Iterator

import grpc
import pytest

from tests.support.stores.hostile_clients import opened_fd, refusal_of
from tests.support.stores.running_store import RunningStore


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
