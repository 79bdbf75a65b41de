"""The whole page, read from its tree; that a browser shows it is tested beside this."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rrl.views.html_report import page
from rrl.views.html_report.markup import document
from rrl.views.html_report.numbers import NOTHING
from rrl.views.html_report.run_view import RunView
from rrl.views.summary import summarise
from tests.support.runs import simulated_runs as runs
from tests.support.runs.shown_report import by_class, section, shown, text


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_few_intervals_or_none_make_a_page_too(good: runs.Run, count: int) -> None:
    header, records = good
    root = shown((header, records[:count]), ended=False)
    document(root)
    assert text(root.find(".//h1")).startswith("Noth") or ", not validated" in text(root.find(".//h1"))
    assert "rrl-tune" in text(section(root, "reproduce"))


def test_limits_and_threads_have_words_of_their_own(tmp_path: Path) -> None:
    slo = runs.tuned(tmp_path / "slo", objective="strict-slo", slo_p95_ms=500.0)
    root = shown(slo)
    assert text(root.find(".//h1")).startswith(("p95 latency ", "Nothing better"))
    assert "p95 limit 500" in text(section(root, "time"))
    assert "intervals over 500 ms at p95" in text(section(root, "cost"))
    assert text(section(root, "compare").findall(".//tbody/tr")[-1]).startswith("cost")
    threads = replace(slo[0], objective="least-resources"), slo[1]
    assert "cost (threads)" in text(section(shown(threads), "landscape"))


def test_a_cost_that_stands_for_a_broken_limit_is_no_number_of_threads(good: runs.Run) -> None:
    header, records = good
    start = header.space.number(header.start)
    costs = [2693.0 if r.number == start else 4.0 for r in records]
    header = replace(header, objective="least-resources", slo_p95_ms=50.0)
    told = [
        replace(r, transition=replace(r.transition, cost=cost))
        for r, cost in zip(records, costs, strict=True)
    ]
    root = shown((header, told))
    assert text(root.find(".//h1")).startswith("Threads (a broken limit) → 4")
    assert "2,693" not in text(root)
    assert "a broken limit" in text(by_class(section(root, "landscape"), "landscape")[0])
    last = section(root, "compare").findall(".//tbody/tr")[-1]
    assert [text(cell) for cell in last][:2] == ["cost", "a broken limit"]
    assert text(last[-1]) == NOTHING


def test_the_policy_lets_nothing_in_but_the_pages_own_style_and_script(good: runs.Run) -> None:
    root = shown(good)
    policy = next(m for m in root.iter("meta") if m.get("http-equiv") == "Content-Security-Policy").get(
        "content"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in re.sub(r"sha256-[^']*", "", policy)
    assert not [e for e in root.iter() if e.get("style") or any(name.startswith("on") for name in e.attrib)]
    outside = [
        v
        for e in root.iter()
        for k, v in e.items()
        if k in ("src", "href", "action") and not v.startswith(("#", "data:"))
    ]
    assert outside == []


def test_2000_intervals_stay_below_two_megabytes(good: runs.Run) -> None:
    header, records = runs.repeated(good, 2000)
    summary = runs.at_usual_start(summarise(*good), (header, records))
    root = page.page(RunView(header, records, summary, True), "", ())
    assert len(document(root).encode()) < 2_000_000
    assert not by_class(section(root, "time"), "mean-dot")
    assert by_class(section(root, "time"), "mean-reach")
