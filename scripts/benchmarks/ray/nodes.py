"""The cluster of the benchmarks: real nodes of Ray, each with processes of its own, on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from scripts.ray_cluster import RayCluster


@contextlib.contextmanager
def nodes(
    count: int = 2, cpus: int = 2, dashboard: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[RayCluster]:
    """A cluster of so many nodes, each of so many CPUs, with `settings` in the environment of its processes.

    Applications of Ray Serve need its dashboard.
    """
    cluster = RayCluster(cpus, settings or {})
    try:
        cluster.start(dashboard)
        for _ in range(count - 1):
            cluster.add_node(cpus)
        yield cluster
    finally:
        cluster.end()
