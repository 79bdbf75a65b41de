"""`rrl-tune watch` on a live server: it goes on with its folder, and is told apart from a run that ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from rrl.journal import read
from rrl.records import NO_END
from rrl.views.reference_table import ReferenceTable
from scripts.ray_cluster import free_ports
from tests.support.runs.running_command import QUICK, exit_code, in_force, lines
from tests.support.servers.running_server import start
from tests.support.waiting import until


def watch(served: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rrl.command_line", "watch", "--target", served, "--out", "run", *QUICK]
    return subprocess.Popen([*command, *map(str, arguments)], text=True, stdout=subprocess.PIPE)


def page_of(watching: subprocess.Popen[str]) -> str:
    """The address that it prints, read as a user would."""
    assert watching.stdout is not None
    for line in watching.stdout:
        if found := re.search(r"on (http://127\.0\.0\.1:\d+)/metrics", line):
            return found[1]
    raise AssertionError("it printed no address")


def fetched(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def test_a_watch_goes_on_with_its_folder_and_does_not_measure_the_start_again(
    served: str, tmp_path: Path, state_home: Path
) -> None:
    journal = tmp_path / "run" / "journal.jsonl"
    watching = watch(served, "--metrics-port", 0)
    page = page_of(watching)
    until(lambda: lines(journal) > 8)
    told = fetched(f"{page}/metrics")
    assert 'rrl_tune_intervals_total{kind="tune"}' in told
    assert 'rrl_tune_run_info{agent="guided",model="sleep",objective="latency",target="' in told
    assert set(re.findall(r'knob_in_force\{knob="(\w+)"\}', told)) == {"instances", "max_batch_size"}
    assert json.loads(fetched(f"{page}/health"))["status"] == "ok"
    watching.send_signal(signal.SIGTERM)
    said, _ = watching.communicate(timeout=90)
    assert watching.returncode == 130
    assert "[3] tune" in said
    header, before = read(tmp_path / "run")
    assert header.intervals == NO_END
    left = in_force(served)
    assert not list(state_home.iterdir())
    assert (tmp_path / "run" / "reference_table.yaml").exists()
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert "end of its own" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")

    again = watch(served, "--intervals", len(before) + 2)
    said, _ = again.communicate(timeout=90)
    assert again.returncode == 0
    after = read(tmp_path / "run")[1][len(before) :]
    assert after[0].kind == "wait"
    assert after[0].configuration.items() <= left.items()
    assert not any(record.kind == "baseline" for record in after)


def test_a_watch_waits_at_its_start_for_a_server_that_is_not_there_yet(state_home: Path) -> None:
    (port,) = free_ports(1)
    watching = watch(f"127.0.0.1:{port}")
    assert watching.stdout is not None
    assert any("waiting for it" in line for line in watching.stdout)
    served = start("--model", "sleep", "--port", port)
    try:
        assert any("configurations of instances" in line for line in watching.stdout)
    finally:
        watching.send_signal(signal.SIGTERM)
        watching.communicate(timeout=90)
        served.stop()
        assert served.process.stdout is not None
        served.process.stdout.close()
    assert watching.returncode == 130


def test_a_watch_that_waits_for_its_server_ends_when_it_is_told_to(state_home: Path) -> None:
    (port,) = free_ports(1)
    watching = watch(f"127.0.0.1:{port}")
    assert watching.stdout is not None
    assert any("waiting for it" in line for line in watching.stdout)
    watching.send_signal(signal.SIGTERM)
    watching.communicate(timeout=90)
    assert watching.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--advise"], "watch changes what is in force"),
        (["--model", "a,b"], "watch keeps several models together: add --jointly"),
        (["--reference-table", "none.yaml"], "cannot read the reference table none.yaml"),
    ],
)
def test_what_a_watch_cannot_do_is_said(
    arguments: list[str], sentence: str, served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("watch", "--target", served, *arguments, *QUICK) == 2
    assert sentence in capsys.readouterr().err


def test_a_watch_takes_no_table_of_another_limit(
    served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.yaml"
    ReferenceTable("latency", "ms", "sleep", {}, slo_p95_ms=200.0).write(table)
    limit = ("--slo-p95-ms", 50, "--reference-table", table)
    assert exit_code("watch", "--target", served, *limit, *QUICK) == 2
    assert "is for a p95 limit of 200 ms, and this run for a p95 limit of 50 ms" in capsys.readouterr().err
