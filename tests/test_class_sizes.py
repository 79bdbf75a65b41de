"""The classes that decide what is safe, and what is tried next, can each be read at one go."""

from __future__ import annotations

import ast

import pytest

from tests.support import CHECKOUT

MOST_LINES = 250
FOLDERS = ("rrl/belief", "rrl/guarding", "rrl/guided")


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_class_has_more_than_250_lines(folder: str) -> None:
    long = {
        f"{path.relative_to(CHECKOUT).as_posix()}: {node.name}": 1 + (node.end_lineno or 0) - node.lineno
        for path in sorted((CHECKOUT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and 1 + (node.end_lineno or 0) - node.lineno > MOST_LINES
    }
    assert not long
