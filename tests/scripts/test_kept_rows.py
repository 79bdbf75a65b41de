"""Rows that a measurement goes on with: which of a file's count, and which file is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import kept_rows
from scripts.benchmarks import __main__ as benchmarks
from scripts.kept_rows import KeptRows, OtherSetting, setting_of

KEY = ("name", "round")
ROW = {"name": "a", "round": 0}
SETTING = {"load": 0.4, "models": ("one", "two")}


def rows(path: Path | None, setting: dict[str, object] | None = None) -> KeptRows:
    return KeptRows(path, KEY, setting or {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "rows.jsonl"


def test_rows_are_kept_and_a_torn_one_counts_as_none(path: Path) -> None:
    first = rows(path)
    assert ROW not in first
    first.add(ROW | {"value": 1.0})
    first.add(ROW | {"value": 2.0})
    with path.open("a") as file:
        file.write('{"name": "b", "rou')  # it was killed here
    rows(path).add({"name": "c", "round": 0, "value": 3.0})
    found = rows(path)
    assert [row["value"] for row in found] == [2.0, 3.0]
    assert {"name": "b", "round": 0} not in found
    assert found[{"name": "c", "round": 0}]["value"] == 3.0


def test_a_file_goes_on_under_its_own_setting(path: Path) -> None:
    rows(path, SETTING).add(ROW | {"value": 1.0})
    again = rows(path, SETTING)
    assert again[ROW]["value"] == 1.0
    assert "setting" not in again[ROW]


def test_a_file_of_another_setting_is_refused_with_what_differs(path: Path) -> None:
    rows(path, SETTING).add(ROW)
    with pytest.raises(OtherSetting) as refused:
        rows(path, SETTING | {"load": 0.5, "cores": 2})
    assert str(refused.value) == (
        f"{path} holds rows with load=0.4, no cores, and those wanted have load=0.5, cores=2: "
        "give the options of those rows, or name another file"
    )


def test_rows_without_a_setting_are_of_the_empty_one(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps(ROW) + "\n")
    assert ROW in rows(path)
    with pytest.raises(OtherSetting, match=r"holds rows with no setting, and those wanted have load=0\.4"):
        rows(path, SETTING)
    rows(None, SETTING).add(ROW)


def test_rows_tell_their_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps(ROW) + "\n")
    for commit in ("12ab", "34cd"):
        monkeypatch.setattr(kept_rows, "commit_in_force", lambda commit=commit: commit)
        rows(path).add(ROW | {"name": commit})
    rows(path).add(ROW | {"name": "told", "commit": "56ef"})
    assert rows(path).commits == ["unknown", "12ab", "34cd", "56ef"]


def test_an_options_setting_is_all_but_what_chooses_among_rows() -> None:
    @dataclass(frozen=True)
    class Options:
        load: float = 0.4
        seeds: int = 2
        out: Path | None = None

    assert setting_of(Options(), "seeds", "out") == {"load": 0.4}


def test_a_benchmark_ends_in_a_sentence_where_its_file_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows(path, SETTING).add(ROW)
    module = SimpleNamespace(run=lambda: rows(path, SETTING | {"load": 0.5}))
    monkeypatch.setattr(benchmarks.importlib, "import_module", lambda name: module)
    monkeypatch.setattr(benchmarks.sys, "argv", ["bench", "joint"])
    monkeypatch.setattr(benchmarks.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match="2"):
        benchmarks.main()
    assert "holds rows with load=0.4" in capsys.readouterr().err
