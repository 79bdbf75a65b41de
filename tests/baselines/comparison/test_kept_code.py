"""What a comparison knows of the code that made what it goes on with, and what it says of it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from baselines import AGENTS
from baselines.agents import AgentEntry
from baselines.comparison import ComparisonSettings, on_node, run_comparison
from baselines.comparison.kept_code import FILE_NAME, KeptFiles, code_of, note_code, said_of_other_code
from baselines.comparison.on_node import LIBRARIES, LIBRARIES_OF_AGENTS, OWN_CODE
from baselines.comparison.progress import SilentProgress
from tests.support.in_this_process import InThisProcess

CODE = {"numpy": "2.0", "scipy": "", OWN_CODE: "a"}


def compared(folder: Path, *agents: str, seeds: int = 2) -> list[str]:
    """Runs a comparison, or goes on with it; what it warns of."""
    said: list[str] = []
    settings = ComparisonSettings(
        agents, "family:0", decisions=2, seeds=seeds, knobs="instances=1:3,intra_op_threads=1,2,4"
    )
    run_comparison(settings, folder, 1, progress=SilentProgress(), warn=said.append, executor=InThisProcess())
    return said


def change(folder: Path, **versions: str) -> None:
    """Has the files of this folder be of other code."""
    path = folder / FILE_NAME
    entries = json.loads(path.read_text(encoding="utf-8"))
    for each in entries:
        each["code"] |= versions
    path.write_text(json.dumps(entries), encoding="utf-8")


def test_nothing_is_said_of_what_the_same_code_made(tmp_path: Path) -> None:
    assert compared(tmp_path, "random") == []
    assert compared(tmp_path, "random", "oracle", seeds=3) == []


def test_runs_of_other_code_count_and_are_told(tmp_path: Path) -> None:
    compared(tmp_path, "random", "oracle")
    change(tmp_path / "runs" / "random", **{OWN_CODE: "another"})
    kept_at = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("runs/*/*.npy"))]
    said = (
        f"{tmp_path} goes on with results of other code than today's: 2 of {{}} runs of random (another "
        "rrl-tune); they count all the same, so name another folder with --out for numbers of one code, or "
        "delete their folders runs/AGENT and expected to have them made again"
    )
    assert compared(tmp_path, "random", "oracle") == [said.format(2)]
    assert kept_at == [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("runs/*/*.npy"))]
    assert compared(tmp_path, "random", "oracle", seeds=3) == [said.format(3)]
    for path in (tmp_path / "runs" / "random").iterdir():
        path.unlink()
    assert compared(tmp_path, "random", "oracle", seeds=3) == []


def test_a_run_that_is_made_again_is_of_todays_code(tmp_path: Path) -> None:
    compared(tmp_path, "random")
    own = tmp_path / "runs" / "random"
    change(own, numpy="1.0")
    (own / "machine-000-seed-0.npy").unlink()
    today = code_of()["numpy"]
    for _ in range(2):
        (said,) = compared(tmp_path, "random")
        assert f"today's: 1 of 2 runs of random (numpy 1.0, today {today});" in said


def test_landscapes_of_other_code_are_told_too(tmp_path: Path) -> None:
    compared(tmp_path, "random")
    change(tmp_path / "expected", **{OWN_CODE: "another"})
    (said,) = compared(tmp_path, "random")
    assert "today's: 1 of 1 landscapes (another rrl-tune);" in said


def test_a_library_that_some_agents_are_made_of_is_no_part_of_others_code(tmp_path: Path) -> None:
    compared(tmp_path, "random")
    for folder in (tmp_path / "expected", tmp_path / "runs" / "random"):
        change(folder, optuna="1.0")
    assert compared(tmp_path, "random") == []
    assert set(code_of()) == set(code_of("random")) == {*LIBRARIES, OWN_CODE}
    assert set(code_of("optuna-tpe")) == {*LIBRARIES, "optuna", OWN_CODE}
    assert {name for entry in AGENTS.values() for name in entry.libraries} == set(LIBRARIES_OF_AGENTS)


@pytest.mark.parametrize(
    ("found", "today", "said"),
    [("", "5", "optuna was lacking, today 5"), ("5", "", "optuna 5, today lacking")],
)
def test_a_library_that_came_or_went_is_told(tmp_path: Path, found: str, today: str, said: str) -> None:
    note_code(tmp_path, ["a.npy"], CODE | ({"optuna": found} if found else {}))
    sentence = said_of_other_code(
        tmp_path, [KeptFiles("runs of mine", [tmp_path / "a.npy"], 1, CODE | {"optuna": today})]
    )
    assert f"1 of 1 runs of mine ({said});" in str(sentence)


def test_an_agent_whose_library_is_not_there_is_of_code_that_lacks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(on_node, "versions", lambda packages: dict(CODE))
    assert code_of.__wrapped__("optuna-gp")["optuna"] == ""


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "[1]", '[{"code": 1, "files": ["a"]}]'])
def test_what_tells_no_code_counts_and_is_said_to_be_of_unknown_code(
    tmp_path: Path, text: str | None
) -> None:
    compared(tmp_path, "random")
    path = tmp_path / "runs" / "random" / FILE_NAME
    path.unlink()
    if text is not None:
        path.write_text(text, encoding="utf-8")
    (said,) = compared(tmp_path, "random")
    assert "today's: 2 of 2 runs of random (unknown code);" in said


def test_one_sentence_is_of_all_folders_by_what_differs(tmp_path: Path) -> None:
    kept = []
    for scenario, code in (("one", CODE | {OWN_CODE: "b"}), ("two", CODE | {"numpy": "1.0", "scipy": "3"})):
        folder = tmp_path / scenario
        folder.mkdir()
        note_code(folder, ["a.npy"], code)
        kept.append(KeptFiles("runs of mine", [folder / "a.npy"], 2, CODE))
    kept.append(KeptFiles("runs of other", [tmp_path / "one" / "b.npy"], 1, CODE))
    said = said_of_other_code(tmp_path, kept)
    assert said is not None
    assert (
        "today's: 1 of 4 runs of mine (another rrl-tune); "
        "1 of 4 runs of mine (numpy 1.0, today 2.0, scipy 3, today lacking); "
        "1 of 1 runs of other (unknown code); they count"
    ) in said


def test_an_agent_of_another_package_is_known_by_that_packages_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "mine_in_one_file.py"
    module.write_text("A = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    entry = AgentEntry(f"{module.stem}:Mine", "", "", 0.1, origin="mine 1.0")
    monkeypatch.setitem(AGENTS, "mine", entry)
    found = code_of.__wrapped__("mine")
    assert {*LIBRARIES, OWN_CODE, module.stem} <= set(found)
    module.write_text("A = 2\n", encoding="utf-8")
    mended = code_of.__wrapped__("mine")
    assert [name for name in found if found[name] != mended[name]] == [module.stem]
    assert module.stem not in code_of("random")
