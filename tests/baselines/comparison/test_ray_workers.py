"""What decides whether a node of a cluster may do a job: the code and the libraries that it has."""

from __future__ import annotations

import importlib.metadata
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from baselines import installed_agents
from baselines.comparison import on_node
from baselines.comparison.on_node import OWN_CODE
from baselines.comparison.same_code import code_in_one_folder, other_code, own_packages

PACKAGES = ("rrl", "serving_adapter", "envs", "baselines")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_node, "_known", {})


def test_what_a_node_runs_is_told_with_the_libraries_that_make_the_numbers() -> None:
    found = on_node.versions(own_packages())
    assert {*on_node.LIBRARIES, *on_node.LIBRARIES_OF_AGENTS, OWN_CODE} <= set(found)
    assert all(found.values())
    assert not any("+" in version for version in found.values())


def test_code_that_differs_by_a_line_is_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_packages() == PACKAGES
    package = tmp_path / "some_package_of_ours"
    package.mkdir()
    (package / "__init__.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = on_node.digest((package.name,))
    assert before == on_node.digest((package.name,))
    (package / "__init__.py").write_text("A = 2\n")
    assert len({before, on_node.digest((package.name,)), on_node.digest(("there_is_none",))}) == 3


def test_what_is_brought_to_a_node_is_the_code_of_this_machine() -> None:
    with code_in_one_folder(PACKAGES) as folder:
        assert sorted(path.name for path in folder.iterdir()) == sorted(PACKAGES)
        assert (folder / "rrl" / "space.py").is_file()
        assert not list(folder.rglob("__pycache__"))
    assert not folder.exists()


def test_a_job_is_done_by_the_same_code_alone() -> None:
    job = pickle.dumps((divmod, (7, 2)))
    same = on_node.versions(PACKAGES)
    assert on_node.worked(PACKAGES, same, job) == (None, (3, 1))
    assert on_node.worked(PACKAGES, same | {"numpy": "0.1"}, job) == (same, None)


def test_the_packages_of_agents_are_compared_where_both_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_node.AGENTS_GROUP == installed_agents.GROUP
    mine = SimpleNamespace(dist=SimpleNamespace(name="my-agents", version="1.0"))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [mine])
    found = on_node.versions(PACKAGES)
    assert found["my-agents"] == "1.0"
    job = pickle.dumps((divmod, (7, 2)))
    for name in ("my-agents", "optuna", "scikit-learn", "stable-baselines3"):
        assert on_node.worked(PACKAGES, found | {name: "0.1"}, job) == (found, None)
        lacking = {each: version for each, version in found.items() if each != name}
        assert on_node.worked(PACKAGES, lacking, job) == (None, (3, 1))
        assert on_node.differing(lacking, found) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"numpy": "1.0"}, "the node at 10.0.0.2 has numpy 1.0, this machine 2.0: install there numpy==2.0"),
        ({"numba": ""}, "the node at 10.0.0.2 has no numba, this machine 0.60: install there numba==0.60"),
        ({"optuna": "4"}, "the node at 10.0.0.2 has optuna 4, this machine 5: install there optuna==5"),
        ({OWN_CODE: "b"}, "the node at 10.0.0.2 runs another rrl-tune: install there the same as here"),
    ],
)
def test_a_node_that_runs_something_else_is_one_sentence(change: dict[str, str], said: str) -> None:
    expected = {"numpy": "2.0", "numba": "0.60", "optuna": "5", OWN_CODE: "a"}
    assert other_code("10.0.0.2", expected | change, expected) == said
