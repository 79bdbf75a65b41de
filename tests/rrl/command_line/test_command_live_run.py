"""Runs of `rrl-tune` on a live server, from its first interval to its last."""

from __future__ import annotations

from pathlib import Path

import pytest

from rrl.journal import read
from rrl.views.summary import whole_turns
from serving_adapter.target import OpenInferenceTarget
from tests.support.runs.running_command import QUICK, exit_code, in_force, two_by_two


def test_a_live_target_is_tuned(
    served: str, tmp_path: Path, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = in_force(served)
    assert exit_code("--target", served, "--agent", "random", "--intervals", 4, "--out", "run", *QUICK) == 0
    header, records = read(tmp_path / "run")
    assert header.found == found
    assert sum(r.kind == "tune" and r.counted for r in records) == 4
    said = capsys.readouterr().out
    assert "best found" in said
    assert "tensorboard --logdir run/tensorboard" in said
    for name in ("latency.png", "reference_table.yaml", "best_configuration.yaml", "best_model_config.json"):
        assert (tmp_path / "run" / name).stat().st_size > 0
    left = in_force(served)
    assert header.start.items() <= found.items()
    assert {k: left[k] for k in header.space.names} in [r.configuration for r in records]
    assert not list(state_home.iterdir())

    assert exit_code("--resume", "run", "--agent", "sweep", "--intervals", 9) == 2
    assert "another agent: random, not sweep" in capsys.readouterr().err
    other_knob = ("--knobs", "max_queue_delay_us=0,1000")
    assert exit_code("--resume", "run", "--intervals", 9, *other_knob) == 2
    assert "the journal is of another space" in capsys.readouterr().err
    assert header.settle_s < 0.25
    # Its settle_s is shorter.
    assert exit_code("--resume", "run", "--intervals", 4, "--interval-s", 0.25) == 2
    assert "is complete" in capsys.readouterr().err


def test_a_complete_run_is_not_resumed_without_more_intervals(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--target", served, "--agent", "sweep", *QUICK]
    assert exit_code(*common, "--intervals", 2, "--out", "run") == 0
    assert exit_code("--resume", "run") == 2
    assert "is complete (2 intervals)" in capsys.readouterr().err
    target = OpenInferenceTarget(served)
    target.connect()
    delay = target.configuration()["max_queue_delay_us"]
    target.apply({"max_queue_delay_us": delay + 3000})
    try:
        assert exit_code("--resume", "run", "--intervals", 3) == 0
    finally:
        target.apply({"max_queue_delay_us": delay})
        target.close()
    assert "since the run began: delay " in capsys.readouterr().out
    assert sum(r.kind == "tune" for r in read(Path("run"))[1]) >= 3


def test_a_complete_run_goes_on_for_as_long_as_it_is_given(served: str) -> None:
    assert exit_code("--target", served, "--agent", "sweep", *QUICK, "--intervals", 20, "--out", "run") == 0
    assert exit_code("--resume", "run", "--duration", 5) == 0  # alone it would be fewer intervals
    header, records = read(Path("run"))
    assert header.intervals > 20
    assert sum(r.kind == "tune" and r.counted for r in records) > 20


def test_a_found_value_off_the_knobs_given_is_added_to_them(
    served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = in_force(served)
    target = OpenInferenceTarget(served)
    target.connect()
    target.apply({"instances": 3})
    common = ["--target", served, "--agent", "sweep", *QUICK]
    assert exit_code(*common, "--intervals", 1, "--out", "run") == 0
    assert "added to the --knobs, as the run starts there: instances=3" in capsys.readouterr().out
    header, records = read(tmp_path / "run")
    assert header.start["instances"] == 3
    assert header.space.to_json()["instances"] == [1, 2, 3]
    assert records[0].configuration == header.start

    target.apply({"instances": 4})  # by somebody else, before the run goes on
    assert exit_code(*common, "--intervals", 2, "--resume", "run") == 0
    assert "the journal's grid does not hold the configuration found, 4 inst." in capsys.readouterr().out
    target.apply(before)
    target.close()


def test_the_best_is_measured_as_often_as_asked_for(served: str) -> None:
    common = ["--target", served, "--agent", "sweep", *QUICK]
    assert exit_code(*common, "--intervals", 4, "--validation", 3, "--out", "run") == 0
    header, records = read(Path("run"))
    turns = [r.number for r in whole_turns(records)]
    assert header.validation == 3
    assert turns == ((turns[:2] + turns[1::-1]) * 3)[: len(turns)]
    assert (
        len(turns) % 2 == 0
    )  # fewer than six where they show enough, more where they leave the question open
    assert exit_code("--resume", "run", "--intervals", 5, "--validation", 2) == 0  # its default: as before
    assert exit_code("--resume", "run", "--intervals", 6, "--validation", 1) == 2


def test_serf_schedules_a_live_target_by_a_machine_file(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    two_by_two()
    serf = ["--target", served, "--agent", "serf", *QUICK]
    assert exit_code(*serf, "--out", "without") == 2
    assert "rrl-profile" in capsys.readouterr().err
    assert exit_code(*serf, "--machine", "m.npz", "--intervals", 2, "--out", "run") == 0
    assert read(Path("run"))[0].machine == str(Path("m.npz").absolute())
    assert exit_code("--resume", "run", "--intervals", 3) == 0
