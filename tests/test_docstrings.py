"""Docstrings and comments are prose: sentences of at most 30 words, none torn over several comments."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator

import pytest

from tests.support import CHECKOUT

MOST_WORDS = 30
MODULES = sorted(
    path.relative_to(CHECKOUT).as_posix()
    for folder in ("rrl", "envs", "baselines", "serving_adapter", "scripts", "tests")
    for path in (CHECKOUT / folder).rglob("*.py")
    if "_pb2" not in path.name
)
NO_PROSE = re.compile(r"^\s*([|#>$]|\.\.\.|```)|^\s{4,}\S")
"""Lines of tables, headings, commands and examples."""
NEW_SENTENCE = re.compile(r"(?<=[.!?:])['\")`*]*\s+|\n\s*\n|\n\s*[-*|]\s")


def docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def sentences(text: str) -> Iterator[str]:
    """What stands between full stops, colons, blank lines and list marks; tables and examples left out."""
    prose = "\n".join("|" if NO_PROSE.match(line) else line for line in textwrap.dedent(text).splitlines())
    for sentence in NEW_SENTENCE.split(prose):
        yield " ".join(sentence.replace("|", " ").split())


@pytest.mark.parametrize("path", MODULES)
def test_a_docstring_has_no_sentence_over_30_words(path: str) -> None:
    tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
    long = [s for text in docstrings(tree) for s in sentences(text) if len(s.split()) > MOST_WORDS]
    assert not long


@pytest.mark.parametrize("path", MODULES)
def test_no_comment_begins_or_ends_in_the_middle_of_a_sentence(path: str) -> None:
    source = (CHECKOUT / path).read_text(encoding="utf-8")
    comments = [
        t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT
    ]
    torn = [
        c for c in comments if re.match(r"#\s*\.\.\.", c) or (c.endswith("...") and not c.endswith(", ..."))
    ]
    assert not torn
