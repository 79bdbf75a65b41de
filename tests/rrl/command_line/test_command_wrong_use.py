"""Wrong use of `rrl-tune` is one sentence; options are read as its help says."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from baselines import AGENTS, NEED_HINDSIGHT
from rrl.command_line import advise, dry_run
from rrl.command_line.embedded.embedded import Embedded
from rrl.command_line.opening import reach, several_models
from rrl.command_line.options.option_values import seconds, tuning_intervals
from rrl.command_line.options.options import TuneOptions
from serving_adapter.flags.parsing import parse
from tests.support import CHECKOUT
from tests.support.runs.running_command import exit_code


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--agent", "alphago"], "unknown agent 'alphago'; known: guided, "),
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
        (["wach", "--target", "a:1"], "unknown command 'wach'; the nearest is watch"),
        (["what_if", "run"], "unknown command 'what_if'; the nearest is what-if"),
        (["localhost:8001"], "unknown command 'localhost:8001'; expected init, watch, what-if or a flag"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert "\n" not in said


TARGET = ("--target", "localhost:1")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--agent", "serf"], "service times profiled beforehand: give --machine FILE"),
        ([*TARGET, "--agent", "serf"], "service times profiled beforehand: give --machine FILE"),
        (["--knobs", "replicas=1:2"], "--knobs: no server has a knob replicas; give some of instances, "),
        (["watch", *TARGET, "--knobs", "resnet.replicas=1:2"], "no server has a knob resnet.replicas"),
        ([*TARGET, "--pin", "replicas=1"], "--pin: no server has a knob replicas"),
        ([*TARGET, "--forbid", "replicas"], "--forbid: no server has a knob replicas"),
        ([*TARGET, "--model", "a,b", "--machine", "absent.npz"], "no machine file 'absent.npz'"),
        ([*TARGET, "--dry-run", "--machine", "absent.npz"], "no machine file 'absent.npz'"),
        ([*TARGET, "--advise", "--machine", "absent.npz"], "no machine file 'absent.npz'"),
        ([*TARGET, "--advise", "--reference-table", "absent"], "cannot read the reference table absent"),
        (["watch", *TARGET, "--reference-table", "absent"], "cannot read the reference table absent"),
        (["--input-data", "absent.json"], "cannot read --input-data absent.json (No such file"),
        ([*TARGET, "--bench", "--input-data", "absent.json"], "cannot read --input-data absent.json"),
        ([*TARGET, "--bench", "--arrivals", "absent.csv"], "absent.csv"),
    ],
)
def test_wrong_use_is_told_before_a_server_is_started_or_asked(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("a server was started or asked")

    monkeypatch.setattr(Embedded, "start_server", never)
    for module in (reach, dry_run, advise, several_models):
        monkeypatch.setattr(module, "connected", never)
    assert exit_code(*arguments) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.json", "", "empty.json is no JSON"),
        ("none.json", '{"data": []}', "none.json has no requests"),
        ("other.json", '{"x": 1}', 'other.json must be an object with a list "data"'),
        ("last.json", '{"data": [{"x": [1]}, 2]}', "data[1] must be an object of inputs by name"),
        ("empty.npz", "", "empty.npz is no .npz of plain arrays"),
    ],
)
def test_input_data_that_cannot_be_sent_are_told_before_a_server_is_started(
    name: str,
    content: str,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr(Embedded, "start_server", never)
    (tmp_path / name).write_text(content)
    assert exit_code("--input-data", str(tmp_path / name), "--out", str(tmp_path / "run")) == 2
    assert sentence in capsys.readouterr().err


def test_a_target_of_another_kind_has_knobs_of_its_own() -> None:
    TuneOptions(target="ray://localhost:8265", knobs=("max_ongoing_requests=5,16",))


def test_an_agents_former_name_is_taken_for_the_present_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--agent", "rrl", "--resume", "nowhere") == 2
    former, wrong_use = capsys.readouterr().err.splitlines()
    assert former.startswith("agent 'rrl' is taken for 'guided': ")
    assert "no journal at nowhere" in wrong_use


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


def test_the_help_lists_the_agents_that_a_live_run_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    said = capsys.readouterr().out
    for name in AGENTS:
        assert bool(re.search(rf"[ ,(]{name}[ ,.)]", said)) == (name not in NEED_HINDSIGHT), name


def test_the_command_starts_without_what_takes_seconds() -> None:
    code = "import sys, rrl.command_line; print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
