"""The headline says what was gained, how surely, and what was left in force."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from rrl.guarding.choice import ToKeep
from rrl.guarding.gain import Gain
from rrl.knobs import in_words
from rrl.views.html_report import page
from rrl.views.html_report.headline import title_in_words
from rrl.views.html_report.numbers import lower_or_higher, ms
from rrl.views.html_report.run_view import RunView
from rrl.views.summary import KEPT_UNKNOWN, summarise
from rrl.views.terminal import gain_in_words
from tests.support.runs import simulated_runs as runs
from tests.support.runs.shown_report import by_class, section, shown, text, view


def test_the_headline_says_what_was_gained_and_how_surely(good: runs.Run) -> None:
    summary = summarise(*good)
    assert summary.found_better
    head = shown(good).find(".//header")
    assert head is not None
    assert (
        text(head.find("h1")) == f"Mean latency {ms(summary.start.mean_ms)} → {ms(summary.best.mean_ms)} ms"
    )
    verdict = text(by_class(head, "verdict")[0])
    gain = summary.turns
    assert verdict.startswith(
        f"{gain.estimate:.2f}x lower cost (90% interval {gain.low:.2f}x to {gain.high:.2f}x)"
    )
    assert "measured in turns with the start (A B: clear enough to spare users another)" in verdict
    assert f"Left in force: {in_words(summary.kept)}." in text(head)
    assert not by_class(head, "state")


def test_a_start_that_had_more_turns_is_said_to_have_had_them(good: runs.Run) -> None:
    run = view(good)
    thrice = replace(run.summary, start=replace(run.summary.start, intervals=3))
    verdict = text(by_class(page.page(replace(run, summary=thrice), "", ()), "verdict")[0])
    assert "measured in turns with the start (A B B A A B, 3 intervals each)" in verdict


def test_no_better_is_said_plainly(good: runs.Run, tmp_path: Path) -> None:
    four = runs.tuned(tmp_path, start={"instances": 2, "max_batch_size": 1}, rate_per_s=20.0)
    assert not summarise(*four).found_better
    root = shown(four)
    assert text(root.find(".//h1")) == "Nothing better than the start was found"
    assert "No better" in text(by_class(root, "verdict")[0])
    assert ", as found." in text(root.find(".//header"))
    assert "There is nothing to apply" in text(section(root, "apply"))
    assert "Left in force" in text(root.find(".//header"))


def test_a_start_that_is_left_and_was_not_found_is_there_to_apply(tmp_path: Path) -> None:
    """A knob was pinned to another value than the one found."""
    start = {"instances": 2, "max_batch_size": 1}
    pinned = runs.tuned(tmp_path, start=start, rate_per_s=20.0, found=start | {"instances": 1})
    assert not summarise(*pinned).found_better
    root = shown(pinned, files=("best_config.pbtxt",))
    said = text(root.find(".//header"))
    assert f"Left in force: {in_words(start)}, as the run started." in said
    assert ", as found" not in said
    apply = text(section(root, "apply"))
    assert "what a server is told at run time ends with the server" in apply
    assert "cp best_config.pbtxt" in apply
    assert "stays as it was found" not in text(section(root, "configuration"))
    lost = replace(view(pinned).summary, validated=True, turns=Gain(1.2, 1.3, 1.4))
    page_of_lost = page.page(replace(view(pinned), summary=lost), "", ())
    assert text(page_of_lost.find(".//h1")) == "Left as the run started, the best was not taken"


def test_a_candidate_that_lost_is_named_with_its_interval(good: runs.Run) -> None:
    header, records = good
    start = header.space.number(header.start)
    summary = summarise(header, records, kept=ToKeep(start, "interrupted"))
    assert summary.validated
    root = page.page(RunView(header, records, summary, True), "", ())
    said = text(by_class(root, "verdict")[0])
    assert in_words(summary.best.configuration) in said
    assert lower_or_higher(summary.turns.estimate, 1.0) in said
    assert "best candidate" in text(section(root, "compare"))


def test_what_a_resumed_run_found_and_never_measured_is_left_without_a_figure(good: runs.Run) -> None:
    header, records = good
    unknown = summarise(header, records).best.configuration
    records = [record for record in records if record.configuration != unknown]
    summary = summarise(header, records, kept=ToKeep(header.space.number(unknown), "interrupted"))
    root = page.page(RunView(header, records, summary, True), "", ())
    assert text(root.find(".//h1")) == "Left in force, not known to be better than the start"
    assert "nan" not in text(root.find(".//header")).lower()


def test_what_is_left_though_its_turns_leave_it_open_is_said_to_be_so(good: runs.Run) -> None:
    doubtful: dict[str, Any] = {"turns": Gain(0.9, 1.3, 1.9), "why_kept": "it was better before its turns"}
    root = page.page(view(good, **doubtful), "", ())
    verdict = text(by_class(root, "verdict")[0])
    assert verdict.startswith("1.30x lower cost (90% interval 0.90x to 1.90x), measured in turns")
    assert verdict.endswith("Within noise by itself: it was better before its turns.")
    said = gain_in_words(replace(summarise(*good), **doubtful))
    assert said == "1.30x lower cost (it was better before its turns)"


def test_what_is_left_though_its_turns_seem_worse_has_no_lower_cost(good: runs.Run) -> None:
    worse: dict[str, Any] = {"turns": Gain(0.5, 0.8, 1.25), "why_kept": "it was better before its turns"}
    root = page.page(view(good, **worse), "", ())
    said = "1.25x higher cost (90% interval 2.00x higher to 1.25x lower), measured in turns"
    assert text(by_class(root, "verdict")[0]).startswith(said)
    words = gain_in_words(replace(summarise(*good), **worse))
    assert words == "1.25x higher cost (it was better before its turns)"


def test_a_start_that_was_not_answered_is_told_from_a_target_without_percentiles(good: runs.Run) -> None:
    def tiles(run: runs.Run) -> list[str]:
        return [text(tile) for tile in by_class(shown(run), "tiles")[0]][:2]

    unmeasured = "–not measured with the start"
    assert tiles(runs.unanswered(good)) == [f"mean latency{unmeasured}", f"p95 latency{unmeasured}"]
    mean, p95 = tiles(runs.without_percentiles(good))
    assert mean.endswith("ms with the start")
    assert p95 == "p95 latency–the target tells no percentiles"


def test_figures_of_a_start_that_met_another_load_are_said_not_to_compare(good: runs.Run) -> None:
    summary = summarise(*good)
    assert summary.loads_compare
    assert "in place of" not in text(by_class(shown(good), "tiles")[0])
    start = replace(summary.start, arrival_rate_per_s=summary.best.arrival_rate_per_s / 2)
    root = page.page(view(good, start=start), "", ())
    met = f"at {ms(start.arrival_rate_per_s)} in place of {ms(summary.best.arrival_rate_per_s)} requests/s"
    mean, p95 = (text(tile) for tile in list(by_class(root, "tiles")[0])[:2])
    assert met in p95
    assert met not in mean  # which is what the best's arrivals would have cost the start
    unknown = page.page(view(good, start=start, start_beside_best_ms=math.nan), "", ())
    assert met in text(by_class(unknown, "tiles")[0][0])
    assert "these figures do not compare" in text(section(root, "compare"))


def test_an_expected_figure_of_the_start_is_told_from_a_measured_one(good: runs.Run) -> None:
    header, records = good
    measured = text(by_class(shown(good), "tiles")[0][0])
    assert "expected" not in measured
    root = shown((header, records[:9]), ended=False)
    summary = summarise(header, records[:9])
    expected = f"{ms(summary.start_beside_best_ms)} ms expected with the start at the same arrivals"
    mean, p95 = (text(tile) for tile in list(by_class(root, "tiles")[0])[:2])
    assert mean.endswith(expected)
    assert "expected" not in p95


def test_the_gain_of_its_intervals_is_told_from_the_one_it_was_kept_for(good: runs.Run) -> None:
    header, records = good
    summary = summarise(header, records[:9])
    verdict = text(by_class(shown((header, records[:9]), ended=False), "verdict")[0])
    assert verdict == (
        f"{lower_or_higher(summary.gain, 1.0)} cost in its own intervals, not measured again in turns with "
        f"the start. The reason to keep it: {summary.why_kept}."
    )


def test_an_unfinished_run_says_so_and_shows_what_is_known(good: runs.Run) -> None:
    header, records = good
    root = shown((header, records[:9]), ended=False)
    assert text(by_class(root, "state")[0]) == "Not finished: 6 of 12 tuning intervals done."
    assert "not measured again in turns" in text(by_class(root, "verdict")[0])
    assert "Left in force" not in text(root.find(".//header"))
    root = shown((header, records[:-1]), ended=False)
    assert not by_class(root, "state")  # the search left no doubt that the best is better
    root = shown((header, records[:9]), ended=True)
    assert text(by_class(root, "state")[0]).startswith("Ended early")


def test_a_start_that_was_not_measured_answered_no_known_number(good: runs.Run) -> None:
    header, records = good
    unlearned = [replace(r, learned=r.kind != "baseline") for r in records if r.kind != "validation"]
    run = view((replace(header, objective="throughput"), unlearned))
    assert math.isnan(run.summary.start.answered_per_s)
    assert title_in_words(run) == KEPT_UNKNOWN
