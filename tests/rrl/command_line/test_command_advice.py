"""`rrl-tune --advise`: it recommends, and changes only what somebody agrees to."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rrl.advice.careful_apply import AgreedChange
from rrl.command_line.advise import _apply
from rrl.command_line.ending import INTERRUPTED
from rrl.command_line.options.options import TuneOptions
from rrl.tuning.change_limits import ChangeLimits
from rrl.tuning.stop import Stop
from rrl.views.reference_table import Origin, ReferenceTable
from serving_adapter.flags.parsing import parse
from serving_adapter.target import OpenInferenceTarget
from tests.support.runs.fake_target import FakeClock, FakeTarget
from tests.support.runs.running_command import QUICK, exit_code, in_force, two_by_two


def test_advice_changes_nothing(served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = OpenInferenceTarget(served)
    target.connect()
    before = target.configuration()
    target.apply(
        {"instances": 1, "max_batch_size": 1, "intra_op_threads": 1}
    )  # as the machine's table has it
    found = target.configuration()
    two_by_two(3.0)
    advise = ["--target", served, "--advise", *QUICK]
    assert exit_code(*advise) == 0
    said = capsys.readouterr().out
    assert "observed: " in said
    assert re.search(r"^(no change )?recommended: ", said, re.MULTILINE)
    assert "(by 3 intervals of the configuration in force alone" in said
    assert exit_code(*advise, "--machine", "m.npz") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 inst." in said  # recommended, or the best guess
    assert re.search(r"expected mean [\d.]+ ms \([\d.]+ to [\d.]+ ms with 90%\) instead of [\d.]+ ms", said)
    assert "(by simulation of the machine file" in said
    assert not list(Path().glob("runs"))
    assert target.configuration() == found
    target.apply(before)
    target.close()


def test_advice_is_applied_only_where_somebody_can_be_asked(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("--target", served, "--advise", "--apply-after-advise", *QUICK) == 2
    assert "asks on the terminal before it changes anything" in capsys.readouterr().err


def test_advice_comes_from_an_earlier_run(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--target", served, "--agent", "sweep", *QUICK]
    assert exit_code(*common, "--intervals", 2, "--out", "runs/first") == 0
    assert exit_code("--target", served, "--advise", *QUICK) == 0
    assert "(by runs/first/reference_table.yaml: it cost " in capsys.readouterr().out


def test_advice_does_not_come_from_a_run_on_another_target_unless_it_is_named(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--target", served, "--agent", "sweep", *QUICK]
    assert exit_code(*common, "--intervals", 2, "--out", "runs/first") == 0
    path = Path("runs/first/reference_table.yaml")
    table = ReferenceTable.read(path)
    assert table.origin is not None
    replace(table, origin=Origin("embedded", table.origin.server)).write(path)
    capsys.readouterr()
    assert exit_code("--target", served, "--advise", *QUICK) == 0
    assert "(by 3 intervals of the configuration in force alone" in capsys.readouterr().out
    assert exit_code("--target", served, "--advise", "--reference-table", path, *QUICK) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "it was measured on another target, embedded (rrl-serve " in said


def test_an_agreed_change_is_applied_watched_and_logged(served: str, state_home: Path) -> None:
    found = in_force(served)
    options = parse(
        TuneOptions, ["--target", served, "--advise", "--apply-after-advise", "--out", "applied", *QUICK]
    )
    target = OpenInferenceTarget(served)
    target.connect(control=False)
    other = {"instances": 2 if found["instances"] == 1 else 1, "max_batch_size": found["max_batch_size"]}
    assert _apply(options, Console(), Stop(print), target, other, ChangeLimits()) == 0
    target.close()
    log = Path("applied/changes.log").read_text().splitlines()
    assert log[0].endswith("the agent: applies what was recommended, as agreed")
    assert in_force(served)["instances"] in (found["instances"], other["instances"])
    assert not list(state_home.iterdir())
    target = OpenInferenceTarget(served)
    target.connect()
    target.apply(found)
    target.close()


def test_a_second_ctrl_c_says_what_an_agreed_change_may_have_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def impatient(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AgreedChange, "run", impatient)
    options = TuneOptions(target="fake:1", advise=True, apply_after_advise=True, out=Path("applied"))
    code = _apply(options, Console(), Stop(print), FakeTarget(FakeClock()), {"instances": 1}, ChangeLimits())
    assert code == INTERRUPTED
    assert "the next rrl-tune on it puts the found one back" in capsys.readouterr().err
