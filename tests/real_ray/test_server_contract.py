"""A stock client drives a server on a cluster as it does one of this machine: the same tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.ray_cluster import RayCluster
from tests.serving_adapter.server.conftest import client, stub  # noqa: F401
from tests.serving_adapter.server.protocol.test_protocol import *  # noqa: F403
from tests.support.servers.running_server import RunningServer, start

SLEEP = ("--model", "sleep", "--model-option", "ms=2")


@pytest.fixture(scope="module")
def server(ray_cluster: RayCluster) -> Iterator[RunningServer]:
    """One server of `sleep` for all tests that leave it as they found it."""
    running = start(*SLEEP, "--engine", "ray", "--address", ray_cluster.address)
    yield running
    assert running.stop() == 0
    if running.process.stdout is not None:
        running.process.stdout.close()


# These start servers of their own, which would say nothing more here: test_tls.py has the key.
for name in ("test_an_oversized_request_is_refused_with_both_sizes", "test_control_can_be_locked_with_a_key"):
    del globals()[name]
