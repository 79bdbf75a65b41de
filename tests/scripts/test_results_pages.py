"""RESULTS.md says nothing that the page it links to does not say."""

from __future__ import annotations

import re

import pytest

from tests.support import CHECKOUT

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (CHECKOUT / "RESULTS.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "](docs/results/" in line
]


@pytest.mark.parametrize(("claim", "paper", "ours", "verdict", "link"), ROWS, ids=[row[0] for row in ROWS])
def test_every_figure_of_a_row_stands_on_its_page(
    claim: str, paper: str, ours: str, verdict: str, link: str
) -> None:
    path = re.search(r"\((docs/results/[a-z]+\.md)\)", link)
    assert path is not None
    page = (CHECKOUT / path[1]).read_text(encoding="utf-8")
    figures = re.findall(r"\d[\d,.]*\d|\d", ours)
    assert figures
    assert [figure for figure in figures if figure not in page] == []
    assert verdict in ("yes", "partly", "no", "–")


def test_results_is_one_table() -> None:
    text = (CHECKOUT / "RESULTS.md").read_text(encoding="utf-8")
    assert len(text.replace("|", " ").split()) < 1000
    assert len(ROWS) > 20
