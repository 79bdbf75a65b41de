"""The figures of a comparison, on tables made by hand."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console
from scipy.stats import trim_mean
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from baselines.comparison import (
    ComparisonSettings,
    plots,
    read_decisions,
    tables,
    tensorboard,
    write_decisions,
)
from baselines.comparison.decisions import knob_names, labelled, run_dtype
from baselines.comparison.summary import (
    AgentSummary,
    bootstrap_interval,
    decisions_until_within,
    excess_multiples,
    figures,
    interquartile_mean,
    running_median,
    summarise,
    write_multiples,
    write_summary,
)
from rrl.views.figure_style import spread

KNOBS = ("instances", "intra_op_threads")


def run(agent: str, machine: str, seed: int, ratios: np.ndarray, oracle_ms: float = 100.0) -> np.ndarray:
    """A run whose expected costs are so many times the oracle's."""
    rows = np.zeros(len(ratios), dtype=run_dtype(KNOBS))
    rows["decision"] = np.arange(len(ratios))
    rows["arrival_rate_per_s"] = 14.0
    rows["instances"], rows["intra_op_threads"] = 2, 3
    rows["oracle_ms"], rows["best_p95_ms"] = oracle_ms, 2 * oracle_ms
    rows["expected_ms"] = rows["cost_ms"] = rows["mean_latency_ms"] = oracle_ms * np.asarray(ratios)
    rows["p95_ms"] = rows["expected_p95_ms"] = 2 * oracle_ms * np.asarray(ratios)
    rows["decide_ms"] = np.arange(len(ratios))
    return labelled(rows, agent, machine, seed, 16)


def by_name(rows: list[AgentSummary], agent: str) -> dict[str, AgentSummary]:
    return {row.figure: row for row in rows if row.agent == agent}


def test_the_running_median_is_centred_and_cut_off_at_the_ends() -> None:
    np.testing.assert_array_equal(running_median(np.array([9.0, 1, 5, 2, 8, 7]), 2), [5, 3.5, 5, 5, 6, 7])


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.0] * 10, 0),
        ([3.0] * 4 + [1.05] * 10, 4),
        ([3.0] + [1.05] * 10, 1),
        ([3.0] * 4 + [1.05] * 6 + [3.0, 3.0] + [1.05] * 6, 4),  # two explorations in five
        ([3.0] * 4 + [1.05] * 6 + [3.0] * 3 + [1.05] * 6, 13),  # a relapse
        ([1.0] * 9 + [3.0], 0),  # one exploration at the end
        ([1.0] * 8 + [3.0] * 3, math.inf),
        ([2.0] * 10, math.inf),
    ],
)
def test_decisions_until_within_10_percent_for_good(ratios: list[float], expected: float) -> None:
    assert decisions_until_within(np.array(ratios)) == expected


def test_a_short_absence_does_not_count_with_a_long_median() -> None:
    ratios = np.array([3.0] * 4 + [1.05] * 30 + [1.3] * 8 + [1.05] * 30)
    assert decisions_until_within(ratios) == 42
    assert decisions_until_within(ratios, reach=10) == 4


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 20])
def test_the_interquartile_mean_is_the_trimmed_mean(count: int) -> None:
    values = np.random.default_rng(count).exponential(size=count)
    assert interquartile_mean(values) == pytest.approx(trim_mean(values, 0.25))


def test_the_interval_covers_the_mean_of_the_middle_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        low, high = bootstrap_interval(rng.normal(size=(20, 2)), rng, resamples=400)
        covered += low <= 0 <= high
    assert 0.9 <= covered / 200 <= 0.98


def test_the_interval_of_one_run_is_a_point_and_of_runs_that_fail_is_infinite() -> None:
    rng = np.random.default_rng(0)
    assert bootstrap_interval(np.array([[3.0]]), rng) == (3.0, 3.0)
    assert bootstrap_interval(np.full((4, 2), math.inf), rng) == (math.inf, math.inf)
    low, high = bootstrap_interval(np.array([[1.0], [1.0], [1.0], [math.inf]]), rng)
    assert (low, high) == (1.0, math.inf)


def test_machines_are_drawn_too() -> None:
    """Seeds that agree within each machine say little where machines differ."""
    values = np.repeat([[1.0], [2.0], [3.0], [4.0]], 10, axis=1)
    low, high = bootstrap_interval(values, np.random.default_rng(0))
    assert high - low > 1.0


