"""The project's pages, and what a reader finds on them: sentences, commands, examples, links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.support import CHECKOUT

README = CHECKOUT / "README.md"
DOCS = CHECKOUT / "docs"
PAGES = [README, CHECKOUT / "CONTRIBUTING.md", CHECKOUT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]

_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_NEW_PARAGRAPH = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")  # an item of a list
_NOT_PROSE = re.compile(r"\s*(?:\||#|!!!|:::|<)")  # a table, a heading, marks of MkDocs, HTML
_END = re.compile(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z`\"(*\d])")


class Block(NamedTuple):
    """A block of code between fences."""

    language: str  # empty for commands
    text: str


def name(page: Path) -> str:
    """For the name of a test."""
    return str(page.relative_to(CHECKOUT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    return [Block(language, text) for _, language, text in _FENCE.findall(text_of(page))]


def shown_commands(page: Path) -> list[str]:
    """Lines of commands, continued ones joined, comments left out; those within the text too."""
    shown = "\n".join(block.text for block in blocks(page) if not block.language).replace("\\\n", " ")
    lines = [line.split(" #")[0].strip() for line in shown.splitlines()]
    return [line for line in [*lines, *inline_code(page)] if line]


def inline_code(page: Path) -> list[str]:
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", _FENCE.sub("", text_of(page)))]


def links(page: Path) -> list[str]:
    """Where links and pictures lead, without their anchors, but for other sites."""
    found = [target.split("#")[0] for _, _, target in _LINK.findall(_FENCE.sub("", text_of(page)))]
    return [target for target in found if target and ":" not in target]


def sentences(page: Path) -> list[str]:
    """The sentences of a page: outside of code, tables and headings.

    A crude splitter. A paragraph ends at an empty line or at a list's next item. A sentence ends at a full
    stop, question or exclamation mark before a space and what may begin another. A link counts as its text,
    code as one word.
    """
    text = re.sub(r"`[^`]+`", "Code", _FENCE.sub("\n", text_of(page)))
    text = _LINK.sub(lambda link: "" if link.group(1) else link.group(2), text)
    paragraphs, open_paragraph = [""], False
    for line in text.splitlines():
        if not line.strip() or _NOT_PROSE.match(line):
            open_paragraph = False
        elif open_paragraph and not _NEW_PARAGRAPH.match(line):
            paragraphs[-1] += " " + line.strip()
        else:
            paragraphs.append(_NEW_PARAGRAPH.sub("", line, count=1).strip())
            open_paragraph = True
    return [sentence for paragraph in paragraphs for sentence in _END.split(paragraph) if sentence]


def words(text: str) -> int:
    """Words are what stands between spaces and has a letter or digit in it."""
    return sum(any(character.isalnum() for character in word) for word in text.split())
