"""The time line has every change with its reason, and every trouble."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from rrl.tuning.decision_words import who_decided
from rrl.views.html_report import page
from rrl.views.summary import summarise
from tests.support.runs import simulated_runs as runs
from tests.support.runs.shown_report import by_class, section, shown, text, view


def test_every_change_is_marked_and_listed_with_its_reason(good: runs.Run) -> None:
    header, records = good
    numbers = [r.number for r in records]
    expected = sum(a != b for a, b in pairwise(numbers))
    expected += numbers[-1] != header.space.number(summarise(*good).kept)
    root = shown(good)
    ticks = by_class(section(root, "time"), "change")
    rows = by_class(root, "changes")[0].findall("./tbody/tr")
    assert len(ticks) == len(rows) == expected
    assert "the agent: it is the turn of 1" in text(rows[0])
    assert "instances 1 → " in text(by_class(root, "changes")[0])
    for tick, row in zip(ticks, rows, strict=True):
        what, why = text(row[2]), text(row[3])
        assert what in text(tick.find("title"))
        assert why in text(tick.find("title"))
    assert "validation: measures the best and the start in turns" in text(rows[-2])
    assert "measured in turns with it" in text(rows[-1])


def test_what_was_put_back_is_a_change_too_with_its_reason(good: runs.Run) -> None:
    header, records = good
    at = next(i for i in range(1, len(records)) if records[i].configuration == records[i - 1].configuration)
    there = runs.measured(records[at - 1], gap="the server was restarted")
    back = replace(records[at], changed_at_s=(records[at].wall_time_s,))
    told = (header, [*records[: at - 1], there, back, *records[at + 1 :]])
    assert len(view(told).changes) == len(view(good).changes) + 1
    why = "another was in force meanwhile (the server was restarted): puts back that of this run"
    assert why in text(section(shown(told), "time"))


def test_what_another_client_has_set_is_its_own_change(good: runs.Run) -> None:
    header, records = good
    at = next(i for i in range(1, len(records)) if records[i].configuration != records[i - 1].configuration)
    gap = "another client changed the configuration within the interval: instances 1 -> 2"
    lost = runs.measured(records[at - 1], gap=gap, gap_by_others=True)
    held = replace(records[at], decision="hold", reason="another client set it: the run goes on from it")
    told = (header, [*records[: at - 1], lost, held, *records[at + 1 :]])
    (change,) = (each.change for each in view(told).changes if each.interval == at)
    assert who_decided(change.decision) == "others"
    assert change.reason == gap
    assert "changed by another client" in text(section(shown(told), "time"))

    own = replace(held, decision="rollback", changed_at_s=(held.wall_time_s,))
    made = view((header, [*records[: at - 1], lost, own, *records[at + 1 :]]))
    (change,) = (each.change for each in made.changes if each.interval == at)
    assert who_decided(change.decision) == "guard"


@pytest.mark.parametrize("why", [{"not_taken": True}, {"left_to_others": True}])
def test_what_did_not_come_into_force_is_neither_a_change_nor_drawn(
    good: runs.Run, why: dict[str, Any]
) -> None:
    header, records = good
    tried = [replace(r, **why) if r.configuration != header.start else r for r in records]
    told = view((header, tried), ended=False)
    assert not told.changes
    root = page.page(told, "", ())
    tracks = [track for track in by_class(section(root, "time"), "knob") if track.get("aria-label")]
    labels = [str(track.get("aria-label")) for track in tracks]
    assert any(label.startswith("instances: 1 in force") for label in labels), labels


def test_the_last_change_is_that_of_the_runs_end(good: runs.Run) -> None:
    """Here the start had the last turn, so that it was in force."""
    last = by_class(shown(good), "changes")[0].findall("./tbody/tr")[-1]
    assert text(last).endswith("the run's end")
    assert summarise(*good).why_kept in text(last)


def test_trouble_is_marked_named_and_counted(good: runs.Run) -> None:
    root = shown(runs.troubled(good))
    time = section(root, "time")
    symbols = [
        use.get("href")
        for use in time.iter("use")
        if "mark" in use.get("class", "") and use.find("title") is not None
    ]
    assert symbols.count("#aborted") == 1
    assert symbols.count("#rolled-back") == 2
    assert symbols.count("#failed") == 1
    gaps = [text(rect.find("title")) for rect in by_class(time, "gap") if rect.find("title") is not None]
    assert "the server was restarted" in gaps
    legend = text(time.find(".//ul"))
    for words in (
        "aborted by the guard",
        "rolled back",
        "requests failed",
        "changed by the guard",
        "nothing measured",
    ):
        assert words in legend
        assert words not in text(section(shown(good), "time").find(".//ul"))
    facts = text(section(root, "cost"))
    for words in ("aborted by the guard1", "rolled back2", "proposals refused1", "failed requests4"):
        assert words in facts
    assert "requests failed" not in text(section(shown(good), "time").find(".//ul"))
    reasons = text(by_class(root, "changes")[0])
    assert "the guard rolled back: the queue is running away" in reasons
    assert "aborted: the queue is running away: 90 more requests" in reasons


def test_one_failed_request_is_no_plural(good: runs.Run) -> None:
    header, records = good
    failing = [runs.measured(r, failures=1) if i == 6 else r for i, r in enumerate(records)]
    root = shown((header, failing))
    assert "1 request failed" in text(by_class(root, "changes")[0])
    assert "1 requests" not in text(root)


def test_changes_of_several_days_have_their_date(good: runs.Run) -> None:
    header, records = good
    assert re.fullmatch(r"\d\d:\d\d:\d\d", text(shown(good).find(".//time")))
    days = [replace(r, wall_time_s=r.wall_time_s + 86400 * (i > 8)) for i, r in enumerate(records)]
    clocks = [text(clock) for clock in shown((header, days)).iter("time")]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", clock) for clock in clocks)
    assert clocks == sorted(clocks)
