"""`import rrl` offers the words of the project, all of them and nothing else, and costs next to nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rrl

PROJECT = Path(__file__).parents[2]
OLD_PATHS = {
    "rrl.agent": ("Agent", "Hindsight", "Task", "Transition", "live", "observe"),
    "rrl.space": ("Configuration", "ConfigurationSpace", "Knob"),
    "rrl.measurement": ("LatencySummary", "Measurement", "ServiceTimes"),
    "rrl.objective": ("Goodput", "LeastResources", "MeanLatency", "Objective", "StrictSLO", "make_objective"),
    "rrl.journal": ("Header", "Journal", "Record", "read"),
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names_are_what_all_lists() -> None:
    assert rrl.__all__ == sorted(set(rrl.__all__))
    assert set(rrl._MODULE_OF) == set(rrl.__all__) == names_for_type_checkers()
    for name in rrl.__all__:
        assert getattr(rrl, name) is not None
    assert set(rrl.__all__) <= set(dir(rrl))


def names_for_type_checkers() -> set[str]:
    """The names that are imported for type checkers alone, in the block that no run enters."""
    tree = ast.parse(Path(str(rrl.__file__)).read_text(encoding="utf-8"))
    tests = [each for each in tree.body if isinstance(each, ast.If)]
    (block,) = (each for each in tests if ast.unparse(each.test) == "TYPE_CHECKING")
    return {alias.name for each in block.body if isinstance(each, ast.ImportFrom) for alias in each.names}


def test_nothing_else_is_public() -> None:
    code = "import rrl; print(sorted(n for n in vars(rrl) if not n.startswith('_')))"
    own_tools = ["Any", "TYPE_CHECKING", "annotations", "checkout_names", "import_module", "os"]
    assert run(code) == str(own_tools)
    with pytest.raises(AttributeError, match="module 'rrl' has no attribute 'Nothing'"):
        rrl.Nothing  # noqa: B018


@pytest.mark.parametrize("module", OLD_PATHS)
def test_a_word_is_the_same_wherever_it_is_imported_from(module: str) -> None:
    for name in OLD_PATHS[module]:
        assert getattr(rrl, name) is getattr(__import__(module, fromlist=[name]), name)


def test_importing_rrl_needs_nothing_heavy() -> None:
    heavy = "('torch', 'grpc', 'tritonclient', 'numba', 'scipy', 'gymnasium', 'matplotlib')"
    assert run(f"import sys, rrl; print([m for m in ('numpy', *{heavy}) if m in sys.modules])") == "[]"
    assert run(f"import sys; from rrl import *; print([m for m in {heavy} if m in sys.modules])") == "[]"
