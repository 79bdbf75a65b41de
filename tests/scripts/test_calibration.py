"""`scripts/bench calibration`: how outcomes are noted and counted."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.benchmarks.tuner import calibration
from scripts.benchmarks.tuner.calibration import LATENCY, SERVICE_TIME, Foretold, Options


def test_a_run_notes_service_times_and_a_latency_for_each_decision_after_the_first() -> None:
    found = calibration.outcomes_of("family", 0, "model", 4)
    latencies = [each for each in found if each.what == LATENCY]
    assert len(latencies) in (3, 4)
    assert latencies[0].new or len(latencies) == 4
    assert sum(each.what == SERVICE_TIME for each in found) >= 3
    assert all(0 <= each.quantile <= 1 for each in found)


def test_coverage_is_that_of_the_central_interval() -> None:
    assert calibration.coverage(np.array([0.04, 0.3, 0.5, 0.96]), 0.9) == pytest.approx(0.5)
    assert calibration.coverage(np.linspace(0.005, 0.995, 100), 0.5) == pytest.approx(0.5)


def test_rows_tell_first_times_from_others() -> None:
    found = [Foretold(LATENCY, True, 0.5), Foretold(LATENCY, False, 0.99), Foretold(LATENCY, False, 0.5)]
    assert calibration.table_of("usl (1)", found) == [
        "| usl (1) | latency | new | 1 | 100% | 100% | 0 0 0 0 0 100 0 0 0 0 |",
        "| usl (1) | latency | again | 2 | 50% | 50% | 0 0 0 0 0 50 0 0 0 50 |",
    ]


@pytest.mark.parametrize(
    "wrong", [{"sources": ("x",)}, {"truth": "x"}, {"seeds": 0}, {"decisions": 1}, {"settings": ("x=1",)}]
)
def test_wrong_use_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"--sources|unknown truth|--seeds|--settings"):
        Options(**wrong)  # type: ignore[arg-type]