def test_the_figures_of_a_run() -> None:
    ratios = np.array([5.0] * 10 + [1.2] * 30)
    table = np.concatenate([run("a", "m", 0, ratios), run("oracle", "m", 0, np.ones(40))])
    own = by_name(summarise(table, figures(slo=True, slowdown=None)), "a")
    assert own["ratio_after_30"].iqm == pytest.approx(1.2)
    assert own["ratio_whole_run"].iqm == pytest.approx((50 + 36) / 40)
    assert own["excess"].iqm == pytest.approx(100 * (40 + 6))
    assert own["excess"].unit == "ms summed over intervals"
    assert own["share_got_there"].iqm == 0
    assert own["decisions_until_10_percent"].iqm == math.inf
    assert own["share_p95_over_twice_best"].iqm == pytest.approx(0.25)
    assert own["share_slo_violated"].iqm == 0
    assert own["mean_threads"].iqm == 6
    assert own["decide_median_ms"].iqm == 19.5
    assert "ratio_60_after_slowdown" not in own


def test_after_a_slow_down_sixty_decisions_are_allowed() -> None:
    ratios = np.array([1.0] * 20 + [4.0] * 60 + [1.25] * 20)
    (row,) = [
        row
        for row in summarise(run("a", "m", 0, ratios), figures(slowdown=20))
        if row.figure == "ratio_60_after_slowdown"
    ]
    assert row.iqm == pytest.approx(1.25)


def test_an_interval_without_an_answer_counts_as_slow() -> None:
    table = run("a", "m", 0, np.ones(4))
    table["p95_ms"][1] = math.nan
    assert by_name(summarise(table, figures()), "a")["share_p95_over_twice_best"].iqm == 0.25


def test_median_and_worst_are_over_machines() -> None:
    ends = {"m1": (1.0, 1.2), "m2": (1.5, 1.5), "m3": (1.0, 1.0)}
    table = np.concatenate(
        [
            run("a", machine, seed, np.full(40, ratio))
            for machine, ratios in ends.items()
            for seed, ratio in enumerate(ratios)
        ]
    )
    row = by_name(summarise(table, figures()), "a")["ratio_after_30"]
    assert row.median == pytest.approx(1.1)
    assert (row.worst, row.worst_machine) == (pytest.approx(1.5), "m2")
    assert (row.machines, row.runs) == (3, 6)
    got_there = by_name(summarise(table, figures()), "a")["share_got_there"]
    assert got_there.iqm == pytest.approx(3 / 6)
    assert (got_there.worst, got_there.worst_machine) == (0.0, "m2")


def test_the_excess_is_a_multiple_of_the_others() -> None:
    table = np.concatenate(
        [
            run(agent, machine, 0, np.full(10, 1 + excess))
            for agent, by_machine in {"a": (0.1, 0.3), "b": (0.2, 0.2), "oracle": (0.0, 0.0)}.items()
            for machine, excess in zip(("m1", "m2"), by_machine, strict=True)
        ]
    )
    pairs = {(row.agent, row.other): row for row in excess_multiples(table)}
    assert pairs["a", "b"].multiple == pytest.approx(1.0)
    assert pairs["a", "b"].median == pytest.approx(1.0)
    assert pairs["a", "b"].worst == pytest.approx(1.5)
    assert pairs["oracle", "a"].multiple == 0
    assert pairs["a", "oracle"].multiple == math.inf


def test_a_machine_without_any_excess_of_either_does_not_hide_the_others() -> None:
    excesses = {"rule": (0.0, 0.2), "best-fixed": (0.0, 0.1), "oracle": (0.0, 0.0)}
    table = np.concatenate(
        [
            run(agent, machine, 0, np.full(10, 1 + excess))
            for agent, by_machine in excesses.items()
            for machine, excess in zip(("m1", "m2"), by_machine, strict=True)
        ]
    )
    pairs = {(row.agent, row.other): row for row in excess_multiples(table)}
    assert pairs["rule", "best-fixed"].median == pytest.approx(2.0)
    assert pairs["rule", "best-fixed"].worst == pytest.approx(2.0)
    assert pairs["rule", "oracle"].worst == math.inf
    alike = excess_multiples(table[(table["machine"] == "m1") & (table["agent"] != "oracle")])
    assert all(math.isnan(row.median) and math.isnan(row.worst) for row in alike)


def test_a_table_of_decisions_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = np.concatenate([run("a", "m1", 0, np.linspace(1, 2, 7)), run("b", "m1", 3, np.ones(7))])
    table["cost_ms"][2] = math.nan
    table["slo_violated"][4] = True
    path = tmp_path / "decisions.csv"
    write_decisions(path, table)
    header = path.read_text(encoding="utf-8").splitlines()[0]
    assert header.startswith(
        "agent,machine,seed,decision,arrival_rate_per_s,instances,intra_op_threads,"
        "cost_ms,expected_ms,oracle_ms,slo_violated,decide_ms,"
    )
    again = read_decisions(path)
    assert knob_names(again) == KNOBS
    for name in table.dtype.names or ():
        if table[name].dtype.kind == "f":
            np.testing.assert_allclose(again[name], table[name], rtol=1e-8)
        else:
            np.testing.assert_array_equal(again[name], table[name])


