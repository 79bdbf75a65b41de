"""A target of another package is tuned by the scheme of its address."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rrl import journal
from serving_adapter.target import OpenInferenceTarget, TargetError
from serving_adapter.target.installed_targets import open_target, target_class
from tests.support import CHECKOUT

MODULE = '''
import time

from serving_adapter.target import Applied, Target
from tests.support.runs.fake_target import FakeTarget


class WallClock:
    @property
    def now_s(self):
        return time.monotonic()


class QueueTarget(Target):
    """The six methods, and a configuration that can be written."""

    def __init__(self, address, model=None, **options):
        super().__init__(address, model or "queue")
        self._queue = FakeTarget(WallClock())

    def connect(self, control=True, counters=True):
        self.server = "queue 1"

    def close(self):
        pass

    def knobs(self):
        return self._queue.knobs()

    def configuration(self):
        return self._queue.configuration()

    def apply(self, configuration):
        before = self.configuration()
        if before | configuration == before:
            return Applied(in_place=True, cold_instances=0, changed=False)
        self.before_change(before, before | configuration)
        return self._queue.apply(configuration)

    def read(self):
        return self._queue.read()

    def config_text(self, configuration=None):
        told = self.configuration() | (configuration or {})
        return "".join(f"{name}: {value}\\n" for name, value in told.items())

    def config_files(self, configuration):
        return {"queue.yaml": self.config_text(configuration)}
'''


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a process that has the package, and one whose module is missing, installed."""
    site = tmp_path / "site"
    for name, entry in (("queues", "queue = queue_target:QueueTarget"), ("broken", "broken = nowhere:Found")):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8"
        )
        (info / "entry_points.txt").write_text(f"[rrl_tune.targets]\n{entry}\n", encoding="utf-8")
    (site / "queue_target.py").write_text(MODULE, encoding="utf-8")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(site)])}


def tuned(address: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rrl.command_line", "--target", address, "--out", str(folder)]
    command += ["--knobs", "instances=1:3", "--intervals", "4", "--interval-s", "0.5", "--settle-s", "0.1"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_it_is_tuned_as_any_other(environment: dict[str, str], tmp_path: Path) -> None:
    said = tuned("queue://localhost:7", environment, tmp_path / "run")
    assert said.returncode == 0, said.stderr + said.stdout
    header, records = journal.read(tmp_path / "run")
    assert (header.target, header.model, header.server) == ("queue://localhost:7", "queue", "queue 1")
    assert header.found == {"instances": 2, "max_batch_size": 3}
    assert len(records) >= 4
    assert "max_batch_size: 3" in (tmp_path / "run" / "best_queue.yaml").read_text()


def test_a_package_that_is_broken_is_named(environment: dict[str, str], tmp_path: Path) -> None:
    said = tuned("broken://localhost:7", environment, tmp_path / "run")
    assert said.returncode == 2
    assert "broken 1.0 for broken://localhost:7 cannot be loaded: No module named 'nowhere'" in said.stderr


@pytest.mark.parametrize("address", ["localhost:1", "grpc://localhost:1", "unix:/s", "unix:///s"])
def test_without_a_scheme_of_a_package_it_speaks_the_open_inference_protocol(address: str) -> None:
    assert target_class(address) is OpenInferenceTarget


@pytest.mark.parametrize("address", ["kserve://localhost:1", "HTTP://localhost:1/v2", "a_b://localhost:1"])
def test_a_scheme_of_no_package_is_refused_with_those_that_are_known(address: str) -> None:
    scheme = address.partition(":")[0].lower()
    said = f"no installed package has targets of the scheme '{scheme}'; installed: .*ray.*; give HOST:PORT"
    with pytest.raises(TargetError, match=said):
        open_target(address)


def test_the_command_lists_the_schemes_of_all_packages(environment: dict[str, str], tmp_path: Path) -> None:
    said = tuned("kserve://localhost:7", environment, tmp_path / "run")
    assert said.returncode == 2
    assert "of the scheme 'kserve'; installed: broken, queue, ray; give HOST:PORT" in " ".join(
        said.stderr.split()
    )
    assert not (tmp_path / "run").exists()
