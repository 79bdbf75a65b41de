"""What the run cost its users is told, and when it was paid back."""

from __future__ import annotations

import pytest

from rrl.views.html_report import page
from rrl.views.html_report.exploration import paid_back
from rrl.views.html_report.numbers import duration, ms
from tests.support.runs import simulated_runs as runs
from tests.support.runs.shown_report import by_class, section, shown, text, view


def test_what_tuning_cost_is_told_with_what_it_brought(good: runs.Run) -> None:
    run = view(good)
    cost = run.summary.exploration
    facts = {
        text(row.find("dt")): text(row.find("dd"))
        for row in section(shown(good), "cost").findall(".//dl/div")
    }
    assert facts["waited longer than at the start"] == f"{ms(cost.extra_request_s)} request-seconds"
    assert sum(x for x in run.extra_request_s if x > 0) == pytest.approx(cost.extra_request_s)
    assert facts["of it in the validation"] == f"{ms(cost.validation_request_s)} request-seconds"
    assert facts["tuning intervals worse than the start"] == f"{cost.worse_share:.0%} of 12"
    assert facts["changes of configuration"] == str(len(run.changes))
    assert facts["a change took (median, longest)"] == "120 ms, 120 ms"


def slow_turns(run: runs.Run) -> runs.Run:
    """Its users waited two seconds in every turn of the validation."""
    header, records = run
    slow = {i: runs.measured(r, latency=r.measurement.latency._replace(mean_ms=2000.0))
            for i, r in enumerate(records) if r.kind == "validation"}  # fmt: skip
    return header, [slow.get(i, r) for i, r in enumerate(records)]


def test_what_the_validation_cost_is_in_tile_facts_and_balance(good: runs.Run) -> None:
    run = view(slow_turns(good))
    cost = run.summary.exploration
    turns = [i for i, r in enumerate(run.records) if r.kind == "validation"]
    assert cost.validation_request_s > 0
    assert cost.validation_request_s == pytest.approx(run.extra_request_s[turns].sum())
    root = page.page(run, "", ())
    tile = next(t for t in by_class(root, "tiles")[0] if text(t.find("dt")) == "tuning cost")
    assert text(by_class(tile, "value")[0]) == f"{ms(cost.extra_request_s)} s"
    assert f"{ms(cost.validation_request_s)} s in the validation, changes included" in text(tile)
    (balance,) = by_class(root, "balance")
    assert len(by_class(balance, "phase")) == len(turns)
    assert "validation" in text(balance)


def test_that_nothing_measures_the_last_change_is_said_where_there_is_one(good: runs.Run) -> None:
    header, records = good
    assert "but for the last, which is not measured" in text(shown(good).find(".//header"))
    assert "What the last change cost is not in it" in text(section(shown(good), "cost"))
    cut = (header, records[:-1])  # the best was in force at its end, and was left
    assert "but for the last" not in text(shown(cut).find(".//header"))
    assert "the last change" not in text(section(shown(cut), "cost"))


def test_it_is_paid_back_when_the_balance_stays_below_zero(good: runs.Run) -> None:
    run = view(good)
    n = len(run.records)
    run.__dict__["extra_request_s"] = [0.0] * n  # as cached

    def said(extra: list[float]) -> str:
        import numpy as np

        run.__dict__["extra_request_s"] = np.array(extra + [0.0] * (n - len(extra)))
        return paid_back(run, np.cumsum(run.extra_request_s))

    assert said([0, -1.0]) == "No interval was worse than the start."
    assert said([2.0, -1.0]) == "Within this run it was not paid back."
    assert said([-2.0, 1.0]) == "At any time it had gained more than it had cost."
    assert said([0.0, 0.0, -2.0, 1.0]) == "At any time it had gained more than it had cost."
    assert said([2.0, -3.0, 2.0, -1.5]) == f"It was paid back after {duration(4 * runs.INTERVAL_S)}."
