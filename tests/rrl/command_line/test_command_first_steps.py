"""What a new user asks first: `rrl-tune init` and `--dry-run`."""

from __future__ import annotations

import builtins
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from rrl.command_line.first_options import OBJECTIVES, asked
from rrl.command_line.options.options import TuneOptions
from rrl.objective import OBJECTIVES as ALL_OBJECTIVES
from scripts.docs.commands import commands_page
from serving_adapter.flags.parsing import parse
from tests.support.runs.running_command import answered, exit_code, in_force


def test_a_dry_run_tells_the_grid_the_guard_and_the_length_and_changes_nothing(
    served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = in_force(served)
    knobs = ("--knobs", "instances=1:3", "--slo-p95-ms", 50, "--intervals", 12, "--max-changes-per-hour", 6)
    assert exit_code("--target", served, "--dry-run", *knobs, "--out", "run") == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in (
        "nothing was changed",
        "tries instances 1, 2, 3 (in place)",
        "latency, p95 at most 50 ms",
        "12 of the search",
        "at most 6 in any hour",
        "a configuration costs 3 times the start",
        "the limit is broken",
    ):
        assert words in said
    assert in_force(served) == found
    assert not (tmp_path / "run").exists()
    assert answered(served) > 0


def test_a_dry_run_names_no_latency_where_the_cost_is_none(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--objective", "least-resources", "--slo-p95-ms", 50, "--validation", 0)
    assert exit_code("--target", served, "--dry-run", *flags) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "times the start" not in said
    assert "the best by what was measured is kept, or the start" in said


@pytest.mark.parametrize("command", ["init", "watch", "what-if"])
def test_the_help_and_the_reference_name_each_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("--help") == 0
    assert f"- `rrl-tune {command}` " in capsys.readouterr().out
    assert f"## rrl-tune {command}\n" in commands_page()
    assert exit_code(command, "--help") == 0


def test_a_dry_run_needs_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--dry-run") == 2
    assert "give --target HOST:PORT" in capsys.readouterr().err


def given(monkeypatch: pytest.MonkeyPatch, *answers: str) -> Console:
    said: Iterator[str] = iter(answers)
    monkeypatch.setattr(builtins, "input", lambda *prompt: next(said))
    return Console(file=io.StringIO())


def test_three_answers_make_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(given(monkeypatch, "gpu-box:8001", "strict-slo", "50")) == {
        "target": "gpu-box:8001",
        "objective": "strict-slo",
        "slo_p95_ms": 50.0,
    }
    assert asked(given(monkeypatch, "", "", "")) == {"target": "localhost:8001", "objective": "latency"}


def test_every_objective_is_offered() -> None:
    assert tuple(OBJECTIVES) == ALL_OBJECTIVES


def test_answers_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        asked(given(monkeypatch, "nowhere", "", ""))
    with pytest.raises(ValueError, match="needs a limit"):
        asked(given(monkeypatch, "", "strict-slo", ""))
    with pytest.raises(ValueError, match="must be a number of ms, got 'soon'"):
        asked(given(monkeypatch, "", "strict-slo", "soon"))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_init_writes_is_taken_for_each_objective(
    objective: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, "localhost:8001", objective, "50")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert exit_code("init") == 0
    options = parse(TuneOptions, ["--config", "rrl-tune.yaml"])
    assert (options.objective, options.slo_p95_ms) == (objective, 50.0)
    assert options.bench == (objective in ("throughput", "capacity"))
    assert (options.concurrency is not None) == (objective == "throughput")
    assert "name those to tune: model: NAME" in Path("rrl-tune.yaml").read_text()


def test_what_init_writes_runs(
    served: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, served, "strict-slo", "50")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert exit_code("init") == 0
    assert "now: rrl-tune --config rrl-tune.yaml --dry-run" in capsys.readouterr().out
    assert exit_code("--config", "rrl-tune.yaml", "--dry-run") == 0
    assert "strict-slo, p95 at most 50 ms" in " ".join(capsys.readouterr().out.split())


def test_init_asks_in_a_terminal_only_and_keeps_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("init") == 2
    assert "run it in a terminal" in capsys.readouterr().err
    Path("rrl-tune.yaml").write_text(yaml.safe_dump({"target": "localhost:1"}))
    assert exit_code("init") == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("ended", [EOFError, KeyboardInterrupt], ids=["Ctrl-D", "Ctrl-C"])
def test_init_that_is_left_says_that_nothing_was_written(
    ended: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def left(*prompt: str) -> str:
        raise ended

    monkeypatch.setattr(builtins, "input", left)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert exit_code("init") == 2
    assert "rrl-tune.yaml was not written" in capsys.readouterr().err
    assert not Path("rrl-tune.yaml").exists()
