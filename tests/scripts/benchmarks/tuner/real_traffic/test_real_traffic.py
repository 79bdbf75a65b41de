"""Arrivals in bursts, the neighbour's schedule, and how a run under real traffic is judged."""

from __future__ import annotations

import itertools
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrl.agent import Transition
from rrl.measurement import Measurement
from rrl.records import Record
from scripts.benchmarks.tuner.real_traffic import run_and_sweep
from scripts.benchmarks.tuner.real_traffic.burst_arrivals import arrivals_named, moments_of, variation_of_gaps
from scripts.benchmarks.tuner.real_traffic.report import (
    GuardActions,
    TrafficCase,
    TrafficRow,
    result,
)
from scripts.benchmarks.tuner.real_traffic.run_and_sweep import (
    TrafficOptions,
    grid,
    measured,
    rule_of_thumb,
    windows,
)
from scripts.serving.client_log import Requests
from scripts.serving.neighbour import LENGTHS_S, SHARES, Spell, schedule, take
from scripts.serving.replayed import write_moments
from serving_adapter.load.arrivals import read_trace

ROW = TrafficRow(
    model="minilm", agent="guided", arrivals="on-off", load="0.4", seed=0, rate_per_s=45.0, variation=13.0,
    start="instances=1", left="instances=2", best="instances=2", best_ms=45.0, ratio=1.0, ratio_error=0.02,
    start_ratio=9.0, rule_ratio=1.0, changes=4, rollbacks=0, aborted=0, worsened=0, requests=9000, failed=0,
    latency_s=400.0, untouched_s=800.0, late_ms=3.0, began_at="", commit="",
)  # fmt: skip
START = {"instances": 1, "intra_op_threads": 2, "max_batch_size": 1, "max_queue_delay_us": 0}


@pytest.mark.parametrize("name", ["gaps:2", "gaps:6", "batches:3", "batches:15"])
def test_gaps_have_the_variation_and_arrivals_the_rate_that_were_asked_for(name: str) -> None:
    moments_s = moments_of(arrivals_named(name, 50.0), seed=1, length_s=40_000.0)
    assert len(moments_s) / 40_000.0 == pytest.approx(50.0, rel=0.03)
    assert variation_of_gaps(moments_s) == pytest.approx(float(name.split(":")[1]), rel=0.06)
    assert (np.diff(moments_s) >= 0).all()


