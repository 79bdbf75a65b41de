"""What a node of a cluster does with a job. It is sent there as it is, so it needs the standard library only.

A node runs our own code, installed there or brought along. It must be the very code of the machine that asks.
Otherwise its numbers would be those of another program.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import pickle
import socket
from pathlib import Path
from typing import Any

LIBRARIES = ("numpy", "numba", "scipy", "torch")  # They make the numbers.
LIBRARIES_OF_AGENTS = ("stable-baselines3", "scikit-learn", "optuna")  # They make those of some agents.
AGENTS_GROUP = "rrl_tune.agents"  # the entry points of installed agents
OWN_CODE = "rrl-tune"
ENDINGS = (".py", ".npz")  # of what makes the numbers

Versions = dict[str, str]
"""The version of each library, and the digest of our own code; empty for what is not there.

Packages that only some agents need are left out where they are not there.
"""

_known: dict[tuple[str, int], Versions] = {}  # By process, as what is known here is sent along.


def versions(packages: tuple[str, ...]) -> Versions:
    """What this process runs; `packages` are the names of our own."""
    process = socket.gethostname(), os.getpid()
    if process not in _known:
        libraries = {name: _version(name) for name in LIBRARIES}
        _known[process] = libraries | _versions_of_agents() | {OWN_CODE: digest(packages)}
    return _known[process]


def differing(found: Versions, expected: Versions) -> list[str]:
    """What two processes have in different versions. An agent whose package one lacks fails there at once."""
    return [name for name, version in expected.items() if found.get(name, version) != version]


def worked(packages: tuple[str, ...], expected: Versions, pickled: bytes) -> tuple[Versions | None, Any]:
    """The job's result beside None; where this process runs something else, that beside None."""
    found = versions(packages)
    if differing(found, expected):
        return found, None
    import torch

    torch.set_num_threads(1)  # The environment limits the other libraries.
    function, arguments = pickle.loads(pickled)  # It comes from the program that was told of this cluster.
    return None, function(*arguments)


def _versions_of_agents() -> Versions:
    """Of the packages that are there for some agents: known libraries, and those that offer agents."""
    libraries = {name: _version(name) for name in LIBRARIES_OF_AGENTS}
    offering = importlib.metadata.entry_points(group=AGENTS_GROUP)
    installed = {each.dist.name: each.dist.version for each in offering if each.dist is not None}
    return {name: version for name, version in (libraries | installed).items() if version}


def _version(distribution: str) -> str:
    """Without what says which processors it was built for."""
    try:
        return importlib.metadata.version(distribution).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def digest(packages: tuple[str, ...]) -> str:
    """Of the sources of all modules and of the data beside them, with their names.

    A package may be a single module. Empty where one is not there.
    """
    sources = hashlib.sha256()
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or not (spec.submodule_search_locations or spec.has_location):
            return ""
        if not spec.submodule_search_locations:
            sources.update(f"{package}\0".encode())
            sources.update(Path(str(spec.origin)).read_bytes())
            continue
        folder = Path(next(iter(spec.submodule_search_locations)))
        for path in sorted(each for ending in ENDINGS for each in folder.rglob(f"*{ending}")):
            sources.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
            sources.update(path.read_bytes())
    return sources.hexdigest()
