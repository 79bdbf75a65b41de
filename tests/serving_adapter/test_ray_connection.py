"""What is said where there is no cluster of Ray to connect to, and that it is said soon."""

from __future__ import annotations

import http.server
import importlib.util
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from scripts.ray_cluster import free_ports
from serving_adapter import ray_connection
from serving_adapter.ray_connection import ClusterError, connect

HOST = "127.0.0.1"


def refused(address: str) -> str:
    with pytest.raises(ClusterError) as caught:
        connect("--ray", address)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(ray_connection, "find_spec", lambda name: None if name == "ray" else found(name))
    assert refused(f"{HOST}:6379") == "--ray needs Ray: pip install 'ray[serve]==2.60.*'"


@pytest.mark.parametrize("address", ["here", "unix:/run/ray.sock", "127.0.0.1:99999"])
def test_what_is_no_address_is_told_what_was_expected(address: str) -> None:
    said = refused(address)
    assert said.startswith("--ray ")
    assert "the address of its head, which `ray start --head` prints" in said


def test_where_nothing_answers_it_says_so() -> None:
    (port,) = free_ports(1)
    assert refused(f"{HOST}:{port}").startswith(f"nothing answers at {HOST}:{port} as a Ray cluster does")


def test_another_kind_of_server_is_no_head() -> None:
    with http.server.HTTPServer((HOST, 0), http.server.SimpleHTTPRequestHandler) as web:
        serving = threading.Thread(target=web.serve_forever)
        serving.start()
        try:
            said = refused(f"{HOST}:{web.server_port}")
        finally:
            web.shutdown()
            serving.join()
    assert f"{HOST}:{web.server_port}" in said
    assert "which `ray start --head` prints" in said


def test_a_server_that_says_nothing_is_waited_for_no_longer_than_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_connection, "ANSWER_S", 0.2)
    with silent() as port:
        assert f"{HOST}:{port}" in refused(f"{HOST}:{port}")


@contextmanager
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with closing(socket.create_server((HOST, 0))) as server:
        yield server.getsockname()[1]
