"""A server under load for the tests of `rrl-tune`, and a home of its own for each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running_command import answered
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "rrl-tune"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the `sleep` model, under load."""
    from tests.support.running_server import start

    running = start("--model", "sleep", "--model-option", "ms=5")
    out = tmp_path_factory.mktemp("load")
    command = [sys.executable, "-m", "serving_adapter.load.command_line", "--target", running.address]
    command += ["--rate", "60", "--duration-s", "0", "--out", str(out)]
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until(lambda: answered(running.address) > 10)
    yield running.address
    load.terminate()
    load.wait(30)
    assert json.loads((out / "load.json").read_text())["failed"] == {}
    running.stop()
    assert running.process.stdout is not None
    running.process.stdout.close()
