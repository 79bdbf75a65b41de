"""In a checkout `rrl.envs` and `rrl.baselines`, which a wheel has, stand for the packages of the tree."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import CHECKOUT


@pytest.mark.parametrize(
    "name", ["envs", "baselines", "envs.simulated", "envs.scenarios.families", "baselines.comparison.run"]
)
def test_a_module_has_two_names(name: str) -> None:
    module = importlib.import_module(f"rrl.{name}")
    assert module is importlib.import_module(name)
    assert module.__name__ == name
    assert module.__spec__ is not None
    assert module.__spec__.name == name


def test_a_class_that_is_pickled_by_either_name_is_one() -> None:
    own = importlib.import_module("baselines.random_search").RandomSearch
    by_the_other_name = importlib.import_module("rrl.baselines.random_search").RandomSearch
    assert by_the_other_name is own
    assert pickle.loads(pickle.dumps(by_the_other_name)) is own


def test_what_is_in_neither_is_absent() -> None:
    for name in ("rrl.envs.nowhere", "rrl.envsimulated", "rrl.nowhere"):
        with pytest.raises(ModuleNotFoundError, match=name.rpartition(".")[2]):
            importlib.import_module(name)


def test_a_package_of_the_user_is_not_taken_for_that_of_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "envs.py").touch()
    ended = subprocess.run(
        [sys.executable, "-c", "import rrl.envs"],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    said = ended.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: {tmp_path / 'envs.py'} is found in place of {CHECKOUT}'s envs: ")