def test_the_same_seed_gives_the_same_moments_and_another_one_others() -> None:
    first, again, other = (moments_of(arrivals_named("batches:5", 20.0), seed, 60.0) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


def test_a_trace_that_is_too_short_begins_again(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("t_s\n5\n6\n9\n")  # At 1/s these are moments 0, 0.5 and 2.
    moments_s = moments_of(arrivals_named(str(trace), 1.0), 0, 8.0)
    assert moments_s.tolist() == [0.0, 0.5, 2.0, 3.0, 3.5, 5.0, 6.0, 6.5]


@pytest.mark.parametrize("name", ["gaps", "gaps:x", "batches:0.5", "bursty"])
def test_arrivals_that_cannot_be_read_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        arrivals_named(name, 1.0)


def test_written_moments_are_replayed_at_their_own_speed(tmp_path: Path) -> None:
    moments_s = 7.0 + np.array([0.0, 0.25, 0.25, 3.0])
    rate_per_s = write_moments(tmp_path / "moments.csv", moments_s)
    replayed_s = next(read_trace(tmp_path / "moments.csv", rate_per_s).times_s(np.random.default_rng(0)))
    assert replayed_s == pytest.approx(moments_s - 7.0)


def test_windows_spread_over_the_run_and_begin_with_an_arrival() -> None:
    moments_s = np.concatenate([np.arange(0.0, 40.0), np.arange(80.0, 100.0)])
    parts = windows(moments_s, 10.0, 3)
    assert [(part[0], part[-1]) for part in parts] == [(0.0, 9.0), (80.0, 89.0), (89.0, 98.0)]
    assert [len(part) for part in windows(np.array([0.0, 50.0, 51.0]), 10.0, 1)] == [2]


def test_the_grid_holds_the_start_the_rule_of_thumb_and_what_was_left_once() -> None:
    left = START | {"max_queue_delay_us": 5000}
    configurations = grid(START, left)
    assert all(c in configurations for c in (START, left, rule_of_thumb(START)))
    assert all(a != b for a, b in itertools.combinations(configurations, 2))


def test_what_is_judged_is_in_every_round_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(self: Any, number: int, moments_s: np.ndarray, folder: Path) -> Requests:
        return Requests(moments_s, np.full(len(moments_s), 10.0 + number), np.zeros(len(moments_s), bool))

    monkeypatch.setattr(run_and_sweep._Sweep, "_seen", seen)
    configurations = [START | {"max_batch_size": size} for size in range(1, 7)]
    sweep: Any = run_and_sweep._Sweep(None, configurations, lambda from_s: nullcontext(), tmp_path)  # type: ignore[arg-type]
    turns = sweep.in_turns([np.array([0.0, 1.0])], 2, (configurations[5], configurations[4]), 2)
    assert {number: len(parts) for number, parts in turns.parts.items()} == {
        0: 2,
        1: 2,
        2: 1,
        3: 1,
        4: 2,
        5: 2,
    }


def test_the_neighbour_works_and_pauses_by_turns_within_its_bounds() -> None:
    spells = list(itertools.islice(schedule(seed=2), 400))
    assert all(LENGTHS_S[0] <= spell.length_s <= LENGTHS_S[1] for spell in spells)
    works = [spell.share > 0 for spell in spells]
    assert all(a != b for a, b in itertools.pairwise(works))
    shares = [spell.share for spell in spells if spell.share]
    assert SHARES[0] <= min(shares) < 0.35
    assert 0.95 < max(shares) <= SHARES[1]


def test_the_schedule_can_begin_anywhere_in_it() -> None:
    whole = list(itertools.islice(schedule(seed=2), 4))
    later = list(itertools.islice(schedule(seed=2, from_s=whole[0].length_s + 2.0), 3))
    assert later[0] == pytest.approx(Spell(whole[1].length_s - 2.0, whole[1].share))
    assert later[1:] == whole[2:]


def test_the_neighbour_takes_its_share_of_the_time_and_sleeps_the_rest() -> None:
    slept_s, now_s = [], 0.0

    def now() -> float:
        nonlocal now_s
        now_s += 0.0001  # A glance at the clock is what it works with.
        return now_s

    def sleep(length_s: float) -> None:
        nonlocal now_s
        now_s += length_s
        slept_s.append(length_s)

    take(iter([Spell(2.0, 0.6), Spell(3.0, 0.0)]), now, sleep)
    assert now_s == pytest.approx(5.0, abs=0.01)
    assert sum(slept_s) == pytest.approx(0.4 * 2.0 + 3.0, abs=0.05)


def interval(cost: float, arrivals: int = 200, rollback: bool = False, aborted: str = "") -> Record:
    zero = np.zeros(1)
    measurement = Measurement(5.0, arrivals, arrivals, 0, aborted=aborted)
    transition = Transition(zero, zero.astype(np.int64), cost, zero, measurement)
    return Record(
        kind="tune", number=0, configuration={}, transition=transition, decision="agent", reason="",
        verdict="", rollback=rollback, learned=True, wall_time_s=0.0,
    )  # fmt: skip


def test_a_guards_action_made_it_worse_if_the_next_interval_of_like_load_costs_more() -> None:
    rolled_back, aborted = interval(20.0, rollback=True), interval(20.0, aborted="the queue runs away")
    assert GuardActions.of([rolled_back, interval(23.0)]) == (1, 0, 1)
    assert GuardActions.of([aborted, interval(23.0)]) == (0, 1, 1)
    assert GuardActions.of([rolled_back, interval(21.0)]) == (1, 0, 0)
    assert GuardActions.of([rolled_back, interval(23.0, arrivals=300)]) == (1, 0, 0)
    assert GuardActions.of([interval(20.0), interval(23.0)]) == (0, 0, 0)
    silent = interval(20.0, arrivals=0)
    assert GuardActions.of([rolled_back, silent, interval(23.0)]) == (1, 0, 1)


def test_a_row_tells_how_sure_its_ratio_is() -> None:
    assert "left / best 1.000 ± 0.020 (45.0 ms; start 9.00, rule 1.00)" in str(ROW)


def test_nine_in_ten_runs_must_be_within_a_tenth_of_the_best_with_few_changes_and_cheaper() -> None:
    good, far = [ROW] * 9, replace(ROW, ratio=1.11)
    assert result([*good, far])["value"] == 0.9
    assert result([*good, far])["holds"]
    assert not result([*good, far, far])["holds"]
    assert not result([replace(ROW, changes=11)])["holds"]
    assert not result([replace(ROW, latency_s=900.0)])["holds"]
    assert not result([])["holds"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[TrafficCase]:
    """The cases that were run, each in no time."""
    cases: list[TrafficCase] = []

    def row(case: TrafficCase, *_: object) -> TrafficRow:
        cases.append(case)
        return replace(ROW, **case._asdict())

    monkeypatch.setattr(run_and_sweep, "_row", row)
    monkeypatch.setattr(run_and_sweep, "_capacity_per_s", lambda model: 100.0)
    return cases


def rows_of(name: str, options: TrafficOptions) -> list[TrafficRow]:
    return measured(name, options, ["poisson"], lambda seed: lambda from_s: nullcontext())


def test_what_a_file_has_is_not_run_again(tmp_path: Path, made: list[TrafficCase]) -> None:
    short = TrafficOptions(loads=(0.4,), intervals=16, out=tmp_path / "new" / "rows.jsonl")
    first = rows_of("bursts", short)
    again = rows_of("bursts", replace(short, seeds=(0, 1)))
    assert again[0] == first[0]
    assert made == [TrafficCase("minilm", "guided", "poisson", "0.4", seed) for seed in range(2)]


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("bursts", {"intervals": None}, "intervals=16, and those wanted have intervals=50"),
        ("bursts", {"window_s": 12.0}, "window_s=25.0, and those wanted have window_s=12.0"),
        ("bursts", {"windows": 2}, "windows=3, and those wanted have windows=2"),
        ("bursts", {"repeats": 3}, "repeats=2, and those wanted have repeats=3"),
        ("neighbour", {}, 'benchmark="bursts", and those wanted have benchmark="neighbour"'),
    ],
)
def test_a_file_of_runs_of_other_lengths_or_of_the_other_benchmark_is_refused(
    tmp_path: Path, made: list[TrafficCase], name: str, changed: dict[str, Any], told: str
) -> None:
    short = TrafficOptions(loads=(0.4,), intervals=16, out=tmp_path / "rows.jsonl")
    rows_of("bursts", short)
    with pytest.raises(ValueError, match=re.escape(told)):
        rows_of(name, replace(short, **changed))
    assert len(made) == 1
