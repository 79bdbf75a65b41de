"""`rrl-tune` on a server whose workers are on the nodes of a cluster, of which one dies in mid-run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rrl import journal
from rrl.measurement import NODES_CHANGED, nodes_changed
from scripts.ray_cluster import RayCluster, RayNode
from tests.support.runs.running_command import lines, started
from tests.support.servers.on_cluster import burning, under_load
from tests.support.servers.running_server import RunningServer
from tests.support.waiting import PATIENCE_S, until

INTERVALS = 6
SETTINGS = ("--agent", "random", "--knobs", "max_batch_size=1,4", "--interval-s", 1.5, "--settle-s", 0.2)


@pytest.fixture
def node(ray_cluster: RayCluster) -> Iterator[RayNode]:
    """The third one, which may be killed."""
    added = ray_cluster.add_node()
    yield added
    ray_cluster.kill(added)


@pytest.fixture
def server(ray_cluster: RayCluster, node: RayNode) -> Iterator[RunningServer]:
    """It has one worker on each node."""
    with burning(ray_cluster, 3) as running:
        yield running


def test_a_run_in_which_a_node_dies_goes_on_says_so_and_blames_no_configuration(
    ray_cluster: RayCluster,
    server: RunningServer,
    node: RayNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert server.counted("rrl_node_workers", node=node.name) == 1
    folder = tmp_path / "run"
    how = ("--intervals", INTERVALS, "--validation", 0, "--out", folder)
    with under_load(server, "burn") as asked:
        with started("--target", server.address, *SETTINGS, *how, stdout=subprocess.PIPE) as run:
            try:
                # Those of the start come next, which follow each other without a change in between.
                until(lambda: lines(folder / "journal.jsonl") >= 2, "the first interval is over")
                ray_cluster.kill(node)
                told, _ = run.communicate(timeout=PATIENCE_S)
            finally:
                run.kill()
        asked.some_more()
    assert run.returncode == 0
    assert asked.failed == []
    assert server.counted("nv_inference_request_failure") == 0
    _, records = journal.read(folder)
    assert sum(record.kind == "tune" and record.counted for record in records) == INTERVALS
    gaps = [record for record in records if record.measurement.gap]
    assert gaps
    assert all(nodes_changed(record.measurement) and not record.rollback for record in gaps)
    assert f"{NODES_CHANGED}; nothing is learned from this interval" in told
    assert "not known of" not in told  # how many requests failed, of any interval
    assert "nodes of its cluster went or came" in (folder / "report.html").read_text()
