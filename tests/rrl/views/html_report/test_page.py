"""What the report says, read from its tree; that a browser shows it is tested beside this."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from rrl.command_line.opening.earlier import as_before
from rrl.command_line.options.options import TuneOptions
from rrl.guarding.choice import ToKeep
from rrl.guarding.gain import Gain, pooled_noise
from rrl.knobs import in_words
from rrl.records import Header
from rrl.views.by_load import groups_by_load
from rrl.views.confidence import mean_interval
from rrl.views.exports import write_views
from rrl.views.html_report import next_steps, page
from rrl.views.html_report.comparison import STATISTICS, estimate
from rrl.views.html_report.exploration import paid_back
from rrl.views.html_report.landscape import Explored, most_influential
from rrl.views.html_report.markup import document, tag
from rrl.views.html_report.numbers import (
    duration,
    linear_ticks,
    log_ticks,
    lower_or_higher,
    minute_ticks,
    ms,
    times,
)
from rrl.views.html_report.run_view import RunView
from rrl.views.summary import summarise
from rrl.views.terminal import gain_in_words
from serving_adapter.options import parse
from serving_adapter.target.open_inference.kept_configuration import KeptConfiguration
from tests.support.runs import simulated_runs as runs


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return runs.tuned(tmp_path_factory.mktemp("good"))


def view(run: runs.Run, ended: bool = True, **summary: Any) -> RunView:
    header, records = run
    return RunView(header, records, replace(summarise(header, records), **summary), ended)


def shown(run: runs.Run, ended: bool = True, diff: str = "", files: tuple[str, ...] = ()) -> Element:
    return page.page(view(run, ended), diff, files)


def text(element: Element | None) -> str:
    assert element is not None
    return re.sub(r"\s+", " ", "".join(element.itertext())).strip()


def section(root: Element, name: str) -> Element:
    found = root.find(f".//section[@id='{name}']")
    assert found is not None, name
    return found


def by_class(root: Element, name: str) -> list[Element]:
    return [e for e in root.iter() if name in (e.get("class") or "").split()]


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
    assert f"Left in force: {in_words(summary.left)}." in text(head)
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


def test_a_candidate_that_lost_is_named_with_its_interval(good: runs.Run) -> None:
    header, records = good
    start = header.space.number(header.start)
    summary = summarise(header, records, left=ToKeep(start, "interrupted"))
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
    summary = summarise(header, records, left=ToKeep(header.space.number(unknown), "interrupted"))
    root = page.page(RunView(header, records, summary, True), "", ())
    assert text(root.find(".//h1")) == "Left in force, not known to be better than the start"
    assert "nan" not in text(root.find(".//header")).lower()


def test_what_is_left_though_its_turns_leave_it_open_is_said_to_be_so(good: runs.Run) -> None:
    doubtful: dict[str, Any] = {"turns": Gain(0.9, 1.3, 1.9), "why_left": "it was better before its turns"}
    root = page.page(view(good, **doubtful), "", ())
    verdict = text(by_class(root, "verdict")[0])
    assert verdict.startswith("1.30x lower cost (90% interval 0.90x to 1.90x), measured in turns")
    assert verdict.endswith("Within noise by itself: it was better before its turns.")
    said = gain_in_words(replace(summarise(*good), **doubtful))
    assert said == "1.30x lower cost (it was better before its turns)"


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


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_few_intervals_or_none_make_a_page_too(good: runs.Run, count: int) -> None:
    header, records = good
    root = shown((header, records[:count]), ended=False)
    document(root)
    assert text(root.find(".//h1")).startswith("Noth") or ", not validated" in text(root.find(".//h1"))
    assert "rrl-tune" in text(section(root, "reproduce"))


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
            for each in (header.start, summary.left)
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


def test_a_run_of_a_given_duration_that_found_nothing_to_validate_is_complete_when_its_time_is_up(
    good: runs.Run,
) -> None:
    header, records = good
    only_start = [replace(r, kind="tune") for r in records if r.configuration == header.start]
    lasted_s = 60 * RunView(header, only_start, summarise(header, only_start), True).length_min
    for duration_s, complete in ((lasted_s, True), (10 * lasted_s + 3600, False)):
        planned = replace(header, intervals=10 * len(records), duration_s=duration_s)
        assert RunView(planned, only_start, summarise(planned, only_start), True).complete is complete


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


def test_every_change_is_marked_and_listed_with_its_reason(good: runs.Run) -> None:
    header, records = good
    numbers = [r.number for r in records]
    expected = sum(a != b for a, b in pairwise(numbers))
    expected += numbers[-1] != header.space.number(summarise(*good).left)
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


def test_the_last_change_is_that_of_the_runs_end(good: runs.Run) -> None:
    """Here the start had the last turn, so that it was in force."""
    last = by_class(shown(good), "changes")[0].findall("./tbody/tr")[-1]
    assert text(last).endswith("the run's end")
    assert summarise(*good).why_left in text(last)


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
    assert said([2.0, -3.0, 2.0, -1.5]) == f"It was paid back after {duration(4 * runs.INTERVAL_S)}."


def test_the_landscape_lists_every_configuration_measured_cheapest_first(good: runs.Run) -> None:
    header, records = good
    root = section(shown(good), "landscape")
    rows = by_class(root, "landscape")[0].findall("./tbody/tr")
    costs: dict[int, list[float]] = {}
    for r in records:
        if r.learned:
            costs.setdefault(r.number, []).append(r.cost)
    means = sorted((sum(c) / len(c), n) for n, c in costs.items())
    assert len(rows) == len(means)
    for row, (mean, number) in zip(rows, means, strict=True):
        cells = [text(cell) for cell in row.findall("td")]
        configuration = header.space.configuration(number)
        assert cells[:2] == [str(configuration["instances"]), str(configuration["max_batch_size"])]
        assert cells[2] == str(len(costs[number]))
        assert cells[3] == ms(mean)
    badges = [text(badge) for badge in by_class(root, "badge")]
    assert sorted(badges) == ["best", "start"]


def test_the_heat_map_shows_the_lowest_cost_of_each_pair(good: runs.Run) -> None:
    header, records = good
    heat = by_class(section(shown(good), "landscape"), "heat")[0]
    (group,) = groups_by_load(records)
    explored = Explored(group, header.space)
    assert set(most_influential(explored) or ()) == {"instances", "max_batch_size"}
    cells = [text(cell) for cell in heat.findall("./tbody/tr/td")]
    shown_costs = {ms(t.cost.value) + str(t.cost.intervals) for t in explored.tried}
    assert {cell for cell in cells if not cell.startswith("not measured")} == shown_costs
    assert text(by_class(heat, "cheapest")[0]) == ms(explored.tried[0].cost.value) + str(
        explored.tried[0].cost.intervals
    )


def test_the_front_is_a_table_and_filled_dots_of_the_plot(good: runs.Run) -> None:
    run = view(good)
    root = section(shown(good), "tradeoff")
    front, points = run.tradeoff.front, run.tradeoff.points
    assert len(by_class(root, "front-dot")) % len(front) == 0
    assert len(by_class(root, "behind-dot")) == (len(points) - len(front)) * len(by_class(root, "tradeoff"))
    rows = by_class(root, "front")[0].findall("./tbody/tr")
    assert [text(row[0]) for row in rows] == [str(point.threads) for point in front]
    assert [text(row[1]) for row in rows] == [ms(point.latency_ms) for point in front]
    assert len(rows) < 2 or re.search(r"[\d.]+x (lower|higher) p95.*, for ", text(rows[1][-1]))
    limited = replace(good[0], slo_p95_ms=50.0), good[1]
    assert "p95 limit 50" in text(section(shown(limited), "tradeoff"))


def test_one_configuration_alone_has_nothing_to_be_traded(good: runs.Run) -> None:
    header, records = good
    alone = [r for r in records if r.number == header.space.number(header.start)]
    assert shown((header, alone)).find(".//section[@id='tradeoff']") is None


def test_what_the_run_learned_ranks_the_knobs_and_answers_what_if(good: runs.Run) -> None:
    run = view(good)
    assert run.learned is not None
    root = shown(good)
    rows = section(root, "importance").findall(".//tbody/tr")
    assert {text(row[0]) for row in rows} == {"instances", "max batch size", "in combination"}
    assert sum(int(text(row[1]).rstrip("%")) for row in rows) == pytest.approx(100, abs=2)
    loads, limits = section(root, "what-if").findall(".//table")
    assert len(loads.findall("./tbody/tr")) == len(limits.findall("./tbody/tr")) == 4
    assert "no such load was seen" in text(loads.findall("./tbody/tr")[-1])
    present = loads.findall("./tbody/tr")[1]
    assert text(present[1]) == in_words(run.learned.ask(load=float(text(present[0]))).best[0].configuration)
    header, records = good
    nothing = page.page(RunView(header, [], summarise(header, []), False), "", ())
    assert nothing.find(".//section[@id='what-if']") is None
    capacity = replace(header, objective="capacity", slo_p95_ms=200.0), records
    (table,) = section(shown(capacity), "what-if").findall(".//table")
    assert "answers/s" in text(table.findall("./tbody/tr")[0])


def test_one_knob_alone_has_no_heat_map(good: runs.Run) -> None:
    header, records = good
    alone = [r for r in records if r.configuration["max_batch_size"] == 1]
    assert most_influential(Explored(alone, header.space)) is None
    assert not by_class(shown((header, alone)), "heat")


def test_unlike_loads_are_not_compared(good: runs.Run) -> None:
    header, records = good
    busier = [runs.measured(r, arrivals=5 * r.measurement.arrivals) for r in records[3:9]]
    groups = groups_by_load([*records, *busier])
    assert [len(group) for group in groups] == [
        sum(r.learned for r in records),
        sum(r.learned for r in busier),
    ]
    root = shown((header, runs.punctual([*records, *busier])), ended=False)
    assert "At another load" in text(section(root, "landscape"))
    loads = section(root, "loads").findall(".//tbody/tr")
    assert len(loads) >= 2
    assert shown(good).find(".//section[@id='loads']") is None


def test_limits_and_threads_have_words_of_their_own(tmp_path: Path) -> None:
    slo = runs.tuned(tmp_path / "slo", objective="strict-slo", slo_p95_ms=500.0)
    root = shown(slo)
    assert text(root.find(".//h1")).startswith(("p95 latency ", "Nothing better"))
    assert "p95 limit 500" in text(section(root, "time"))
    assert "intervals over 500 ms at p95" in text(section(root, "cost"))
    assert text(section(root, "compare").findall(".//tbody/tr")[-1]).startswith("cost")
    threads = replace(slo[0], objective="least-resources"), slo[1]
    assert "cost (threads)" in text(section(shown(threads), "landscape"))


def test_the_command_starts_the_same_run_again(good: runs.Run) -> None:
    header: Header = replace(
        good[0],
        objective="strict-slo",
        slo_p95_ms=50.0,
        metrics_url="http://localhost:8002/metrics",
        limits={
            "max_changes_per_hour": 4,
            "change_window": ["Mon-Fri 22:00-06:00"],
            "forbid": ["max_batch_size"],
        },
    )
    arguments = shlex.split(next_steps.command(header))
    assert arguments[0] == "rrl-tune"
    options = parse(TuneOptions, arguments[1:])
    assert options == as_before(TuneOptions(resume=None), header)
    secret = replace(header, metrics_url="http://me:secret@localhost:8002/metrics")
    assert next_steps.command(secret) == next_steps.command(header)
    embedded = replace(
        good[0], target="embedded", load={"rate": 40.0, "model": None, "arrivals": "wiki", "sizes": "fixed:8"}
    )
    options = parse(TuneOptions, shlex.split(next_steps.command(embedded))[1:])
    assert (options.target, options.rate, options.arrivals, options.sizes) == (None, 40.0, "wiki", "fixed:8")


def test_the_configuration_is_a_diff_with_how_to_apply_it(good: runs.Run, tmp_path: Path) -> None:
    header, records = good
    summary = summarise(header, records)
    write_views(tmp_path, header, records, summary, KeptConfiguration(runs.FOUND), ended=True)
    html = (tmp_path / "report.html").read_text()
    diff = (tmp_path / "best_config.diff").read_text()
    root = page.page(RunView(header, records, summary, True), diff, [p.name for p in tmp_path.iterdir()])
    pre = text(section(root, "configuration").find(".//pre"))
    assert pre == re.sub(r"\s+", " ", diff).strip()
    assert [text(e) for e in section(root, "configuration").iter("del")] == [
        re.sub(r"\s+", " ", line).strip() for line in diff.splitlines() if re.match(r"-[^-]", line)
    ]
    assert "cp best_config.pbtxt MODEL_REPOSITORY/minilm/config.pbtxt" in html
    assert 'InferenceServerClient("localhost:8001")' in html
    links = [a.get("href", "") for a in section(root, "files").iter("a")]
    assert {"intervals.csv", "reference_table.yaml", "best_config.pbtxt", "best_config.diff"} <= set(links)
    assert all((tmp_path / link).exists() for link in links)


def test_an_application_of_ray_serve_is_deployed_again(good: runs.Run, tmp_path: Path) -> None:
    class Application:
        def config_files(self, configuration: Mapping[str, int]) -> Mapping[str, str]:
            return {"serve_config.yaml": "applications: []\n"}

    header = replace(good[0], target="ray://localhost:8265", found_config_pbtxt="applications: [{}]\n")
    summary = summarise(header, good[1])
    write_views(tmp_path, header, good[1], summary, Application(), ended=True)
    html = (tmp_path / "report.html").read_text()
    assert "serve deploy --address http://localhost:8265 best_serve_config.yaml" in html
    assert "+++ best/serve_config.yaml" in (tmp_path / "best_config.diff").read_text()
    assert 'href="best_serve_config.yaml"' in html


def test_text_from_outside_is_escaped(good: runs.Run) -> None:
    hostile = "</script><script>alert(1)</script>\"'<img src=x onerror=alert(2)>&amp;\x00\x1b\ud800"
    header, records = good
    records = [replace(r, reason=hostile, verdict=hostile) for r in records]
    html = document(shown((replace(header, model=hostile, agent=hostile), records), diff=f"-{hostile}\n"))
    assert "<script>alert" not in html
    assert "<img" not in html
    assert html.count("</script>") == html.count("<script") == 2
    html.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", html)


def test_elements_are_written_as_html() -> None:
    assert document(
        tag("p", "a < b", tag("br"), ["c", None, tag("b", "&", hidden=True)], class_="x y", data_n=1.50)
    ) == ('<!doctype html>\n<p class="x y" data-n="1.5">a &lt; b<br>c<b hidden="">&amp;</b></p>\n')


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


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "–"),
        (0.0, "0.00"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.94, "99.9"),
        (99.96, "100"),
        (12345.6, "12,346"),
    ],
)
def test_latencies_have_about_three_digits(value: float, shown: str) -> None:
    assert ms(value) == shown


def test_ratios_durations_and_ticks_are_round() -> None:
    assert (times(1.584), times(33.2), times(math.inf)) == ("1.58x", "33x", "–")
    assert lower_or_higher(30, 15) == "2.00x lower"
    assert lower_or_higher(15, 30) == "2.00x higher"
    assert lower_or_higher(15, 15.001) == "the same"
    assert lower_or_higher(15, math.nan) == "–"
    assert [duration(s) for s in (5, 89.6, 300, 7500)] == ["5 s", "90 s", "5.0 min", "2 h 05 min"]
    assert log_ticks(8, 120) == [10, 20, 30, 50, 100]
    assert log_ticks(0.9, 2e6) == [1, 10, 100, 1e3, 1e4, 1e5, 1e6]
    assert linear_ticks(87, 3) == [0, 50]
    assert linear_ticks(0, 3) == [0]
    assert minute_ticks(4.8) == [(k, f"{k} min") for k in range(5)]
    assert [label for _, label in minute_ticks(0.9)] == ["0 s", "20 s", "40 s"]
    assert [label for _, label in minute_ticks(600)][:2] == ["0 h", "2 h"]
