"""`rrl-compare` as its users meet it."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from baselines import AGENTS
from baselines.comparison import options, read_decisions
from baselines.comparison.command_line import main
from envs.scenarios.families import family_machine
from tests.support.failing_agent import FAILING
from tests.support.full_disk import files_of_at_most
from tests.support.in_this_process import InThisProcess

SMALL = ("--knobs", "instances=1:3,intra_op_threads=1,2,4", "--machine", "family:0", "--decisions", "8")


def compare(out: Path, *flags: str) -> None:
    main([*SMALL, "--processes", "1", "--out", str(out), *flags])


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares what is told by `rrl-compare` alone the start of its processes."""
    monkeypatch.setattr(options, "executor", lambda address, processes: InThisProcess())


def refused(capsys: pytest.CaptureFixture[str], out: Path, *flags: str) -> str:
    """The one sentence on standard error."""
    with pytest.raises(SystemExit) as ended:
        compare(out, *flags)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert error.count("\n") == 1
    return error


def test_a_comparison_writes_its_tables_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    compare(out, "--agents", "random,best-fixed", "--seeds", "2", "--workload", "wiki")
    names = {path.name for path in out.iterdir()}
    assert {"decisions.csv", "summary.csv", "excess_multiples.csv", "tensorboard"} <= names
    assert {"ratio.png", "excess.png", "machines.png"} <= names
    table = read_decisions(out / "decisions.csv")
    assert set(table["agent"]) == {"random", "best-fixed", "oracle"}
    assert (table["expected_ms"] >= table["oracle_ms"]).all()
    with (out / "summary.csv").open(encoding="utf-8", newline="") as file:
        assert {row["agent"] for row in csv.DictReader(file)} == {"random", "best-fixed", "oracle"}
    printed = capsys.readouterr().out
    assert "[6/6]" in printed
    assert "as a multiple of" in printed


def test_an_agents_former_name_is_taken_for_the_present_one(
    tmp_path: Path, in_this_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(tmp_path, "--agents", "random, rrl")
    assert set(read_decisions(tmp_path / "decisions.csv")["agent"]) == {"random", "guided", "oracle"}
    assert "agent 'rrl' is taken for 'guided': " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--agents", "capess"), ("unknown agent 'capess'", "capes", "oracle")),
        (("--agents", ","), ("at least one agent",)),
        (("--agents", "random,random"), ("twice",)),
        (("--workload", "tides"), ("unknown workload 'tides'", "stationary, dynamic, wiki")),
        (("--workload", "nothing.csv"), ("nothing.csv",)),
        (("--truth", "lies"), ("unknown truth 'lies'", "processor-sharing")),
        (("--objective", "fun"), ("unknown objective 'fun'", "strict-slo")),
        (("--objective", "strict-slo"), ("--slo-p95-ms",)),
        (("--objective", "throughput"), ("rrl-tune --bench",)),
        (("--objective", "capacity"), ("rrl-tune --bench",)),
        (("--machine", "nothing.npz"), ("no machine file 'nothing.npz'",)),
        (("--machine", "family:x"), ("family:1000-1019",)),
        (("--machine", "family:3,3"), ("family-3",)),
        (("--rate", "0"), ("rate",)),
        (("--seeds", "0"), ("seeds",)),
        (("--processes", "0"), ("--processes",)),
        (("--truth", "slowdown"), ("slows down at decision 150",)),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    error = refused(capsys, tmp_path / "out", *flags)
    for word in words:
        assert word in error


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"service_time_s": None}, "lacks service_time_s"),
        ({"service_time_s": np.full((10, 10, 10, 6), np.nan)}, "NaN"),
        ({"service_time_s": np.ones((2, 2))}, "shape"),
    ],
)
def test_a_machine_file_with_a_fault_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arrays: dict[str, np.ndarray | None], words: str
) -> None:
    path = tmp_path / "machine.npz"
    family_machine(0).save(path)
    with np.load(path) as file:
        content = {name: file[name] for name in file} | arrays
    np.savez(path, **{name: value for name, value in content.items() if value is not None})
    error = refused(capsys, tmp_path / "out", "--machine", str(path), "--agents", "random")
    assert words in error
    assert "machine.npz" in error


