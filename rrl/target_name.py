"""One name for a target, whichever of its addresses was given."""

from __future__ import annotations

import socket


def canonical(address: str) -> str:
    """One name of a target for the several that mean this machine."""
    host, colon, port = address.lower().rpartition(":")
    if not colon:
        return address
    host = host.strip("[]").rstrip(".")
    if host in ("localhost", "::1", "0.0.0.0", "::", socket.gethostname().lower()) or host.startswith("127."):
        host = "localhost"
    return f"{host}:{port}"
