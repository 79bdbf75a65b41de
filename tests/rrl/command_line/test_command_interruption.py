"""Runs of `rrl-tune` that are interrupted, killed or fail: the target is left as it was found or better."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from envs.live import LiveServing
from rrl.guarding.choice import ToKeep
from rrl.guarding.guard import Guard
from rrl.journal import read
from rrl.knobs import in_words
from rrl.tuning.keeping import Keeping
from rrl.views.summary import summarise
from serving_adapter.target import OpenInferenceTarget, TargetError, TunerLease
from tests.support.runs.running_command import QUICK, exit_code, in_force, lines, tuner
from tests.support.waiting import until


def test_ctrl_c_leaves_the_found_configuration_or_a_better_one_and_exits_130(
    served: str, tmp_path: Path, state_home: Path
) -> None:
    process = tuner(served, "--intervals", 500, "--out", "run")
    until(lambda: lines(tmp_path / "run" / "journal.jsonl") > 6)
    process.send_signal(signal.SIGINT)
    assert process.wait(90) == 130
    header, records = read(tmp_path / "run")
    left = {k: v for k, v in in_force(served).items() if k in header.space.names}
    assert left == summarise(header, records).kept
    assert not list(state_home.iterdir())


def test_after_kill_9_the_next_start_restores_and_while_one_lives_no_other_starts(
    served: str, tmp_path: Path, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = in_force(served)
    process = tuner(served, "--intervals", 500, "--out", "run")
    until(lambda: lines(tmp_path / "run" / "journal.jsonl") > 5)
    assert exit_code("--target", served, "--out", "other", *QUICK) == 2
    assert f"another rrl-tune (pid {process.pid}) tunes sleep" in capsys.readouterr().err
    assert exit_code("--target", served, "--advise", *QUICK) == 2
    assert f"another rrl-tune (pid {process.pid}) tunes sleep" in capsys.readouterr().err
    process.kill()
    process.wait(90)
    assert exit_code("--target", served, "--advise", *QUICK) == 0
    assert "an earlier run did not end cleanly here: what is observed may be" in " ".join(
        capsys.readouterr().out.split()
    )
    assert len(list(state_home.glob("*.json"))) == 1
    before = len(read(tmp_path / "run")[1])
    assert exit_code("--resume", "run", "--intervals", before) == 0
    said = capsys.readouterr().out
    assert re.search(
        "an earlier run did not end cleanly here: (put back )?the configuration it had found", said
    )
    header, records = read(tmp_path / "run")
    assert header.found == found
    assert records[before].kind == "baseline"
    assert not list(state_home.glob("*.json"))


def test_a_resumed_run_that_is_killed_leaves_what_it_found_itself(
    served: str, tmp_path: Path, state_home: Path
) -> None:
    common = ["--target", served, "--agent", "random", *QUICK]
    assert exit_code(*common, "--intervals", 1, "--out", "run") == 0
    before = in_force(served)
    target = OpenInferenceTarget(served)
    target.connect()
    target.apply({"instances": 4})
    found = target.configuration()
    process = tuner(served, "--intervals", 500, "--resume", "run")
    until(lambda: state_home.exists() and list(state_home.glob("*.json")))
    process.kill()
    process.wait(90)
    (state,) = state_home.glob("*.json")
    told = json.loads(state.read_text())
    assert told["found"] == found
    state.unlink()
    target.take_lease(TunerLease(told["owner"], 0.0))
    target.apply(before)
    target.close()


@pytest.mark.parametrize("changes", [{}, {"instances": 7}])
def test_a_run_that_slept_while_another_tuner_had_the_target_charges_nothing_and_takes_back_its_own_only(
    served: str, tmp_path: Path, state_home: Path, changes: dict[str, int]
) -> None:
    found = in_force(served)
    run = ("--agent", "sweep", "--intervals", 500, "--interval-s", 2, "--out", "run")
    process = tuner(served, *run, stderr=subprocess.PIPE)
    # Within an interval: between two it would meet the changes first.
    until(lambda: lines(tmp_path / "run" / "journal.jsonl") > 1 and in_force(served) != found)
    process.send_signal(signal.SIGSTOP)
    (state,) = state_home.glob("*.json")
    intervals = len(read(tmp_path / "run")[1])
    target = OpenInferenceTarget(served)
    target.connect()
    for owner, duration_s in (
        (json.loads(state.read_text())["owner"], 0.0),  # as when it runs out
        ("rrl-tune of bob on b", 60.0),
        ("rrl-tune of bob on b", 0.0),
    ):
        target.take_lease(TunerLease(owner, duration_s))
    target.apply(changes)
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was leased to rrl-tune of bob on b since the lease of this tuner ran out" in said
    assert len(read(tmp_path / "run")[1]) == intervals
    if changes:
        assert target.configuration().items() >= changes.items()
        log = (tmp_path / "run" / "changes.log").read_text()
        assert "another client set it, and it stays" in log.splitlines()[-1]
        target.apply(found)
    else:  # what it found, or what it has measured to be better by then
        ending = json.loads((tmp_path / "run" / "journal.jsonl").read_text().splitlines()[-1])
        assert target.configuration() == found | ending["left"]
        assert ending["left"].items() <= found.items() or "lower cost than the start" in ending["reason"]
    assert not list(state_home.glob("*.json"))
    target.close()


def test_ctrl_c_while_the_target_is_away_says_who_restores_it(
    start_server: Callable[..., Any], tmp_path: Path, state_home: Path
) -> None:
    server = start_server("--model", "sleep", "--model-option", "ms=5")
    process = tuner(server.address, "--out", "run", stderr=subprocess.PIPE)
    until(lambda: lines(tmp_path / "run" / "journal.jsonl") > 0)
    server.stop(signal.SIGKILL)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "the target is away; the next start restores it" in said
    assert (tmp_path / "run" / "report.html").exists()
    assert "Traceback" not in said
    assert len(list(state_home.glob("*.json"))) == 1


def test_where_the_last_change_is_refused_the_exports_say_that_what_was_found_is_in_force(
    served: str, tmp_path: Path, state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = in_force(served)
    put_in_force = Keeping.put_in_force

    def without_memory(self: Keeping, number: int) -> None:
        if self._space.configuration(number).items() - found.items():
            raise TargetError("no memory for another process")
        put_in_force(self, number)

    def another(self: Guard, validation: object = None) -> ToKeep:
        return ToKeep(next(n for n in range(4) if n != self.start), "it was better")

    monkeypatch.setattr(Keeping, "put_in_force", without_memory)
    monkeypatch.setattr(Guard, "keeping", another)
    arguments = ["--agent", "sweep", "--intervals", 3, "--out", "run", *QUICK]
    assert exit_code("--target", served, *arguments) == 1
    assert in_force(served) == found
    assert not list(state_home.iterdir())
    knobs = (tmp_path / "run" / "best_configuration.yaml").read_text()
    assert knobs.startswith("# The configuration that this run left in force.\n")
    assert yaml.safe_load(knobs)["configuration"].items() <= found.items()
    left = in_words(read(tmp_path / "run")[0].start)
    assert f"Left in force: <strong>{left}</strong>" in (tmp_path / "run" / "report.html").read_text()
    assert (tmp_path / "run" / "best_config.pbtxt").exists()


def test_a_run_that_fails_but_put_the_target_back_leaves_nothing_to_restore(
    served: str, state_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise TargetError("the target refuses it")

    found = in_force(served)
    monkeypatch.setattr(LiveServing, "run", refused)
    assert exit_code("--target", served, "--agent", "sweep", *QUICK) == 1
    assert capsys.readouterr().err == "the run ended: the target refuses it\n"
    assert in_force(served) == found
    assert not list(state_home.iterdir())
