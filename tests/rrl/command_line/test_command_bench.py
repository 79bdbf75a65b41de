"""`rrl-tune --bench`: a server that runs already, under a load of the run's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rrl.journal import read
from tests.support.running_command import QUICK, answered, exit_code, in_force
from tests.support.running_server import RunningServer, start


@pytest.fixture(scope="module")
def idle() -> Iterator[RunningServer]:
    """A server that nobody uses."""
    server = start("--model", "sleep", "--intra-op-threads", 1)
    yield server
    server.stop()
    assert server.process.stdout is not None
    server.process.stdout.close()


def test_a_server_without_users_is_tuned_under_a_load_of_ones_own(
    idle: RunningServer, tmp_path: Path, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("requests.json").write_text(json.dumps({"data": [{"x": [1.0] * 16}, {"x": [2.0] * 16}]}))
    load = ("--bench", "--model", "sleep", "--rate", 80, "--input-data", "requests.json")
    run = ("--target", idle.address, *load, "--agent", "random", "--intervals", 3, "--out", "run", *QUICK)
    assert exit_code(*run) == 0
    said = capsys.readouterr().out
    assert f"serving sleep on {idle.address} at 80/s" in said
    header, records = read(tmp_path / "run")
    assert header.load is not None
    assert header.load["bench"] is True
    assert sum(r.kind == "tune" and r.counted for r in records) == 3
    report = json.loads((tmp_path / "run" / "load.json").read_text())
    assert report["failed"] == {}
    assert report["sent"] > 0
    assert not list(state_home.iterdir())
    left = in_force(idle.address)
    assert {k: left[k] for k in header.space.names} in [r.configuration for r in records]
    assert exit_code("--resume", "run", "--intervals", 4) == 0
    assert f"serving sleep on {idle.address} at 80/s" in capsys.readouterr().out
    before = answered(idle.address)
    assert answered(idle.address) == before, "the load is over with the run"


def test_a_load_of_its_own_needs_a_server_and_no_observer(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--bench") == 2
    assert "give --target HOST:PORT" in capsys.readouterr().err
    assert exit_code("--bench", "--advise", "--target", "localhost:1") == 2
    assert "leave --bench away, or tune" in capsys.readouterr().err
