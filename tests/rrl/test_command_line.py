from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from baselines import AGENTS, NEED_HINDSIGHT
from baselines.training import main as train
from envs.live import LiveServing
from rrl.change_limits import ChangeLimits
from rrl.command_line import main
from rrl.command_line.advise import _apply
from rrl.embedded import Embedded, EmbeddedFailed, EmbeddedSettings
from rrl.journal import read
from rrl.queueing.machine import Machine
from rrl.stop import Stop
from rrl.tune_options import TuneOptions, seconds, tuning_intervals
from serving_adapter.options import parse
from serving_adapter.target import Target, TargetError

QUICK = ["--interval-s", "0.5", "--settle-s", "0.1", "--knobs", "instances=1:2,max_batch_size=1,4"]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "rrl-tune"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the `sleep` model, under load."""
    from running_server import start

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
        (["--agent", "oracle"], "agent 'oracle' needs the true cost of every configuration"),
        (["--agent", "best-fixed"], "use rrl-compare"),
        (["--machine", "absent.npz"], "there is no machine file 'absent.npz'"),
        (["--agent-from", "nowhere"], "no journal at nowhere"),
        (["--agent-from", "a", "--resume", "b"], "leave --agent-from away"),
        (["--agent-from", "a", "--advise", "--target", "localhost:1"], "leave --agent-from away"),
        (["--objective", "fun"], "unknown objective 'fun'; known: latency, strict-slo, least-resources"),
        (["--objective", "strict-slo"], "needs a limit: give --slo-p95-ms"),
        (["--slo-p95-ms", "-1"], "must be a positive number"),
        (["--slo-p95-ms", "nan"], "must be a positive number of milliseconds, got nan"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--arrivals", "steady"], "unknown arrivals 'steady'"),
        (["--arrivals", "absent.csv"], "absent.csv"),
        (["--sizes", "huge"], "sizes 'huge' are not understood"),
        (["--out", "/proc/x"], "/proc/x"),
        (["--intervals", "0"], "--intervals must be at least 1, got 0"),
        (["--intervals", "5", "--duration", "5m"], "not both"),
        (["--duration", "soon"], "cannot read --duration 'soon'"),
        (["--validation", "-1"], "--validation must be at least 0, got -1"),
        (["--max-changes-per-hour", "0"], "--max-changes-per-hour must be at least 1, got 0"),
        (["--change-window", "at night"], "cannot read --change-window 'at': expected HH:MM-HH:MM"),
        (["--change-window", "12:00-12:01", "--interval-s", "30"], "too short to try anything"),
        (["--change-window", "1:00-2:00", "--change-window", "3:00-4:00"], "--change-window is given twice"),
        (["--forbid", "instances", "--forbid=max_batch_size"], "--forbid is given twice"),
        (["--apply-after-advise"], "applies what --advise recommends: give both"),
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
    assert tuning_intervals(TuneOptions(duration="5m")) == 60 - 5
    assert tuning_intervals(TuneOptions(duration="5m", validation=0)) == 60 - 3  # start: thrice
    assert tuning_intervals(TuneOptions()) == 50
    assert (1 + 50 + 8) * TuneOptions().interval_s < 60 * 5


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


def tuner(served: str, *arguments: object, stderr: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rrl.command_line", "--target", served, "--agent", "random", *QUICK]
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen([*command, *map(str, arguments)], text=True, env=environment, stderr=stderr)


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


def test_a_found_value_off_the_knobs_given_is_added_to_them(
    served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = in_force(served)
    target = Target(served)
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


def test_a_resumed_run_that_is_killed_leaves_what_it_found_itself(
    served: str, tmp_path: Path, state_home: Path
) -> None:
    common = ["--target", served, "--agent", "random", *QUICK]
    assert exit_code(*common, "--intervals", 1, "--out", "run") == 0
    before = in_force(served)
    target = Target(served)
    target.connect()
    target.apply({"instances": 4})
    found = target.configuration()
    process = tuner(served, "--intervals", 500, "--resume", "run")
    until(lambda: state_home.exists() and list(state_home.glob("*.json")))
    process.kill()
    process.wait(30)
    (state,) = state_home.iterdir()
    assert json.loads(state.read_text())["found"] == found
    state.unlink()
    target.apply(before)
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
    assert len(list(state_home.iterdir())) == 1


def test_a_run_that_fails_but_put_the_target_back_leaves_nothing_to_restore(
    served: str, state_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise TargetError("the target refuses it")

    found = in_force(served)
    monkeypatch.setattr(LiveServing, "step", refused)
    assert exit_code("--target", served, "--agent", "sweep", *QUICK) == 1
    assert capsys.readouterr().err == "the run ended: the target refuses it\n"
    assert in_force(served) == found
    assert not list(state_home.iterdir())


# careful operators


def test_changes_are_limited_over_a_run_and_over_the_one_that_resumes_it(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--target", served, "--agent", "random", *QUICK]
    limited = ["--max-changes-per-hour", 3, "--duration", "7s", "--out", "run"]
    assert exit_code(*common, *limited) == 0
    said = capsys.readouterr().out
    header, records = read(Path("run"))
    waits = [r for r in records if r.kind == "wait"]
    assert waits
    assert "waits: no more than 3 changes in an hour: the next at " in said
    log = Path("run/changes.log").read_text().splitlines()
    assert set(log) <= set(said.splitlines())
    assert all(
        re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  (instances|batch) \d+ -> \d+", line) for line in log
    )
    made = sum(len(r.changed_at_s) for r in records)
    assert 1 <= made <= 3
    assert header.limits == {"max_changes_per_hour": 3}

    assert exit_code("--resume", "run", "--duration", "6s") == 0
    again = read(Path("run"))[1][len(records) :]
    assert any(r.kind == "wait" for r in again)
    assert sum(len(r.changed_at_s) for r in again if r.decision == "agent") == 0
    assert len(Path("run/changes.log").read_text().splitlines()) >= len(log)


def test_outside_the_change_window_nothing_is_changed(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = in_force(served)
    far = datetime.now() + timedelta(hours=10)
    window = f"{far:%H:%M}-{far + timedelta(minutes=30):%H:%M}"
    common = ["--target", served, "--agent", "random", *QUICK]
    assert exit_code(*common, "--change-window", window, "--duration", "4s", "--out", "run") == 0
    assert "waits: outside the change window: the next at " in capsys.readouterr().out
    assert in_force(served) == found
    assert not Path("run/changes.log").exists()
    assert {r.kind for r in read(Path("run"))[1]} == {"baseline", "wait"}


def test_a_forbidden_knob_is_never_changed(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = in_force(served)
    common = ["--target", served, "--agent", "random", *QUICK]
    assert exit_code(*common, "--forbid", "speed", "--out", "run") == 2
    said = capsys.readouterr().err
    assert said.startswith("--forbid: the target has no knob speed; it has instances, ")
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


def test_the_best_is_measured_as_often_as_asked_for(served: str) -> None:
    common = ["--target", served, "--agent", "sweep", *QUICK]
    assert exit_code(*common, "--intervals", 4, "--validation", 3, "--out", "run") == 0
    header, records = read(Path("run"))
    turns = [r.number for r in records if r.kind == "validation"]
    assert header.validation == 3
    assert turns == turns[:2] * (len(turns) // 2)
    assert len(turns) in (0, 6, 8, 10, 12)  # more where the first six leave the question open
    assert exit_code("--resume", "run", "--intervals", 5, "--validation", 2) == 0  # its default: as before
    assert exit_code("--resume", "run", "--intervals", 6, "--validation", 1) == 2


def test_an_agreed_change_is_applied_watched_and_logged(served: str, state_home: Path) -> None:
    found = in_force(served)
    options = parse(
        TuneOptions, ["--target", served, "--advise", "--apply-after-advise", "--out", "applied", *QUICK]
    )
    target = Target(served)
    target.connect(control=False)
    other = {"instances": 2 if found["instances"] == 1 else 1, "max_batch_size": found["max_batch_size"]}
    assert _apply(options, Console(), Stop(print), target, other, ChangeLimits()) == 0
    target.close()
    log = Path("applied/changes.log").read_text().splitlines()
    assert log[0].endswith("the agent: applies what was recommended, as agreed")
    assert in_force(served)["instances"] in (found["instances"], other["instances"])
    assert not list(state_home.iterdir())
    target = Target(served)
    target.connect()
    target.apply(found)
    target.close()


@pytest.fixture
def own_model(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom serving_adapter.tensors import TensorSpec\n"
        "class Twice(torch.nn.Module):\n    def forward(self, x):\n        return {'y': 2 * x}\n"
        "def twice():\n    return Twice(), [TensorSpec('x', 'FP32', (4,))]\n"
    )
    return "mine:twice"


def test_ones_own_model_is_embedded_and_ends_with_its_trace(
    own_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    Path("trace.csv").write_text("t_s\n" + "\n".join(str(i) for i in range(100)) + "\n")
    load = ["--arrivals", "trace.csv", "--rate", 40]
    common = ["--agent", "sweep", "--intervals", 100, *QUICK]
    assert exit_code("--model", own_model, *load, *common, "--out", "run") == 0
    assert "the load's trace is over" in capsys.readouterr().out
    header, _ = read(tmp_path / "run")
    assert (header.model, header.target) == ("twice", "embedded")
    assert exit_code("--resume", "run") == 0


def test_a_load_that_breaks_ends_the_run(tmp_path: Path) -> None:
    embedded = Embedded(tmp_path, EmbeddedSettings(rate_per_s=1.0))
    embedded.address = "nowhere"
    embedded.start_load()
    with pytest.raises(EmbeddedFailed, match="the embedded load broke: --target must be HOST:PORT"):
        until(embedded.check)


def test_only_a_resumed_run_replaces_events_and_nothing_else(tmp_path: Path) -> None:
    from test_journal import header, record

    from rrl.tensorboard_events import TensorBoardEvents

    folder = tmp_path / "tensorboard"
    folder.mkdir()
    kept, events = folder / "notes.txt", folder / "events.out.tfevents.1"
    kept.touch()
    events.touch()
    TensorBoardEvents(tmp_path, header(), [])
    assert events.exists()
    TensorBoardEvents(tmp_path, header(), [record()])
    assert kept.exists()
    assert not events.exists()


def test_the_help_lists_the_agents_that_a_live_run_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    said = capsys.readouterr().out
    for name in AGENTS:
        assert bool(re.search(rf"[ ,(]{name}[ ,.)]", said)) == (name not in NEED_HINDSIGHT), name


def two_by_two() -> None:
    """A machine file of one instance and two, batches of one and four."""
    one, times_s = np.array([1]), np.array([[[[0.01, 0.02], [0.01, 0.02]]]])
    Machine(one, one, np.array([1, 2]), np.array([1, 4]), times_s).save("m.npz")


def trained(agent: str, out: str, *arguments: object) -> None:
    two_by_two()
    grid = ["--knobs", "instances=1:2,max_batch_size=1,4"]
    common = ["--machine", "m.npz", "--agent", agent, "--decisions", 5, "--out", out]
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


def test_advice_changes_nothing(served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = Target(served)
    target.connect()
    before = target.configuration()
    target.apply({"instances": 1, "max_batch_size": 1})
    found = target.configuration()
    two_by_two()
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