def test_a_file_that_is_no_table_of_decisions_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "decisions.csv"
    path.write_text("agent,machine\na,m\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no table of decisions: it lacks seed, decision"):
        read_decisions(path)
    with pytest.raises(ValueError, match="cannot read"):
        read_decisions(tmp_path / "nothing.csv")


def test_the_summary_is_written_as_csv(tmp_path: Path) -> None:
    table = np.concatenate([run("a", "m", 0, np.full(40, 2.0)), run("oracle", "m", 0, np.ones(40))])
    write_summary(tmp_path / "summary.csv", summarise(table, figures()))
    write_multiples(tmp_path / "multiples.csv", excess_multiples(table))
    with (tmp_path / "summary.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["agent"], row["figure"]): row for row in csv.DictReader(file)}
    assert float(rows["a", "ratio_after_30"]["iqm"]) == 2.0
    assert rows["a", "decisions_until_10_percent"]["iqm"] == "inf"
    assert len((tmp_path / "multiples.csv").read_text(encoding="utf-8").splitlines()) == 3


def test_tensorboard_has_a_run_for_every_agent(tmp_path: Path) -> None:
    table = np.concatenate(
        [run("a", "m1", 0, np.array([3.0, 1.0])), run("a", "m2", 0, np.array([5.0, 1.0])),
         run("b/c", "m1", 0, np.ones(2)), run("b/c", "m2", 0, np.ones(2))]
    )  # fmt: skip
    tensorboard.write(tmp_path, table)
    tensorboard.write(tmp_path, table)  # instead of what was there
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b%2Fc"]
    events = EventAccumulator(str(tmp_path / "a"))
    events.Reload()
    ratios = events.Scalars("comparison/expected_by_oracle")
    assert [(event.step, event.value) for event in ratios] == [(0, 4.0), (1, 1.0)]
    assert [event.value for event in events.Scalars("comparison/cumulative_excess")] == [300.0, 300.0]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_nothing_in_the_tables_is_cut_off(width: int) -> None:
    names = ("best-fixed", "optuna-tpe", "oracle")
    runs = [run(name, f"family-{m}", 0, np.full(40, 1.0 + m)) for name in names for m in range(4)]
    console = Console(width=width, record=True, file=io.StringIO())
    shown = tables.summary_tables(summarise(np.concatenate(runs), figures()), width)
    for table in shown:
        console.print(table)
    printed = console.export_text()
    assert "…" not in printed
    assert printed.count("best-fixed") == len(shown)
    assert max(map(len, printed.splitlines())) <= width
    assert (len(shown) == 1) == (width == 200)
    assert all(word in printed for word in ("decisions", "oracle's", "excess", "threads", "p99"))


def test_pictures_are_drawn_of_any_number_of_agents_and_decisions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for agents, decisions in ((1, 1), (2, 2), (9, 120)):
        names = [f"agent-{k}" for k in range(agents)] + ["oracle"]
        table = np.concatenate(
            [
                run(name, machine, 0, 1.0 + (name != "oracle") * rng.exponential(size=decisions))
                for name in names
                for machine in ("m1", "a file of $\\frac$")
            ]
        )
        settings = ComparisonSettings(tuple(names), decisions=decisions, slo_p95_ms=300.0)
        for path in plots.draw(tmp_path, table, settings):
            assert matplotlib.image.imread(path).shape[0] > 200


def test_a_comparison_of_the_oracle_alone_has_pictures(tmp_path: Path) -> None:
    assert plots.draw(tmp_path, run("oracle", "m", 0, np.ones(5)), ComparisonSettings(("oracle",)))


def test_bins_of_decisions_cover_each_once() -> None:
    for decisions in (1, 2, 10, 400):
        edges = plots.decision_bins(decisions)
        assert edges[0] == 0
        assert edges[-1] == decisions
        assert (np.diff(edges) > 0).all()


def test_names_are_moved_apart_and_keep_their_order() -> None:
    wanted = np.array([0.3, 0.31, 0.32, 0.6, 0.9, 0.91])
    places = spread(wanted, 0.05)
    assert (np.diff(places) >= 0.05 - 1e-12).all()
    assert places[3] == 0.6
    assert places[:3].mean() == pytest.approx(wanted[:3].mean())


def test_names_stay_beside_the_axes() -> None:
    assert spread(np.array([-0.2, 0.0, 0.99, 1.4]), 0.1) == pytest.approx([0.0, 0.1, 0.9, 1.0])
    assert spread(np.full(4, 0.5), 0.5) == pytest.approx([-0.5, 0.0, 0.5, 1.0])
    assert not len(spread(np.empty(0), 0.1))
