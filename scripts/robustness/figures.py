"""Figures of long runs: appended to a JSON file with date and commit, and told as a Markdown row."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]


def append(path: Path, machine: str, figures: Mapping[str, Any]) -> None:
    """Adds the figures of one run to those that the file has."""
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    runs.append({"machine": machine, "date": when, "commit": commit()} | dict(figures))
    path.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


def commit() -> str:
    """The commit of the checkout, with a mark if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=9"]
    told = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def markdown(rows: list[Mapping[str, Any]]) -> str:
    """A table, its columns named by the keys of the first row."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([row[name] for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
