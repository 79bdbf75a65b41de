"""Somebody changes a live server by hand while `rrl-tune` runs on it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from serving_adapter.target import OpenInferenceTarget
from tests.support.runs.running_command import QUICK, in_force, lines
from tests.support.waiting import until


def set_by_hand(served: str, **knobs: int) -> None:
    with closing(OpenInferenceTarget(served)) as target:
        target.connect()
        target.apply(knobs)


def started(served: str, *arguments: object) -> subprocess.Popen[str]:
    common = ["--target", served, "--agent", "rule", "--out", "run", "--intervals", "5000", *QUICK]
    command = [sys.executable, "-m", "rrl.command_line", *map(str, arguments), *common]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    ("arguments", "knobs", "why"),
    [
        (["--on-foreign-change", "stop"], {"instances": 1, "max_batch_size": 4}, "the run leaves it so"),
        ([], {"instances": 3}, "it is not on the run's grid"),
    ],
)
def test_what_is_set_by_hand_ends_the_run_and_stays(
    arguments: list[str], knobs: dict[str, int], why: str, served: str, tmp_path: Path, state_home: Path
) -> None:
    set_by_hand(served, instances=1, max_batch_size=1)
    run = started(served, *arguments)
    journal = tmp_path / "run" / "journal.jsonl"
    until(lambda: lines(journal) > 3)
    before = in_force(served)
    assert not knobs.items() <= before.items()
    set_by_hand(served, **knobs)
    said, _ = run.communicate(timeout=90)
    assert run.returncode == 0
    assert why in " ".join(said.split())
    assert in_force(served) == before | knobs
    assert not list(state_home.iterdir())


def test_a_killed_run_that_had_gone_on_from_it_leaves_it(
    served: str, tmp_path: Path, state_home: Path
) -> None:
    set_by_hand(served, instances=1, max_batch_size=1)
    run = started(served)
    until(lambda: lines(tmp_path / "run" / "journal.jsonl") > 3)
    set_by_hand(served, instances=1, max_batch_size=4)  # not what the rule proposes
    (state,) = state_home.glob("*.json")
    until(lambda: json.loads(state.read_text())["found"]["max_batch_size"] == 4)
    assert "the run goes on from it" in (tmp_path / "run" / "changes.log").read_text()
    run.kill()
    run.communicate(timeout=90)
    command = [sys.executable, "-m", "rrl.command_line", "--target", served, "--intervals", "1", *QUICK]
    ended = subprocess.run([*command, "--out", "other"], capture_output=True, text=True, timeout=120)
    said = " ".join(ended.stdout.split())
    assert ended.returncode == 0
    assert re.search(
        r"an earlier run did not end cleanly here: .*it had found, 1 inst\..{1,20} batch 4", said
    )
    assert not list(state_home.glob("*.json"))
