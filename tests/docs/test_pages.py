"""The pages are short, in plain sentences, and lead where they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rrl.knobs import KNOBS
from tests.support import CHECKOUT
from tests.support.pages import DOCS, PAGES, README, inline_code, links, name, sentences, text_of, words

MOST_LINES_OF_README = 150
MOST_WORDS_OF_README = 1200
MOST_WORDS_OF_A_SENTENCE = 30
PACKAGES = ("rrl", "envs", "baselines", "serving_adapter", "scripts")
PATH = re.compile(r"(?:rrl|envs|baselines|serving_adapter|scripts|tests|docs)/[\w./-]*")


def test_the_readme_is_one_page() -> None:
    text = text_of(README)
    assert len(text.splitlines()) <= MOST_LINES_OF_README
    assert words(text) <= MOST_WORDS_OF_README


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_sentence_is_long(page: Path) -> None:
    long = [sentence for sentence in sentences(page) if words(sentence) > MOST_WORDS_OF_A_SENTENCE]
    assert not long


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_and_picture_leads_somewhere(page: Path) -> None:
    targets = {(page.parent / target).resolve() for target in links(page)}
    lost = {str(target.relative_to(CHECKOUT)) for target in targets if not target.exists()}
    assert not lost


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_path_that_is_named_exists(page: Path) -> None:
    named = {match.group() for code in inline_code(page) if (match := PATH.match(code))}
    named = {path for path in named if not path.endswith("-v0")}
    assert not {path for path in named if not (CHECKOUT / path).exists()}


def test_nothing_is_installed_by_a_name_that_no_index_has() -> None:
    """A stranger may register it. A wheel is named by its file, and an extra by what is in it."""
    files = [*PAGES, *(path for package in PACKAGES for path in (CHECKOUT / package).rglob("*.py"))]
    assert not {path for path in files if re.search(r"pip install \S*rrl-tune", path.read_text("utf-8"))}


def test_no_picture_lies_about_unused() -> None:
    pages = [*PAGES, CHECKOUT / "RESULTS.md"]
    used = {(page.parent / target).resolve() for page in pages for target in links(page)}
    pictures = {path for pattern in ("*.png", "*.svg") for path in DOCS.rglob(pattern)}
    assert not {name(path) for path in pictures - used if path.parent.name != "figures"}


def test_every_knob_has_its_row() -> None:
    for page in (DOCS / "architecture.md", DOCS / "how-to" / "serve-your-model.md"):
        for knob, known in KNOBS.items():
            assert f"| `{knob}` | `{known.triton_field}` |" in text_of(page)
