"""Our own code on the nodes of a cluster: its names, how it is brought there, what is said of another."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from baselines.comparison.on_node import OWN_CODE, Versions, differing


def own_packages() -> tuple[str, ...]:
    """The names that our packages have here: in a wheel two of them lie in the first."""
    top = __name__.partition(".")[0]
    return ("rrl", "serving_adapter") if top == "rrl" else ("rrl", "serving_adapter", "envs", top)


@contextmanager
def code_in_one_folder(packages: Sequence[str]) -> Iterator[Path]:
    """The packages side by side, as a folder to put on a path, without what was compiled."""
    with tempfile.TemporaryDirectory(prefix="rrl-code-") as folder:
        for name in packages:
            spec = find_spec(name)
            assert spec is not None
            assert spec.submodule_search_locations
            source = next(iter(spec.submodule_search_locations))
            shutil.copytree(source, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        yield Path(folder)


def other_code(host: str, found: Versions, expected: Versions) -> str:
    """The sentence about a node that runs something else."""
    where = f"the node at {host}" if host else "a node that joined the cluster"
    name, *_ = differing(found, expected)
    if name == OWN_CODE:
        return f"{where} runs another {OWN_CODE}: install there the same as here"
    theirs = f"{name} {found[name]}" if found[name] else f"no {name}"
    return f"{where} has {theirs}, this machine {expected[name]}: install there {name}=={expected[name]}"
