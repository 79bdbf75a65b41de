"""`joint`: what it says of runs that its file has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.benchmarks.tuner.simulated import joint
from scripts.kept_rows import KeptRows


def test_runs_of_several_commits_are_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    rows = KeptRows(path, ("machine", "agent", "intervals"))
    for machine, commit in ((1000, "12ab"), (1001, "34cd"), (1002, "56ef")):
        run = joint.JointRun(machine, joint.TOGETHER, 8, 1.01, 2, 1.2, 0, 9.0)
        rows.add(run._asdict() | {"commit": commit})
    options = ("--machines", "2", "--intervals", "8", "--agents", joint.TOGETHER, "--out", str(path))
    monkeypatch.setattr(sys, "argv", ["bench", "joint", *options])
    found = joint.run()
    assert found["commits"] == ["12ab", "34cd"]
    assert "commit 12ab, 34cd\n" in capsys.readouterr().out
