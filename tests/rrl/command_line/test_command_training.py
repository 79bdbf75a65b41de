"""`rrl-tune --agent-from`: a run that starts from an agent trained offline."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from baselines.training import main as train
from rrl.journal import read
from tests.support.runs.running_command import exit_code, two_by_two


def trained(agent: str, out: str, *arguments: object) -> None:
    two_by_two(slower=100)  # so that any interval of the server is better than all of the training
    grid = ["--knobs", "instances=1:2,max_batch_size=1,4"]
    common = ["--machine", "m.npz", "--agent", agent, "--decisions", 5, "--rate", 0.2, "--out", out]
    train([str(a) for a in [*common, *grid, *arguments]])


def test_an_agent_trained_offline_starts_a_run_and_starts_it_again_when_that_is_resumed(
    served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("sweep", "trained", "--seed", 3)
    times = ["--target", served, "--interval-s", "0.5", "--settle-s", "0.1"]
    assert exit_code(*times, "--agent-from", "trained", "--intervals", 2, "--out", "run") == 0
    assert f"sweep starts from 6 decisions of {tmp_path / 'trained'}" in capsys.readouterr().out
    header, records = read(Path("run"))
    assert (header.agent, header.seed) == ("sweep", 3)
    assert header.space == read(Path("trained"))[0].space
    # its sweep is behind it: it stays at the best, where a new one would go through the grid
    numbers = {r.number for r in records if r.decision == "agent"}
    assert len(numbers) == 1
    assert exit_code("--resume", "run", "--intervals", 3) == 0
    assert "sweep starts from 6 decisions" in capsys.readouterr().out
    shutil.rmtree("trained")
    assert exit_code("--resume", "run", "--intervals", 4) == 2
    assert f"no journal at {tmp_path / 'trained'}" in capsys.readouterr().err


def test_a_run_of_another_agent_or_grid_does_not_start_from_a_training(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("sweep", "trained")
    common = ["--target", served, "--agent-from", "trained"]
    assert exit_code(*common, "--agent", "random") == 2
    assert "is of another agent: sweep, not random" in capsys.readouterr().err
    assert exit_code(*common, "--knobs", "instances=1:4,max_batch_size=1,4") == 2
    assert "is of another grid: instances=1,2,max_batch_size=1,4" in capsys.readouterr().err
    assert exit_code("--resume", "trained") == 2
    assert "trained is no run to resume" in capsys.readouterr().err


def test_a_watch_that_starts_from_a_training_goes_on_with_its_folder_when_it_is_started_again(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("sweep", "trained")
    times = ["--interval-s", "0.5", "--settle-s", "0.1"]
    same = ["watch", "--target", served, *times, "--agent-from", "trained", "--out", "run"]
    for intervals in (2, 3):
        assert exit_code(*same, "--intervals", intervals) == 0
        assert "sweep starts from 6 decisions" in capsys.readouterr().out
