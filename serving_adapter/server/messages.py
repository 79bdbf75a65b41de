"""Messages between front, zygote and workers: one JSON object a packet over a Unix socket pair.

The sockets are `SOCK_SEQPACKET`: a packet arrives whole or not at all, and an empty one means that the
other side is gone. Tensors do not travel here but through arenas; file descriptors ride along.
"""

from __future__ import annotations

import json
import socket
from typing import Any

MAX_MESSAGE_BYTES = 128 << 10
MAX_DESCRIPTORS = 4


def socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    data = json.dumps(message, separators=(",", ":")).encode()
    if descriptors:
        socket.send_fds(sock, [data], list(descriptors))
    else:
        sock.send(data)


def receive(sock: socket.socket) -> dict[str, Any] | None:
    """The next message; None when the other side is gone."""
    try:
        data = sock.recv(MAX_MESSAGE_BYTES)
    except ConnectionResetError:
        return None
    return json.loads(data) if data else None


def receive_with_descriptors(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    try:
        data, descriptors, _, _ = socket.recv_fds(sock, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
    except ConnectionResetError:
        return None, []
    return (json.loads(data) if data else None), list(descriptors)
