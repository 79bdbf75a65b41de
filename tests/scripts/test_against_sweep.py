"""Agents against a sweep: what is measured in turns at the end, and what is said of each."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from scripts.kept_rows import KeptRows
from scripts.serving.against_sweep import AgainstSweep, over_the_best, window_of
from serving_adapter.load.options import LoadOptions
from tests.support.client_requests import requests

LATENCY_MS = {0: 100.0, 1: 50.0, 2: 55.0, 3: 80.0}
RUNS = {
    "guided": {"kept": 1, "numbers": [0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], "failed": 0},
    "other": {"kept": 3, "numbers": [0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3], "failed": 2},
}


class Measured:
    """Windows and runs that are known beforehand, and what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def window(self, number: int, window_s: float) -> dict[str, float]:
        self.asked.append((number, window_s))
        return {"mean_ms": LATENCY_MS[number], "failed": 0}

    def tuned(self, agent: str, seed: int) -> dict[str, object]:
        self.asked.append((agent, seed))
        return RUNS[agent]

    def against_sweep(self, file: Path | None = None, seeds: int = 2) -> AgainstSweep:
        rows = KeptRows(file, ("what",))
        return AgainstSweep(("guided", "other"), seeds, 10.0, 3, self.window, self.tuned, rows)


def test_what_an_agent_kept_is_told_over_the_best_and_how_soon_it_was_there() -> None:
    found = Measured().against_sweep().outcome(range(4), reach=1.05)
    assert found["finals"] == {"guided": 1.0, "other": 1.6}
    assert found["measurements"] == {"guided": 3, "other": 12}
    assert found["failed"] == {"guided": 0, "other": 4}
    assert found["ratio"] == pytest.approx(1 / 1.6, abs=1e-3)
    assert found["holds"]


def test_configurations_alike_are_as_good_as_the_best_whichever_was_lucky() -> None:
    rng = np.random.default_rng(0)
    ratios = [over_the_best({n: list(rng.normal(40, 4, 3)) for n in range(20)}) for _ in range(200)]
    typical = np.mean([list(each.values()) for each in ratios])
    assert typical == pytest.approx(1, abs=0.02)


def test_one_turn_is_its_own_judge() -> None:
    assert over_the_best({0: [40.0], 1: [50.0]}) == {0: 1.0, 1: 1.25}


def test_in_turns_are_what_was_kept_and_what_the_sweep_has_near_its_best_for_twice_as_long() -> None:
    measured = Measured()
    measured.against_sweep().outcome(range(4), reach=1.05)
    in_turns = Counter(number for number, window_s in measured.asked if window_s == 20.0)
    assert in_turns == {1: 3, 2: 3, 3: 3}


def test_it_does_not_hold_where_a_request_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUNS, "guided", RUNS["guided"] | {"failed": 1})
    assert not Measured().against_sweep().outcome(range(4), reach=1.05)["holds"]


def test_what_the_file_has_is_not_done_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    found = Measured().against_sweep(file).outcome(range(4), reach=1.05)
    again = Measured()
    assert again.against_sweep(file).outcome(range(4), reach=1.05) == found
    assert again.asked == []


def test_with_one_more_configuration_in_turns_all_of_them_are_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    Measured().against_sweep(file, seeds=1).outcome(range(4), reach=1.05)
    monkeypatch.setitem(RUNS, "other", RUNS["other"] | {"kept": 0})
    grown = Measured()
    grown.against_sweep(file, seeds=2).outcome(range(4), reach=1.05)
    in_turns = Counter(number for number, window_s in grown.asked if window_s == 20.0)
    assert in_turns == {0: 3, 1: 3, 2: 3, 3: 3}


def test_what_refuses_most_requests_and_answers_the_rest_soon_is_not_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusing = window_of(requests([1.0] * 10, failed=range(9)))
    assert refusing == {"mean_ms": pytest.approx(0.1 + 900 * LoadOptions.timeout_s), "failed": 9}
    monkeypatch.setitem(LATENCY_MS, 3, refusing["mean_ms"])
    found = Measured().against_sweep().outcome(range(4), reach=1.05)
    assert found["finals"]["guided"] == 1.0
    assert found["finals"]["other"] > 100


def test_what_answers_nothing_is_infinitely_slow_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent_ms = window_of(requests([1.0], failed=[0]))["mean_ms"]
    assert silent_ms == window_of(requests([]))["mean_ms"] == math.inf
    for n in (0, 2):
        monkeypatch.setitem(LATENCY_MS, n, silent_ms)
    measured = Measured()
    assert measured.against_sweep().outcome(range(4), reach=1.05)["finals"]["guided"] == 1.0
    assert {number for number, window_s in measured.asked if window_s == 20.0} == {1, 3}


def test_what_answered_nothing_in_a_turn_is_not_its_best_and_a_turn_of_silence_tells_nothing() -> None:
    ends = {0: [40.0, 40.0, math.inf, math.inf], 1: [60.0, 60.0, 50.0, math.inf]}
    assert over_the_best(ends) == {0: math.inf, 1: pytest.approx(1.0)}
    with pytest.raises(RuntimeError, match="no request was answered in any turn"):
        over_the_best({0: [math.inf]})


def test_a_sweep_without_an_answer_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    for n in LATENCY_MS:
        monkeypatch.setitem(LATENCY_MS, n, math.inf)
    with pytest.raises(RuntimeError, match="no configuration of the sweep answered"):
        Measured().against_sweep().outcome(range(4), reach=1.05)
