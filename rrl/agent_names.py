"""What agents were called before. Journals, YAML files and scripts may hold a former name."""

from __future__ import annotations

from typing import NamedTuple


class FormerName(NamedTuple):
    """An agent's former name."""

    present: str  # the name that it is taken for
    why: str  # a clause for who uses the former one


FORMER_NAMES = {
    "rrl": FormerName(
        "guided", "it named the default agent before, and RRL's own agents are rrl-tuned and rrl-paper"
    ),
}


def present_name(name: str) -> str:
    """What the agent of this name is called now."""
    return FORMER_NAMES[name].present if name in FORMER_NAMES else name


def taken_for(name: str) -> str:
    """What a user of a former name reads."""
    former = FORMER_NAMES[name]
    return f"agent {name!r} is taken for {former.present!r}: {former.why}"
