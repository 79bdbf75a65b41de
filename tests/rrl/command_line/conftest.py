"""A server under load for the tests of `rrl-tune`, and a home of its own for each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from serving_adapter.target import OpenInferenceTarget
from tests.support.folder_end import until_folder_ends
from tests.support.runs.running_command import answered, watching
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "rrl-tune"


class Served:
    """A server of the `sleep` model, under load."""

    def __init__(self, folder: Path) -> None:
        from tests.support.servers.running_server import start

        self._folder = folder
        self._server = start("--model", "sleep", "--model-option", "ms=5")
        command = [sys.executable, "-m", "serving_adapter.load.command_line", "--target"]
        command += [self._server.address, "--rate", "20", "--duration-s", "0", "--out", str(folder)]
        self._load = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until(lambda: answered(self.address) > 10)
        with watching(self.address) as target:
            self.found = target.configuration()

    @property
    def address(self) -> str:
        return self._server.address

    def end(self) -> None:
        self._load.terminate()
        self._load.wait(30)
        self._server.stop()
        assert self._server.process.stdout is not None
        self._server.process.stdout.close()
        assert json.loads((self._folder / "load.json").read_text())["failed"] == {}


@pytest.fixture(scope="session")
def target_under_load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with until_folder_ends(Path(__file__).parent) as stack:
        served = Served(tmp_path_factory.mktemp("load"))
        stack.callback(served.end)
        yield served


@pytest.fixture(scope="module")
def served(target_under_load: Served) -> str:
    """The address of a server of the `sleep` model, under load; as it started, for each file of tests."""
    with closing(OpenInferenceTarget(target_under_load.address)) as target:
        target.connect()
        target.apply(target_under_load.found)
    return target_under_load.address
