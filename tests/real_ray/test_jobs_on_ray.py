"""Jobs on a cluster: the numbers are those of one machine, and no death of a node loses any."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

import tests.support.runs.ray_jobs as ray_jobs
from baselines.comparison import ComparisonSettings, run_comparison
from baselines.comparison.command_line import main
from baselines.comparison.progress import SilentProgress
from baselines.comparison.ray_workers import RayWorkers
from scripts.ray_cluster import CHECKOUT, RayCluster, RayNode
from serving_adapter.ray_connection import ClusterError
from tests.support.in_this_process import InThisProcess
from tests.support.waiting import until

AGENTS = "guided,random,oracle"
SMALL = ("--machine", "family:0", "--decisions", "6", "--workload", "dynamic", "--seeds", "2")
KNOBS = "instances=1:3,intra_op_threads=1,2,4"


@pytest.fixture(scope="module")
def changed_node(ray_cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNode]:
    """A node more, on which our code is another."""
    folder = tmp_path_factory.mktemp("changed")
    shutil.copytree(
        CHECKOUT / "baselines", folder / "baselines", ignore=shutil.ignore_patterns("__pycache__")
    )
    with (folder / "baselines" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write("\nCHANGED = True\n")
    node = ray_cluster.add_node(cpus=1, settings={"PYTHONPATH": f"{folder}{os.pathsep}{CHECKOUT}"})
    yield node
    ray_cluster.kill(node)


def numbers_in(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """All of a comparison's runs, by file, to the last bit; without the times of decisions."""
    found = {}
    for path in sorted(folder.glob("runs/*/*.npy")):
        rows = np.load(path)
        names = [name for name in rows.dtype.names if name != "decide_ms"]
        found[path.relative_to(folder).as_posix()] = rows[names].tolist()
    return found


def test_a_comparison_has_the_numbers_of_one_machine_and_goes_on_where_it_was(
    ray_cluster: RayCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    settings = ComparisonSettings(
        tuple(AGENTS.split(",")), "family:0", workload="dynamic", decisions=6, knobs=KNOBS, seeds=2
    )
    run_comparison(settings, alone, progress=SilentProgress(), executor=InThisProcess(1))
    run_comparison(settings, together, progress=SilentProgress(), executor=RayWorkers(ray_cluster.address))
    expected = numbers_in(alone)
    assert len(expected) == 6
    assert numbers_in(together) == expected

    (gone,) = together.glob("runs/guided/*seed-1.npy")
    gone.unlink()
    main([*SMALL, "--knobs", KNOBS, "--agents", AGENTS, "--ray", ray_cluster.address, "--out", str(together)])
    assert numbers_in(together) == expected
    said = capsys.readouterr().out
    assert "runs: 6, 5 of them done before" in said
    assert [line.split(":")[0] for line in said.splitlines() if line.startswith("[")] == [
        "[6/6] guided on family-0, seed 1"
    ]


def test_ctrl_c_ends_what_runs_on_the_nodes(ray_cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    script = tmp_path / "interrupted.py"
    script.write_text(
        f"""
from functools import partial
from pathlib import Path
from baselines.comparison.ray_workers import RayWorkers
from tests.support.runs.ray_jobs import lingering

with RayWorkers({ray_cluster.address!r}) as workers:
    workers.run([partial(lingering, Path({str(tmp_path / "begun")!r}), "long")], lambda job, answer: None)
print("the block was left")
"""
    )
    with subprocess.Popen(
        (sys.executable, str(script)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    ) as running:
        (there,) = until(lambda: ray_jobs.processes_of(tmp_path / "begun"), "the job is begun")
        running.send_signal(signal.SIGINT)
        output, error = running.communicate(timeout=60)
    assert running.returncode == -signal.SIGINT, error
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert output == ""
    until(lambda: not psutil.pid_exists(there), "the job's process is ended")


def test_the_code_of_this_machine_is_brought_where_a_nodes_is_another(
    ray_cluster: RayCluster, changed_node: RayNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Ray looks for modules in this folder first, which every node here has.
    found: list[str] = []
    with RayWorkers(ray_cluster.address, at_once=1) as workers:
        workers.run([ray_jobs.code_of_node], lambda job, answer: found.append(answer))
    (place,) = found
    assert not place.startswith(str(CHECKOUT))
    assert Path(place).parts[-2:] == ("baselines", "__init__.py")


def test_a_node_killed_in_mid_job_loses_nothing(
    ray_cluster: RayCluster, changed_node: RayNode, tmp_path: Path
) -> None:
    cpus = sum(node.cpus for node in ray_cluster.nodes)
    names = [f"job-{number}" for number in range(cpus)]
    killed: list[int] = []

    def kill_once_all_have_begun() -> None:
        try:
            until(lambda: len(ray_jobs.processes_of(tmp_path)) == cpus, "every CPU has a job")
            own = set(changed_node.process_ids())
            killed.extend(process for process in ray_jobs.processes_of(tmp_path) if process in own)
            ray_cluster.kill(changed_node)
        finally:
            (tmp_path / ray_jobs.GO_ON).touch()

    answers: list[str] = []
    killer = threading.Thread(target=kill_once_all_have_begun)
    with RayWorkers(ray_cluster.address) as workers:
        killer.start()
        workers.run(
            [partial(ray_jobs.lingering, tmp_path, name) for name in names],
            lambda job, answer: answers.append(answer),
        )
    killer.join()
    assert sorted(answers) == names
    assert len(killed) == 1
    assert len(ray_jobs.processes_of(tmp_path)) == cpus + 1


def test_a_job_that_fails_there_fails_here(ray_cluster: RayCluster) -> None:
    with (
        pytest.raises(ValueError, match=r"^invalid literal"),
        RayWorkers(ray_cluster.address) as workers,
    ):
        workers.run([partial(int, "none")], lambda job, answer: None)


def test_more_processes_than_cpus_are_refused(ray_cluster: RayCluster) -> None:
    cpus = sum(node.cpus for node in ray_cluster.nodes)
    refused = f"has {cpus} CPUs for jobs, and --processes asks for 99: give fewer"
    with pytest.raises(ClusterError, match=refused):
        RayWorkers(ray_cluster.address, at_once=99).__enter__()


def test_another_version_of_ray_is_named(ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    running = ray.__version__
    monkeypatch.setattr(ray, "__version__", "2.1.0")
    with pytest.raises(ClusterError) as caught:
        RayWorkers(ray_cluster.address).__enter__()
    assert f"{ray_cluster.address} runs Ray {running} and this machine has 2.1.0" in str(caught.value)
