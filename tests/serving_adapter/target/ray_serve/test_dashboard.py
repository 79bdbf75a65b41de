"""What a dashboard that goes away in the middle of an answer is taken for."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from serving_adapter.target.error import TargetError, TargetLost
from serving_adapter.target.ray_serve.counters import RayCounters
from serving_adapter.target.ray_serve.dashboard import Dashboard
from serving_adapter.target.ray_serve.deployed import Deployed

CUT_OFF = {
    "before_it": b"",
    "in_its_head": b"HTTP/1.",
    "in_a_chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
    "in_its_body": b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{",
}


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of what sends these bytes to whoever asks, and ends the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_each() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=answer_each)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("answer", CUT_OFF.values(), ids=CUT_OFF)
def test_an_answer_that_ends_early_is_that_of_a_dashboard_that_is_lost(answer: bytes) -> None:
    with answering(answer) as address:
        with pytest.raises(TargetLost, match=f"the dashboard ray://{address} is lost"):
            Dashboard(address, 5.0, Counter(), known=True).applications()
        with pytest.raises(TargetError) as new:
            Dashboard(address, 5.0, Counter()).applications()
    assert not isinstance(new.value, TargetLost)


@pytest.mark.parametrize(("status", "is_lost"), [(400, False), (500, False), (502, True), (504, True)])
def test_a_configuration_is_refused_by_ray_alone(status: int, is_lost: bool) -> None:
    answer = f"HTTP/1.1 {status} No\r\nContent-Length: 3\r\n\r\nwhy".encode()
    with answering(answer) as address, pytest.raises(TargetError, match="figuration: why") as error:
        Dashboard(address, 5.0, Counter(), known=True).put_applications({"applications": []})
    assert isinstance(error.value, TargetLost) is is_lost


def test_a_page_of_a_known_cluster_that_cannot_be_read_may_be_read_later() -> None:
    page = b"ray_node_cpu 1\nray_serve_deployment_request_counter_total{deploy"
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(page)}\r\n\r\n".encode()
    deployed = Deployed({"applications": {"app": {}}}, "app", "D")
    with answering(head + page) as address:
        counters = RayCounters(deployed, lambda: [f"http://{address}/metrics"], Counter(), 5.0)
        counters.known = True
        with pytest.raises(TargetLost, match="malformed"):
            counters.look()
