"""`rrl-tune what-if` answers from a journal, and refuses in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rrl.command_line import main
from tests.support.runs import simulated_runs as runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.written(tmp_path_factory.mktemp("written"), runs.tuned(tmp_path_factory.mktemp("run")))


def asked(*arguments: object) -> object:
    with pytest.raises(SystemExit) as ended:
        main(["what-if", *map(str, arguments)])
    return ended.value.code


def test_it_tells_the_best_expected_and_its_doubts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "journal.jsonl").read_bytes()
    code = asked(folder, "--rate", 120, "--slo-p95-ms", 90, "--objective", "least-resources", "--count", 3)
    said = capsys.readouterr().out
    assert code == 0
    assert "expected at 120 requests/s, p95 limit 90 ms" in said
    assert "no such load was seen" in said
    rows = [line for line in said.splitlines() if "inst." in line]
    assert len(rows) == 4
    assert "left" in rows[-1]
    assert (folder / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--rate", 0), "--rate must be above 0"),
        (("--count", 0), "--count must be at least 1"),
        (("--objective", "goodput"), "needs a limit: give --slo-p95-ms"),
        (("--objective", "speed"), "unknown objective 'speed'"),
        (("--concurrency", 0), "--concurrency must be at least 1"),
        (("--concurrency", 4), "came by themselves, so --concurrency is not of it; give --rate"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    folder: Path, arguments: tuple[object, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(folder, *arguments) == 2
    assert sentence in capsys.readouterr().err


def test_a_closed_loop_is_asked_about_requests_at_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *rest = (folder / "journal.jsonl").read_text().splitlines()
    closed = json.loads(header) | {"load": {"concurrency": 4}}
    (tmp_path / "journal.jsonl").write_text("\n".join([json.dumps(closed), *rest, ""]))
    assert asked(tmp_path, "--concurrency", 8) == 0
    assert "expected at 8 requests at once" in capsys.readouterr().out
    assert asked(tmp_path, "--rate", 8) == 2
    assert "under a closed loop, so --rate is not of it; give --concurrency" in capsys.readouterr().err


def test_the_journal_itself_may_be_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(folder, "--rate", 60) == 0
    of_folder = capsys.readouterr().out
    assert asked(folder / "journal.jsonl", "--rate", 60) == 0
    assert capsys.readouterr().out == of_folder


def test_a_run_that_learned_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(tmp_path) == 2
    assert "no journal" in capsys.readouterr().err
    header, _ = runs.tuned(tmp_path / "run", intervals=1)
    assert asked(runs.written(tmp_path, (header, []))) == 2
    assert "cannot be asked" in capsys.readouterr().err
