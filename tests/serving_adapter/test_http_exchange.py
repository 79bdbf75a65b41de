"""Hosts as addresses of HTTP write them, and as sockets take them."""

from __future__ import annotations

import socket

import pytest

from serving_adapter.http_exchange import exchanged


@pytest.mark.parametrize("host", ["[fe80::1%25eth0]", "[fe80::1%eth0]"])
def test_an_address_with_a_zone_is_asked(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], *rest: object) -> None:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(ConnectionRefusedError):
        exchanged(f"http://{host}:8002/metrics", 5.0)
    assert asked == [("fe80::1%eth0", 8002)]
