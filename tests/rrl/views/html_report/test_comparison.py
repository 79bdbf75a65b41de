"""Start and best are compared in every statistic, each with its interval."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rrl.guarding.gain import pooled_noise
from rrl.views.confidence import mean_interval
from rrl.views.html_report.comparison import STATISTICS, estimate
from rrl.views.html_report.numbers import lower_or_higher, ms
from rrl.views.html_report.run_view import RunView
from rrl.views.summary import summarise
from tests.support.runs import simulated_runs as runs
from tests.support.runs.shown_report import by_class, section, shown, text


def test_start_and_best_are_compared_in_every_statistic_with_an_interval(good: runs.Run) -> None:
    summary = summarise(*good)
    table = section(shown(good), "compare").find(".//table")
    assert table is not None
    rows = {text(row.find("th")): row.findall("td") for row in table.findall("./tbody/tr")}
    assert list(rows) == ["mean", "p50", "p95", "p99", "queue", "service"]
    for name, field in (
        ("mean", "mean_ms"),
        ("p95", "p95_ms"),
        ("queue", "queue_ms"),
        ("service", "service_ms"),
    ):
        start, best, change = rows[name]
        for cell, standing in ((start, summary.start), (best, summary.best)):
            value, low, high = (float(x.replace(",", "")) for x in re.findall(r"[\d.,]+", text(cell)))
            assert value == pytest.approx(getattr(standing, field), rel=0.01)
            assert low < value < high
        assert text(change) == lower_or_higher(getattr(summary.start, field), getattr(summary.best, field))
    assert "n = 1 interval of each." in text(section(shown(good), "compare"))


def test_an_interval_goes_by_all_that_start_and_best_scattered(good: runs.Run) -> None:
    """The start has few intervals of its own."""
    header, records = good
    summary = summarise(*good)
    noise = pooled_noise(
        [
            [r.measurement.latency.mean_ms for r in records if r.configuration == each and r.learned]
            for each in (header.start, summary.kept)
        ]
    )
    expected = mean_interval(
        [r.measurement.latency.mean_ms for r in summary.start_records],
        [r.measurement.completions for r in summary.start_records],
        noise,
    )
    table = section(shown(good), "compare").find(".//table")
    assert table is not None
    assert f"{ms(expected.low)} to {ms(expected.high)}" in text(table.find("./tbody/tr/td"))


def test_a_short_turn_of_the_start_tells_less_and_is_named(good: runs.Run) -> None:
    header, records = good
    (turn,) = [r for r in records if r.kind == "validation" and r.configuration == header.start]
    short = replace(turn, share=0.9)
    run = header, [short if r is turn else r for r in records]
    view = RunView(*run, summarise(*run), True)
    whole, half = (estimate(view, STATISTICS[0], [each]) for each in (turn, short))
    assert half.low < whole.low < whole.value == half.value < whole.high < half.high
    n = "n = 1 interval of each (the first of the start a short one, "
    assert n in text(section(shown(run), "compare"))


def test_a_target_without_percentiles_has_dashes_and_a_footnote(good: runs.Run) -> None:
    root = shown(runs.without_percentiles(good))
    table = section(root, "compare").find(".//table")
    assert table is not None
    rows = {
        text(row.find("th")): [text(cell) for cell in row.findall("td")]
        for row in table.findall("./tbody/tr")
    }
    assert rows["p50"] == rows["p95"] == rows["p99"] == ["–", "–", "–"]
    assert "–" not in rows["mean"]
    assert "–: the target tells no percentiles, as a stock Triton does not" in text(section(root, "compare"))
    legend = section(root, "time").find(".//ul")
    assert legend is not None
    assert not by_class(legend, "p95-line")
    assert "p95 (ms)" not in text(section(root, "landscape"))
    assert "the target tells no percentiles" not in text(shown(good))


def test_a_logarithmic_strip_says_so(good: runs.Run) -> None:
    def caption(run: runs.Run) -> str:
        return text(section(shown(run), "compare").find(".//figcaption"))

    assert "logarithmic" not in caption(good)
    header, records = good
    start = header.space.number(header.start)
    slow = [
        runs.measured(r, latency=r.measurement.latency._replace(mean_ms=5_000.0)) if r.number == start else r
        for r in records
    ]
    assert caption((header, slow)).startswith("Mean latency (ms, logarithmic) of each interval")
