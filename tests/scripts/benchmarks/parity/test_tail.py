"""The tail's benchmark: its rows, what counts as a gain, and that it goes on where it was stopped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.benchmarks.parity.tail import Options, measured_tables, result
from scripts.benchmarks.parity.tail_measurement import Measured, measure
from scripts.benchmarks.parity.tail_report import (
    Series,
    as_markdown,
    beats_hedging,
    gain,
    nearest_to_the_paper,
    variations,
)
from scripts.benchmarks.parity.tail_rows import (
    CLUSTERS,
    EQUAL,
    HEDGING,
    LOADS,
    PAPER_TAILS,
    PARITY,
    TABLES,
    ServerAndLoad,
    backups,
    headline,
    rates,
    tenants,
)

TAILS_MS = {EQUAL: 140.0, PARITY: 75.0, HEDGING: 110.0}


class PlayedRuns:
    """Gives every mode a tail of its own, and counts what it is asked for."""

    def __init__(self, tails_ms: dict[str, float] = TAILS_MS, late_ms: Sequence[float] = ()) -> None:
        self.tails_ms = tails_ms
        self.late_ms = list(late_ms)  # of the first runs
        self.asked: list[tuple[ServerAndLoad, int, int]] = []

    def __call__(self, row: ServerAndLoad, requests: int, seed: int) -> Measured:
        self.asked.append((row, requests, seed))
        late_ms = self.late_ms.pop(0) if self.late_ms else 0.1
        return Measured(50.0, 60.0, self.tails_ms.get(row.mode, 100.0) + seed, 0, 0.0, late_ms)


def table(**tails_ms: float) -> list[Series]:
    modes = {"equal": EQUAL, "parity": PARITY, "hedging": HEDGING}
    return [
        Series(ServerAndLoad("row", modes[mode]), [Measured(50.0, 60.0, tail_ms, 0, 0.0, 0.1)])
        for mode, tail_ms in tails_ms.items()
    ]


def test_a_gain_is_the_ratio_of_the_gaps_between_tail_and_median() -> None:
    rows = table(equal=140.0, parity=80.0)
    found = gain(rows[1], rows)
    assert found is not None
    assert found.ratio == found.least == found.greatest == pytest.approx(90 / 30)
    assert found.lower == pytest.approx(60 / 140)
    assert gain(rows[0], rows) is None


def test_parity_has_to_gain_more_than_hedging() -> None:
    assert beats_hedging(table(equal=140.0, parity=80.0, hedging=110.0))
    assert not beats_hedging(table(equal=140.0, parity=80.0, hedging=79.0))


@pytest.mark.parametrize(("hedging_ms", "beaten"), [(110.0, True), (70.0, False)])
def test_it_is_compared_with_hedging_of_other_labels_where_none_has_its_own(
    hedging_ms: float, beaten: bool
) -> None:
    rows = measured_tables(Options(tables=("mode",), runs=1), PlayedRuns(TAILS_MS | {HEDGING: hedging_ms}))
    assert beats_hedging(rows["mode"]) is beaten


def test_every_table_with_hedging_has_a_parm_to_compare() -> None:
    for make_rows, _ in TABLES.values():
        rows = make_rows()
        labels = {row.label for row in rows if row.is_parm}
        hedging = {row.label for row in rows if row.mode == HEDGING}
        assert hedging <= labels or len(labels) == 1


def test_backups_and_parm_may_lend_workers_alike() -> None:
    rows = Counter((row.load, row.flags) for row in backups())
    assert len(rows) == 2 * len(LOADS)
    assert set(rows.values()) == {3}


def test_the_calibration_has_seeds_of_its_own() -> None:
    run = PlayedRuns()
    measured_tables(Options(tables=("calibration", "headline"), runs=2), run)
    seeds = {
        calibrates: {seed for row, _, seed in run.asked if ("median" in row.label) is calibrates}
        for calibrates in (True, False)
    }
    assert not seeds[True] & seeds[False]


def test_the_verdict_asks_for_the_papers_ratio_on_both_clusters() -> None:
    good, bad = PlayedRuns(), PlayedRuns(TAILS_MS | {PARITY: 85.0})
    assert result(measured_tables(Options(), good))["holds"] is True
    assert result(measured_tables(Options(), bad))["holds"] is False
    assert result(measured_tables(Options(tables=("k",)), good))["holds"] is None


def test_headline_rows_have_100000_requests_and_others_30000() -> None:
    run = PlayedRuns()
    measured_tables(Options(tables=("rate", "k"), runs=1), run)
    sizes = Counter(requests for _, requests, _ in run.asked)
    assert set(sizes) == {100_000, 30_000}
    assert sizes[100_000] == len(headline())
    assert {row.load for row, requests, _ in run.asked if requests == 100_000} == {0.6}


def test_rows_of_equal_settings_share_their_runs() -> None:
    run = PlayedRuns()
    measured_tables(Options(tables=("headline", "rate"), runs=2), run)
    assert len(run.asked) == 2 * len(rates())


def test_a_table_is_run_in_turns() -> None:
    run = PlayedRuns()
    measured_tables(Options(clusters=("gpu",), runs=2), run)
    assert [(row.mode, seed) for row, _, seed in run.asked] == [
        (mode, seed) for seed in range(2) for mode in (EQUAL, PARITY, HEDGING)
    ]


def test_a_benchmark_that_was_stopped_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "tail.jsonl"
    first = PlayedRuns()
    before = measured_tables(Options(out=out, clusters=("gpu",)), first)
    lines = out.read_text().splitlines(keepends=True)
    assert len(lines) == len(first.asked) == 9
    out.write_text("".join(lines[:-2]) + lines[-2][:-20])  # the last line but one is torn, the last is lost
    again = PlayedRuns()
    after = measured_tables(Options(out=out, clusters=("gpu",)), again)
    assert again.asked == first.asked[-2:]
    third = PlayedRuns()
    measured_tables(Options(out=out, clusters=("gpu",)), third)
    assert not third.asked
    assert as_markdown("t", after["headline"]) == as_markdown("t", before["headline"])


def test_a_run_that_something_else_disturbed_is_made_again(tmp_path: Path) -> None:
    out = tmp_path / "tail.jsonl"
    run = PlayedRuns(late_ms=[40.0])
    measured_tables(Options(out=out, clusters=("gpu",), runs=1), run)
    assert [row.mode for row, _, _ in run.asked] == [EQUAL, EQUAL, PARITY, HEDGING]
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(kept) == 3
    kept[1]["measured"]["late_ms"] = 40.0
    out.write_text("".join(json.dumps(each) + "\n" for each in kept))
    again = PlayedRuns()
    measured_tables(Options(out=out, clusters=("gpu",), runs=1), again)
    assert [row.mode for row, _, _ in again.asked] == [PARITY]


def test_a_machine_that_is_never_quiet_is_told() -> None:
    with pytest.raises(RuntimeError, match="let nothing else run on this machine"):
        measured_tables(Options(clusters=("gpu",), runs=1), PlayedRuns(late_ms=[40.0] * 3))


def test_fig_10_is_drawn_for_each_cluster(tmp_path: Path) -> None:
    out = tmp_path / "tail.jsonl"
    measured_tables(Options(tables=("rate",), loads=(0.4, 0.6), runs=1, out=out), PlayedRuns())
    assert {path.name for path in tmp_path.glob("*.png")} == {"tail-gpu.png", "tail-cpu.png"}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_made(name: str) -> None:
    run = PlayedRuns()
    tables = measured_tables(Options(tables=(name,), runs=1), run)
    assert len(tables[name]) == len(TABLES[name][0]())
    for row, _, _ in run.asked:
        assert 30 < row.rate_per_s < 600


def test_light_tenants_are_on_a_ninth_of_the_instances_and_below_5_percent_of_their_capacity() -> None:
    for cluster, workers in CLUSTERS.items():
        instances = 3 * workers // 2
        (fault,) = tenants(cluster)
        assert fault["workers"] == instances / 9
        in_all_per_s = fault["workers"] * fault["queries_per_s"]
        assert 0.04 < in_all_per_s / (instances / 0.05) < 0.05


def test_the_law_is_chosen_by_equal_resources_alone() -> None:
    rows = [row for row in TABLES["calibration"][0]() if row.cluster == "gpu"]
    assert {row.mode for row in rows} == {EQUAL}
    middle_ms = 50.0 * sum(PAPER_TAILS["gpu"]) / 2
    measured = [
        Series(row, [Measured(50.0, 60.0, middle_ms + 10.0 * (i - 3), 0, 0.0, 0.1)])
        for i, row in enumerate(rows)
    ]
    assert nearest_to_the_paper(measured) == {"gpu": rows[3].label}


def test_variation_is_the_greatest_tail_over_the_least() -> None:
    rows = [
        Series(ServerAndLoad(f"{load:.0%}", PARITY, load=load), [Measured(50.0, 60.0, tail_ms, 0, 0.0, 0.1)])
        for load, tail_ms in ((0.4, 80.0), (0.6, 100.0), (0.8, 110.0))
    ]
    assert variations(rows) == {PARITY: pytest.approx(0.375)}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tables": ("rates",)}, "--tables must be among headline, rate, .*, got rates"),
        ({"clusters": ("tpu",)}, "--clusters must be among gpu, cpu, got tpu"),
        ({"loads": (0.9,)}, "--loads must be among 0.4, .*, got 0.9"),
        ({"tables": ()}, "got none"),
        ({"runs": 0}, "--runs must be at least 1"),
    ],
)
def test_wrong_options_are_one_sentence(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Options(**options)


def test_a_run_is_of_a_real_server() -> None:
    (row,) = [row for row in headline() if (row.cluster, row.mode) == ("gpu", PARITY)]
    measured = measure(row, 100, seed=0)
    assert measured.failed == 0
    assert measured.p50_ms >= 50.0
