"""Messages between processes of one machine: one JSON object a packet over a Unix socket.

The sockets are `SOCK_SEQPACKET`: a packet arrives whole or not at all, and an empty one means that the
other side is gone. Tensors do not travel here but through shared memory, whose descriptors ride along.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from serving_adapter.json_text import parsed

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
    return parsed(data) if data else None


def receive_with_descriptors(
    sock: socket.socket, max_descriptors: int = MAX_DESCRIPTORS
) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its descriptors. ValueError for what is no message; then they are closed."""
    try:
        data, descriptors, flags, _ = socket.recv_fds(
            sock, MAX_MESSAGE_BYTES, max_descriptors, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None, []
    try:
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            raise ValueError("a part of it was lost")
        return (parsed(data) if data else None), list(descriptors)
    except ValueError as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ValueError(f"this is no message: {error}") from error
