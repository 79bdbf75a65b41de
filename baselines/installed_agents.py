"""Agents of other people's packages, found by the entry point group `rrl_tune.agents`.

A package names them in its pyproject.toml, and nothing of it is imported until an agent is made:

    [project.entry-points."rrl_tune.agents"]
    my-agent = "my_package.agents:MyAgent"
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import NamedTuple

GROUP = "rrl_tune.agents"


class InstalledAgent(NamedTuple):
    """An agent that an installed package offers."""

    path: str  # "module:class"
    origin: str  # the package and its version


def installed_agents() -> dict[str, InstalledAgent]:
    """The agents that installed packages offer, by name; of two with one name, the first that is found."""
    found: dict[str, InstalledAgent] = {}
    for each in entry_points(group=GROUP):
        package = "an unknown package" if each.dist is None else f"{each.dist.name} {each.dist.version}"
        found.setdefault(each.name, InstalledAgent(f"{each.module}:{each.attr}", package))
    return found
