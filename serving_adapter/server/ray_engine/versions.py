"""Front and nodes run the same versions: they speak one protocol, and answers depend on no node."""

from __future__ import annotations

import importlib.metadata

PACKAGES = ("rrl-tune", "torch")

Versions = dict[str, str]  # by package; empty for what is not there


def versions() -> Versions:
    """What this process would run, without what says which processors it was built for."""
    return {package: _version(package) for package in PACKAGES}


def difference(front: Versions, node: Versions) -> str:
    """What is another on the node, in words; empty if nothing is."""
    others = [name for name, version in front.items() if node.get(name) != version]
    told = [f"{name} {node.get(name) or 'missing'}, and the front has {front[name]}" for name in others]
    return f"it has {'; '.join(told)}: install the same there" if others else ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""
