"""RESULTS.md says nothing that the page it links to does not say, and judges by the rules in the code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.benchmarks.__main__ import BENCHMARKS
from scripts.figures.__main__ import FIGURES
from scripts.figures.headlines import verdict_of_headline
from scripts.figures.result import FAILS, NO_CLAIM, NOT_COMPARABLE, PARTLY, REPRODUCES, FigureResult
from tests.support import CHECKOUT

PAPERS_BY_HEADLINES = ("docs/results/trims.md", "docs/results/parm.md", "docs/benchmarks.md")
ON_LIVE_SERVERS = ("live-papers", "serf-model")
NUMBER = r"\d[\d,.]*\d|\d"
LINK = re.compile(r"\[([\w-]+)\]\((docs/[\w/]+\.md)\)")


class Row(NamedTuple):
    claim: str
    paper: str
    ours: str
    verdict: str
    command: str
    page: str


def row_of(line: str) -> Row:
    claim, paper, ours, verdict, link = (cell.strip() for cell in line.strip("|").split("|"))
    match = LINK.fullmatch(link)
    assert match is not None, link
    return Row(claim, paper, ours, verdict, match[1], match[2])


ROWS = [
    row_of(line)
    for line in (CHECKOUT / "RESULTS.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "](" in line
]
FILES = {name: path for name in FIGURES if (path := CHECKOUT / "docs/figures" / f"{name}.json").exists()}


def named(row: Row) -> str:
    return f"{row.command}: {row.claim}"


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_every_figure_of_a_row_stands_on_its_page(row: Row) -> None:
    page = (CHECKOUT / row.page).read_text(encoding="utf-8")
    figures = re.findall(NUMBER, row.ours)
    assert figures
    assert [figure for figure in figures if figure not in page] == []
    assert row.verdict in (REPRODUCES, PARTLY, FAILS, NO_CLAIM)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_every_row_names_a_command_that_its_page_shows(row: Row) -> None:
    is_figure = row.command.startswith(("rrl-", "serf-")) and row.command != "serf-model"
    assert row.command in (FIGURES if is_figure else BENCHMARKS)
    script = "reproduce" if is_figure else "bench"
    assert f"scripts/{script} {row.command}" in (CHECKOUT / row.page).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.page in PAPERS_BY_HEADLINES or row.command in ON_LIVE_SERVERS],
    ids=named,
)
def test_trims_parm_and_live_servers_are_judged_by_their_rules(row: Row) -> None:
    assert row.verdict == verdict_of_headline(row.paper, row.ours)


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [
        ("at most 6.5", "0.8-5.0", REPRODUCES),
        ("at most 6.5", "0.8-13.0", PARTLY),
        ("at most 6.5", "0.8-13.1", FAILS),
        ("at most 93/153 µs", "25/160", PARTLY),
        ("close to 1", "0.99-1.09", REPRODUCES),
        ("close to 1", "1.11", PARTLY),
        ("2.6-3.5", "2.6", REPRODUCES),
        ("2.6-3.5", "1.3", PARTLY),
        ("24x", "11.9x", FAILS),
        ("5,000x", "4,803x", PARTLY),
        ("-38 to -48 %", "-29 %", REPRODUCES),
        ("-35/-39 %", "-27/-20 %", PARTLY),
        ("-35/-39 %", "-27/-19 %", FAILS),
        ("-35 %", "+35 %", FAILS),
        ("at most 6.5", "5.0 (2 runs)", NO_CLAIM),
        ("at most 6.5", "5.0 (3 runs)", REPRODUCES),
        (NO_CLAIM, "39/1 %", NO_CLAIM),
    ],
)
def test_headlines_are_judged(paper: str, ours: str, verdict: str) -> None:
    assert verdict_of_headline(paper, ours) == verdict


@pytest.mark.parametrize("row", [row for row in ROWS if row.command in FILES], ids=named)
def test_a_row_of_a_figure_is_not_judged_better_or_worse_than_its_claims(row: Row) -> None:
    verdicts = verdicts_of_claims(row, FILES)
    if len(verdicts) == 1:
        assert row.verdict in verdicts
    elif verdicts:
        assert row.verdict in (PARTLY, FAILS)


@pytest.mark.parametrize("row", [row for row in ROWS if row.command in FILES], ids=named)
def test_every_row_of_a_figure_has_claims(row: Row) -> None:
    assert verdicts_of_claims(row, FILES)


def verdicts_of_claims(row: Row, files: Mapping[str, Path]) -> set[str]:
    """Those of the figure's claims with a number of the row; none where one of its numbers has no claim.

    A claim with the number at its beginning comes before those that have it elsewhere.
    """
    claims = [
        claim
        for claim in FigureResult.load(files[row.command]).claims
        if says_the_same(claim.paper, row.paper)
    ]
    found: set[str] = set()
    for number in re.findall(f"none|{NUMBER}", row.ours):
        itself = rf"(?<![\d.,])[-+]?{re.escape(number)}(?![\d.,]*\d)"
        begins = [claim for claim in claims if re.match(rf"(?:at least )?{itself}", claim.ours)]
        of_number = begins or [claim for claim in claims if re.search(itself, claim.ours)]
        if not of_number:
            return set()
        found |= {NO_CLAIM if claim.reproduces == NOT_COMPARABLE else claim.reproduces for claim in of_number}
    return found


def says_the_same(claim: str, row: str) -> bool:
    """Whether a claim's cell of the paper is one that a row quotes: its first number, or its words."""
    number = re.search(NUMBER, claim)
    words = any(words in claim for words in row.split("/"))
    return words or (number is not None and number[0] in re.findall(NUMBER, row))


def test_the_readme_has_the_reductions_of_all_panels() -> None:
    """Mean latencies of Figs. 12 and 13: RRL with load levels, and our default agent against RRL."""
    claims = [
        claim
        for name in ("rrl-fig12", "rrl-fig12-small", "rrl-fig12-served", "rrl-fig13")
        for claim in FigureResult.load(FILES[name]).claims
        if claim.what.startswith("mean latency, ")
    ]
    table = "\n".join(f"{claim.what} {claim.ours}" for claim in claims)
    readme = " ".join((CHECKOUT / "README.md").read_text(encoding="utf-8").split())
    for beside, reduction in (
        ("CAPES", r"RRL \(levels\) against CAPES -(\d+) %"),
        ("DeepRM", r"RRL \(levels\) against DeepRM -(\d+) %"),
        ("RRL with load levels", r"our default .*RRL \(levels\) -(\d+) %"),
        ("its authors' script", r"our default .*RRL \(script\) -(\d+) %"),
    ):
        percents = [int(percent) for percent in re.findall(reduction, table)]
        assert len(percents) > 12
        assert f"{min(percents)} to {max(percents)} % less than {beside}" in readme


def test_results_is_one_table() -> None:
    text = (CHECKOUT / "RESULTS.md").read_text(encoding="utf-8")
    assert len(text.replace("|", " ").split()) < 1300
    assert len(ROWS) > 20
