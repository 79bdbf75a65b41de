"""Certificates and the control key hold for a server whose workers are on a cluster: the same tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.ray_cluster import RayCluster
from tests.serving_adapter.server.protocol.test_tls import *  # noqa: F403
from tests.serving_adapter.server.protocol.test_tls import serving_noop
from tests.support.servers.on_cluster import on
from tests.support.servers.running_server import RunningServer
from tests.support.servers.tls import TlsFiles


@pytest.fixture(scope="module")  # type: ignore[no-redef] # in place of that of this machine alone
def server(ray_cluster: RayCluster, files: TlsFiles, key_file: Path) -> Iterator[RunningServer]:
    with serving_noop(files, key_file, *on(ray_cluster)) as running:
        yield running
