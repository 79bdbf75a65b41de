"""A run of a given duration is complete when its time is up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rrl.views.html_report import page
from rrl.views.html_report.run_view import LeftOut, RunView
from rrl.views.summary import summarise
from tests.support.runs import simulated_runs as runs
from tests.support.runs.shown_report import shown, text


def test_a_run_of_a_given_duration_that_was_validated_is_complete_whatever_intervals_were_planned(
    good: runs.Run,
) -> None:
    """Changes take their time, so that fewer intervals fit into it."""
    header, records = good
    planned = replace(header, intervals=10 * len(records))
    assert RunView(planned, records, summarise(planned, records), True).complete
    assert "Ended early" not in text(shown((planned, records)))
    before = [r for r in records if r.kind != "validation"]
    assert "Ended early" in text(
        page.page(RunView(planned, before, summarise(planned, before), True), "", ())
    )


def test_intervals_before_a_resume_with_shorter_ones_are_as_long_as_they_were(good: runs.Run) -> None:
    header, records = good
    shorter = replace(header, interval_s=runs.INTERVAL_S / 10)
    lasted_min = np.diff(RunView(shorter, records, summarise(*good), True).ends_min)
    np.testing.assert_allclose(lasted_min, runs.INTERVAL_S / 60)


def test_a_run_of_a_given_duration_that_found_nothing_to_validate_is_complete_when_its_time_is_up(
    good: runs.Run,
) -> None:
    header, records = good
    only_start = [replace(r, kind="tune") for r in records if r.configuration == header.start]
    lasted_s = 60 * RunView(header, only_start, summarise(header, only_start), True).length_min
    for duration_s, complete in ((lasted_s, True), (10 * lasted_s + 3600, False)):
        planned = replace(header, intervals=10 * len(records), duration_s=duration_s)
        assert RunView(planned, only_start, summarise(planned, only_start), True).complete is complete


def test_the_time_before_the_intervals_shown_is_time_of_the_run(good: runs.Run) -> None:
    header, records = good
    only_start = [replace(r, kind="tune") for r in records if r.configuration == header.start]
    planned = replace(header, intervals=10 * len(records), duration_s=3600.0)
    summary = summarise(planned, only_start)
    for lasted_s, complete in ((3600.0, True), (60.0, False)):
        left_out = LeftOut(tuned=0, lasted_s=lasted_s)
        assert RunView(planned, only_start, summary, True, left_out).complete is complete


def test_a_duration_that_a_run_goes_on_for_is_not_up_by_what_it_did_before(good: runs.Run) -> None:
    header, records = good
    only_start = [replace(r, kind="tune") for r in records if r.configuration == header.start]
    lasted_s = 60 * RunView(header, only_start, summarise(header, only_start), True).length_min
    planned = replace(header, intervals=10 * len(records), duration_s=lasted_s)
    for resumed_at_s, complete in ((None, True), (only_start[-2].wall_time_s, False)):
        resumed = replace(planned, resumed_at_s=resumed_at_s)
        assert RunView(resumed, only_start, summarise(resumed, only_start), True).complete is complete
