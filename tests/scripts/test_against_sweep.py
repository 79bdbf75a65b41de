"""Agents against a sweep: what is measured in turns at the end, and what is said of each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from scripts.kept_rows import KeptRows
from scripts.serving.against_sweep import AgainstSweep, over_the_best

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

    def against_sweep(self, file: Path | None = None) -> AgainstSweep:
        rows = KeptRows(file, ("what",))
        return AgainstSweep(("guided", "other"), 2, 10.0, 3, self.window, self.tuned, rows)


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
