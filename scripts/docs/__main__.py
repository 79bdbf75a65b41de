"""Writes the generated pages of the reference: `python -m scripts.docs`, which `make docs` runs first."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.docs.agents import agents_page
from scripts.docs.commands import commands_page
from scripts.docs.leaderboard import ENTRIES, leaderboard_page
from scripts.docs.schema import tune_schema

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def generated() -> dict[Path, str]:
    """Every generated file and what belongs into it."""
    return {
        REFERENCE / "agents.md": agents_page(),
        REFERENCE / "commands.md": commands_page(),
        ENTRIES.with_suffix(".md"): leaderboard_page(),
        REFERENCE / "rrl-tune.schema.json": json.dumps(tune_schema(), indent=2) + "\n",
    }


def main() -> None:
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
