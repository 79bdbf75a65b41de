"""What a careful operator allows `rrl-tune` to change, and when."""

from __future__ import annotations

import re
import signal
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rrl.journal import read
from tests.support.runs.running_command import QUICK, exit_code, in_force, lines, started
from tests.support.waiting import until


def said_until_it_waits(*arguments: object) -> str:
    """What a run says that is interrupted once its journal in `run` has three more intervals of waiting."""
    before = waits()
    process = started(*arguments, stdout=subprocess.PIPE)
    until(lambda: waits() >= before + 3)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 130
    return said


def waits() -> int:
    return sum(r.kind == "wait" for r in read(Path("run"))[1]) if lines(Path("run/journal.jsonl")) else 0


def test_changes_are_limited_over_a_run_and_over_the_one_that_resumes_it(served: str) -> None:
    common = ["--target", served, "--agent", "random", *QUICK]
    said = said_until_it_waits(*common, "--max-changes-per-hour", 3, "--intervals", 500, "--out", "run")
    header, records = read(Path("run"))
    assert "waits: no more than 3 changes in an hour: the next at " in said
    log = Path("run/changes.log").read_text().splitlines()
    assert set(log) <= set(said.splitlines())
    assert all(
        re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  (instances|batch) \d+ -> \d+", line) for line in log
    )
    made = sum(len(r.changed_at_s) for r in records)
    assert 1 <= made <= 3
    assert header.limits == {"max_changes_per_hour": 3}

    said_until_it_waits("--resume", "run", "--intervals", 500)
    again = read(Path("run"))[1][len(records) :]
    assert sum(len(r.changed_at_s) for r in again if r.decision == "agent") == 0
    assert len(Path("run/changes.log").read_text().splitlines()) >= len(log)
    assert exit_code("--resume", "run", "--duration", "5s") == 0


def test_outside_the_change_window_nothing_is_changed(served: str) -> None:
    found = in_force(served)
    far = datetime.now() + timedelta(hours=10)
    window = f"{far:%H:%M}-{far + timedelta(minutes=30):%H:%M}"
    common = ["--target", served, "--agent", "random", *QUICK]
    said = said_until_it_waits(*common, "--change-window", window, "--intervals", 500, "--out", "run")
    assert "waits: outside the change window: the next at " in said
    assert in_force(served) == found
    assert not Path("run/changes.log").exists()
    assert {r.kind for r in read(Path("run"))[1]} == {"baseline", "wait"}


def test_a_forbidden_knob_is_never_changed(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = in_force(served)
    common = ["--target", served, "--agent", "random", *QUICK]
    assert exit_code(*common, "--forbid", "nodes_per_unit", "--out", "run") == 2
    said = capsys.readouterr().err
    assert said.startswith("--forbid: the target has no knob nodes_per_unit; it has instances, ")
    assert exit_code(*common, "--forbid", "instances,max_batch_size", "--out", "run") == 2
    assert (
        "--forbid leaves nothing to tune: it forbids all of instances, max_batch_size"
        in capsys.readouterr().err
    )
    assert exit_code(*common, "--forbid", "instances", "--intervals", 3, "--out", "run") == 0
    header, _ = read(Path("run"))
    assert header.space.names == ("max_batch_size",)
    assert in_force(served)["instances"] == found["instances"]
    assert exit_code("--resume", "run", "--intervals", 4) == 0
