"""One real cluster of Ray, of two nodes on this machine, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.ray_cluster import RayCluster
from tests.support.folder_end import until_folder_ends

_running: list[RayCluster] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.ray)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """Leave it as you found it: what you add is killed by you."""
    if find_spec("ray") is None:
        pytest.fail("Ray is not installed: run make setup; or leave these tests out: pytest -m 'not ray'")
    cluster = RayCluster()
    with until_folder_ends(Path(__file__).parent) as stack:
        stack.callback(cluster.end)
        cluster.start()
        cluster.add_node()
        _running.append(cluster)
        stack.callback(_running.clear)
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def whole_cluster() -> None:
    """Tests that failed may have left a node too many, or one too few. The next module finds two again."""
    for cluster in _running:
        cluster.mend()
