"""What the picture of a run says, read from its text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from rrl.space import ConfigurationSpace, Knob
from rrl.views import figure as pictures
from rrl.views.figure import draw
from rrl.views.html_report.numbers import lower_or_higher, ms
from rrl.views.summary import summarise
from tests.support.runs import simulated_runs as runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return runs.tuned(tmp_path_factory.mktemp("run"))


def texts(folder: Path, run: runs.Run) -> list[str]:
    path = folder / "latency.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(*run, summarise(*run), path)
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text(encoding="utf-8"))


def figure_of(folder: Path, run: runs.Run, monkeypatch: pytest.MonkeyPatch) -> Figure:
    """The picture as it was drawn."""
    drawn = pictures.blank_figure(1, 1)

    def of_that_size(width: float, height: float) -> Figure:
        drawn.set_size_inches(width, height)
        return drawn

    monkeypatch.setattr(pictures, "blank_figure", of_that_size)
    draw(*run, summarise(*run), folder / "latency.png")
    return drawn


def test_a_start_that_answered_nothing_has_no_latency_in_the_title(run: runs.Run, tmp_path: Path) -> None:
    said = texts(tmp_path, runs.unanswered(run))
    assert "Mean latency not measured: nothing better than the start is known" in said
    assert not [text for text in said if "nan" in text]
    assert "mean at the start" not in said


def test_a_load_below_a_request_a_second_is_told(run: runs.Run, tmp_path: Path) -> None:
    header, records = run
    rare = [runs.measured(record, arrivals=1, completions=1) for record in records[:3]]
    said = texts(tmp_path, (header, rare))
    assert any(text.startswith("minilm at 0.25 requests/s, ") for text in said)


def test_the_dollars_in_a_models_name_are_no_formula(run: runs.Run, tmp_path: Path) -> None:
    header, records = run
    start = header.space.number(header.start)
    space = ConfigurationSpace(tuple(Knob(f"a$^$.{knob.name}", knob.values) for knob in header.space.knobs))
    header = replace(header, space=space, start=space.configuration(start), found=space.configuration(start))
    records = [replace(r, configuration=space.configuration(r.number)) for r in records]
    assert any("a$^$ " in text for text in texts(tmp_path, (header, records)))


def test_the_title_holds_the_best_against_the_start_at_the_same_arrivals(
    run: runs.Run, tmp_path: Path
) -> None:
    header, records = run
    unvalidated = header, [r for r in records if r.kind != "validation"]
    summary = summarise(*unvalidated)
    assert summary.found_better
    before, after = summary.start_beside_best_ms, summary.best.mean_ms
    assert ms(before) != ms(summary.start.mean_ms)
    said = texts(tmp_path, unvalidated)
    change = lower_or_higher(before, after)
    assert f"Mean latency {ms(before)} → {ms(after)} ms: {change}, not validated" in said
    assert any("the start as expected there" in text for text in said)


def test_intervals_without_a_measurement_keep_their_time_and_are_named(
    run: runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = runs.troubled(run)
    assert "nothing measured" in texts(tmp_path, away)
    assert "nothing measured" not in texts(tmp_path, run)
    (axes, *_) = figure_of(tmp_path, away, monkeypatch).axes
    (means,) = (line for line in axes.get_lines() if line.get_label() == "mean")
    assert np.flatnonzero(np.isnan(means.get_ydata())).tolist() == [5, 6]


def test_a_target_without_percentiles_has_no_p95_in_the_legend(run: runs.Run, tmp_path: Path) -> None:
    assert "p95" in texts(tmp_path, run)
    assert "p95" not in texts(tmp_path, runs.without_percentiles(run))


def test_long_names_of_models_stay_inside_the_picture(
    run: runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, records = run
    start = header.space.number(header.start)
    long = "resnet50-image-classifier-v2" * 4
    space = ConfigurationSpace(tuple(Knob(f"{long}.{knob.name}", knob.values) for knob in header.space.knobs))
    configuration = space.configuration(start)
    header = replace(header, model=long, space=space, start=configuration, found=configuration)
    records = [replace(r, configuration=space.configuration(r.number)) for r in records]
    figure = figure_of(tmp_path, (header, records), monkeypatch)
    names = [t for t in figure.findobj(Text) if re.search("[a-z]", t.get_text())]  # no ticks
    boxes = {t.get_text(): t.get_window_extent() for t in names}
    assert any("resnet50" in text for text in boxes)
    assert [text for text, box in boxes.items() if box.x0 < 0 or box.x1 > figure.bbox.width] == []


def test_the_names_of_the_rows_keep_off_the_ticks_of_a_high_load(
    run: runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, records = run
    busy = [runs.measured(r, arrivals=1_000_000, completions=1_000_000) for r in records]
    load = figure_of(tmp_path, (header, busy), monkeypatch).axes[1]
    assert load.get_ylabel() == "load\n(req/s)"
    ticks = [tick.get_window_extent().x0 for tick in load.get_yticklabels()]
    assert load.yaxis.label.get_window_extent().x1 < min(ticks)


def test_times_are_in_the_unit_that_suits_the_length_of_the_run(run: runs.Run, tmp_path: Path) -> None:
    header, records = run
    assert {"0 s", "20 s", "since the first interval began"} <= set(texts(tmp_path, run))
    days = [replace(r, wall_time_s=runs.BEGUN_S + 4 * 3600 * i) for i, r in enumerate(records)]
    assert "24 h" in texts(tmp_path, (replace(header, interval_s=3600.0), days))


def test_the_limit_is_drawn_where_there_is_one(run: runs.Run, tmp_path: Path) -> None:
    header, records = run
    assert "p95 limit" not in texts(tmp_path, run)
    assert "p95 limit" in texts(tmp_path, (replace(header, slo_p95_ms=60.0), records))


def test_failed_requests_are_marked_and_a_change_is_named_only_where_there_was_one(
    run: runs.Run, tmp_path: Path
) -> None:
    header, records = run
    assert "requests failed" in texts(tmp_path, runs.troubled(run))
    said = texts(tmp_path, (header, records[:3]))
    assert "requests failed" not in said
    assert "configuration changed" not in said


def test_a_long_run_is_drawn_as_medians_and_their_reach(
    run: runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = runs.repeated(run, 402)
    assert "reach of the mean" in texts(tmp_path, long)
    assert "reach of the mean" not in texts(tmp_path, run)
    (axes, *_) = figure_of(tmp_path, long, monkeypatch).axes
    (means,) = (line for line in axes.get_lines() if line.get_label() == "mean")
    assert np.asarray(means.get_ydata()).size == 201


def test_a_run_without_an_interval_has_a_picture_that_says_so_alone(
    run: runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = texts(tmp_path, (run[0], []))
    assert said == ["Nothing was measured", "minilm, agent sweep: no interval with requests yet"]
    assert figure_of(tmp_path, (run[0], []), monkeypatch).axes == []


def test_requests_that_came_before_the_run_and_hang_are_drawn_without_a_warning(
    run: runs.Run, tmp_path: Path
) -> None:
    header, records = runs.unanswered(run)
    hanging = [runs.measured(record, arrivals=0, backlog=4) for record in records]
    assert any("not measured" in text for text in texts(tmp_path, (header, hanging)))


def test_a_configuration_of_many_knobs_is_named_in_a_few_short_lines(run: runs.Run, tmp_path: Path) -> None:
    said = texts(tmp_path, runs.with_ten_more_knobs(run))
    named = [text for text in said if " · " in text or text.startswith("group_timeout_")]
    assert any(text.endswith(" …") for text in named)
    assert max(map(len, named)) <= pictures.MAX_LETTERS_OF_LINE + 2
