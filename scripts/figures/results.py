"""The tables of docs/results, from the files that the runs left, so that no number in them is typed by hand.

A table stands between two markers, and only what is between them is written:

    <!-- table: rrl-fig12 -->
    <!-- end -->
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.figures.result import FigureResult


def figures(page: Path, folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The sections of the figures that have files, by their names."""
    return {
        name: figure_section(FigureResult.load(path), folder, page.parent)
        for name in names
        if (path := folder / f"{name}.json").exists()
    }


def update(page: Path, tables: Mapping[str, str]) -> list[str]:
    """Writes these tables into `page`, and says which. Others stay as they are."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = with_table(text, name, table)
    page.write_text(text, encoding="utf-8")
    return list(tables)


def with_table(text: str, name: str, table: str) -> str:
    """The page with a table put between its markers; ValueError if the page lacks them."""
    pattern = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    changed, count = pattern.subn(lambda match: f"{match[1]}{table}\n{match[2]}", text)
    if count != 1:
        raise ValueError(
            f"the page has {count} places for the table {name!r}; it needs one pair of lines "
            f"`<!-- table: {name} -->` and `<!-- end -->`"
        )
    return changed


def figure_section(result: FigureResult, folder: Path, page_folder: Path) -> str:
    """The setting, the claims and the pictures of one figure."""
    seeds = f"{result.seeds} seed{'s' if result.seeds > 1 else ''}"
    data = ", ".join(f"[{name}]({_link(folder / name, page_folder)})" for name in result.tables)
    pictures = "\n\n".join(
        f"![{result.title}]({_link(folder / name, page_folder)})" for name in result.pictures
    )
    return f"{result.setting} {seeds}.\n\n{claims_table(result)}\n\n{pictures}\n\nData: {data}"


def claims_table(result: FigureResult) -> str:
    lines = ["| | paper | here | reproduces |", "|---|---|---|---|"]
    lines += [f"| {c.what} | {c.paper} | {c.ours} | {c.reproduces} |" for c in result.claims]
    return "\n".join(lines)


def _link(path: Path, page_folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), page_folder.resolve())).as_posix()