def test_an_agent_that_cannot_act_is_named_before_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, tmp_path / "out", "--agents", "random,aimd")
    assert "agent 'aimd' cannot act here" in error
    assert not list((tmp_path / "out").glob("runs/*"))


def test_a_space_beyond_the_machine_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, tmp_path / "out", "--agents", "random", "--knobs", "instances=1:40")
    assert "instances=40 lies beyond the machine's table" in error


def test_a_limit_that_no_configuration_meets_is_said_and_done_without(
    tmp_path: Path, in_this_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    slo = ("--objective", "least-resources", "--slo-p95-ms", "3")
    compare(tmp_path, "--agents", "random", *slo)
    printed = capsys.readouterr()
    assert "no configuration keeps a p95 of 3 ms" in printed.err
    assert "there the agents are compared by p95 latency alone" in printed.err
    assert "SLO" in printed.out
    assert read_decisions(tmp_path / "decisions.csv")["slo_violated"].all()


def test_a_failed_run_is_told_at_the_end_and_the_results_are_of_the_other_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_this_process: None
) -> None:
    monkeypatch.setitem(AGENTS, "mine", FAILING)
    with pytest.raises(SystemExit) as ended:
        compare(tmp_path, "--agents", "mine,random")
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert printed.err == (
        "1 of 1 runs of mine failed (ValueError: a fault of the agent's own on family-0 with seed 0); "
        "an agent without all of its runs is left out of the results, and runs/AGENT/*.txt hold the "
        f"tracebacks; the finished runs are kept in {tmp_path}, and the same command goes on with them\n"
    )
    assert "decisions.csv" in printed.out
    assert set(read_decisions(tmp_path / "decisions.csv")["agent"]) == {"random", "oracle"}


def test_where_no_agent_is_whole_the_results_there_are_said_to_be_of_an_earlier_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_this_process: None
) -> None:
    compare(tmp_path, "--agents", "oracle")
    written = (tmp_path / "decisions.csv").read_bytes()
    monkeypatch.setitem(AGENTS, "oracle", FAILING)
    capsys.readouterr()
    for out, end in (
        (tmp_path, f"no results are written, and those in {tmp_path} are of an earlier time; the finished"),
        (tmp_path / "new", "no results are written; the finished"),
    ):
        with pytest.raises(SystemExit) as ended:
            compare(out, "--agents", "oracle", "--seeds", "2")
        assert ended.value.code == 1
        error = capsys.readouterr().err
        assert f"tracebacks; none is left, so {end} runs are kept" in error
        assert error.count("\n") == 1
    assert (tmp_path / "decisions.csv").read_bytes() == written


def test_ctrl_c_ends_at_once_and_the_same_command_goes_on(tmp_path: Path) -> None:
    flags = (
        "--agents",
        "random,rrl-released-exact",
        "--seeds",
        "2",
        "--decisions",
        "400",
        "--out",
        str(tmp_path),
    )
    command = (sys.executable, "-m", "baselines.comparison.command_line", *SMALL[:4], *flags)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("runs"):
                break
        running.send_signal(signal.SIGINT)
        _, error = running.communicate(timeout=120)
    assert running.returncode == 130
    assert f"the finished runs are kept in {tmp_path}" in error
    assert "Traceback" not in error
    assert list(tmp_path.glob("expected/*.npz"))


def test_an_agent_without_its_library_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], in_this_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "baselines.optuna_search", raising=False)
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = refused(capsys, tmp_path, "--agents", "optuna-tpe", "--seeds", "1")
    assert said.startswith("the agent OptunaSearch needs optuna: pip install optuna")


def test_a_full_disk_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with files_of_at_most(512), pytest.raises(SystemExit) as ended:
        compare(tmp_path, "--agents", "random")
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert f"cannot read or write {tmp_path}/" in error
    assert "File too large; the finished runs are kept" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("**/*.npz"))


def test_a_reader_that_is_gone_ends_it_in_one_sentence(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "baselines.comparison.command_line", *SMALL, "--agents", "random")
    with subprocess.Popen(
        (*command, "--out", str(tmp_path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("landscapes")
        running.stdout.close()
        assert running.stderr is not None
        error = running.stderr.read()
    assert running.returncode == 1
    assert error == (
        f"nobody reads what is printed any more; the finished runs are kept in {tmp_path}, "
        "and the same command goes on with them\n"
    )
