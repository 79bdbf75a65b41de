from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.machine import Machine
from rrl.command_line import main
from rrl.journal import read
from rrl.tune_options import TuneOptions, seconds, tuning_intervals
from serving_adapter.options import parse
from serving_adapter.target import Target

QUICK = ["--interval-s", "0.5", "--settle-s", "0.1", "--knobs", "instances=1:2,max_batch_size=1,4"]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "rrl-tune"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the `sleep` model, under load."""
    from conftest import start

    running = start("--model", "sleep", "--model-option", "ms=5")
    out = tmp_path_factory.mktemp("load")
    command = [sys.executable, "-m", "serving_adapter.load.command_line", "--target", running.address]
    command += ["--rate", "60", "--duration-s", "0", "--out", str(out)]
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    yield running.address
    load.terminate()
    load.wait(30)
    assert json.loads((out / "load.json").read_text())["failed"] == {}
    running.stop()
    running.process.stdout.close()


def exit_code(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return ended.value.code


def in_force(address: str) -> dict[str, int]:
    target = Target(address)
    target.connect(control=False)
    try:
        return target.configuration()
    finally:
        target.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--agent", "alphago"], "unknown agent 'alphago'; known: rrl, "),
        (["--objective", "fun"], "unknown objective 'fun'; known: latency, strict-slo, least-resources"),
        (["--objective", "strict-slo"], "needs a limit: give --slo-p95-ms"),
        (["--slo-p95-ms", "-1"], "must be positive"),
        (["--intervals", "0"], "--intervals must be at least 1, got 0"),
        (["--intervals", "5", "--duration", "5m"], "not both"),
        (["--duration", "soon"], "cannot read --duration 'soon'"),
        (["--interval-s", "0.5"], "--interval-s must be above --settle-s"),
        (["--rate", "0"], "--rate must be above 0"),
        (["--knobs", "instances=four"], "knob 'instances': cannot read 'four'"),
        (["--advise"], "give --target HOST:PORT"),
        (["--resume", "nowhere"], "no journal at nowhere"),
        (["--target", "localhost"], "HOST:PORT"),
        (["--config", "absent.yaml"], "absent.yaml"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert "\n" not in said


def test_a_target_that_does_not_answer_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert exit_code("--target", f"127.0.0.1:{port}") == 2
    assert "does not answer" in capsys.readouterr().err


def test_a_yaml_file_has_the_same_keys(tmp_path: Path) -> None:
    path = tmp_path / "tune.yaml"
    path.write_text(
        "target: localhost:8500\nknobs: ['instances=1:4', 'max_batch_size=1,2']\nduration: 5m\n"
        "slo_p95_ms: 100\nobjective: strict-slo\nagent: random\nseed: 3\n"
    )
    options = parse(TuneOptions, ["--config", str(path), "--seed", "4"])
    assert options == TuneOptions(
        target="localhost:8500",
        knobs=("instances=1:4", "max_batch_size=1,2"),
        duration="5m",
        slo_p95_ms=100.0,
        objective="strict-slo",
        agent="random",
        seed=4,
    )


@pytest.mark.parametrize(("text", "expected_s"), [(300, 300), ("90s", 90), ("5m", 300), ("1.5h", 5400)])
def test_durations_are_read(text: str | float, expected_s: float) -> None:
    assert seconds(text) == expected_s


def test_a_duration_covers_the_whole_run() -> None:
    assert tuning_intervals(TuneOptions(duration="5m")) == 60 - 7
    assert tuning_intervals(TuneOptions()) == 50
    assert (3 + 50 + 4) * TuneOptions().interval_s < 60 * 5


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


def test_a_complete_run_is_not_resumed_without_more_intervals(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--target", served, "--agent", "sweep", *QUICK]
    assert exit_code(*common, "--intervals", 2, "--out", "run") == 0
    assert exit_code("--resume", "run") == 2
    assert "is complete (2 intervals)" in capsys.readouterr().err
    assert exit_code("--resume", "run", "--intervals", 3) == 0
    assert sum(r.kind == "tune" for r in read(Path("run"))[1]) >= 3


def tuner(served: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rrl.command_line", "--target", served, "--agent", "random", *QUICK]
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen([*command, *map(str, arguments)], text=True, env=environment)


def until(condition: Callable[[], Any]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, "it did not happen within a minute"
        time.sleep(0.02)


def lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def test_ctrl_c_leaves_the_found_configuration_or_a_better_one_and_exits_130(
    served: str, tmp_path: Path, state_home: Path
) -> None:
    process = tuner(served, "--intervals", 500, "--out", "run")
    until(lambda: lines(tmp_path / "run" / "journal.jsonl") > 6)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    header, records = read(tmp_path / "run")
    costs: dict[str, list[float]] = {}
    for r in records:
        if r.learned:
            costs.setdefault(str(r.configuration), []).append(r.cost)
    left = {k: v for k, v in in_force(served).items() if k in header.space.names}
    assert np.mean(costs[str(left)]) <= np.mean(costs[str(header.start)])
    assert not list(state_home.iterdir())


def test_after_kill_9_the_next_start_restores_and_while_one_lives_no_other_starts(
    served: str, tmp_path: Path, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = in_force(served)
    process = tuner(served, "--intervals", 500, "--out", "run")
    until(lambda: lines(tmp_path / "run" / "journal.jsonl") > 5)
    assert exit_code("--target", served, "--out", "other", *QUICK) == 2
    assert f"another rrl-tune (pid {process.pid}) tunes sleep" in capsys.readouterr().err
    process.kill()
    process.wait(30)
    assert len(list(state_home.iterdir())) == 1
    before = len(read(tmp_path / "run")[1])
    assert exit_code("--resume", "run", "--intervals", before) == 0
    assert (
        "an earlier run was killed here: put back the configuration it had found" in capsys.readouterr().out
    )
    header, records = read(tmp_path / "run")
    assert header.found == found
    assert records[before].kind == "baseline"
    assert not list(state_home.iterdir())


def test_advice_changes_nothing(served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = in_force(served)
    one = np.array([1])
    Machine(one, one, np.array([1, 2]), np.array([1, 4]), np.array([[[[0.01, 0.02], [0.01, 0.02]]]])).save(
        "m.npz"
    )
    advise = ["--target", served, "--advise", *QUICK]
    assert exit_code(*advise) == 0
    assert "no recommendation: there is no earlier run and no machine file" in capsys.readouterr().out
    assert exit_code(*advise, "--machine", "m.npz") == 0
    said = capsys.readouterr().out
    assert "observed: " in said
    assert "recommended: 2 inst." in said
    assert in_force(served) == found


def test_advice_comes_from_an_earlier_run(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--target", served, "--agent", "sweep", *QUICK]
    assert exit_code(*common, "--intervals", 2, "--out", "runs/first") == 0
    assert exit_code("--target", served, "--advise", *QUICK) == 0
    assert "(runs/first/reference_table.yaml)" in capsys.readouterr().out
