"""`serf-model`: what it predicts of a run, with and without the drift of the machine."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.queueing.interference import Queue, predict
from scripts.benchmarks.tuner.serf_model import Case, MeasuredRun, outcome, predicted, summary

TIMES_S = np.array([0.010, 0.014, 0.021])  # with 1, 2 and 3 requests in service
RATE_PER_S = 60.0


def ran(slower: float = 1.0, missed: float = 1.0) -> MeasuredRun:
    """A run of which the model misses `missed`, on a machine so much slower than when it was profiled."""
    true = predict(slower * TIMES_S[None], np.array([3]), RATE_PER_S)
    latency_s, service_s = float(true.mean_latency_s[0]), float(true.mean_service_s[0])
    return MeasuredRun(3, 1, 0.45, RATE_PER_S, 1e3 * missed * latency_s, 1e3 * service_s)


def test_a_run_that_the_model_describes_has_no_error() -> None:
    case = predicted(ran(), TIMES_S)
    assert case.raw_percent() == pytest.approx(0.0)
    assert case.adjusted_percent() == pytest.approx(0.0, abs=0.01)
    assert case.raw_percent(Queue.MD_C) < -5  # blind to interference: too short


def test_drift_since_the_profile_is_an_error_with_a_sign_and_the_adjusted_error_is_free_of_it() -> None:
    slowed, sped_up = (predicted(ran(slower), TIMES_S) for slower in (1.1, 0.9))
    assert slowed.raw_percent() < -8
    assert sped_up.raw_percent() > 8
    assert max(abs(slowed.adjusted_percent()), abs(sped_up.adjusted_percent())) < 0.01


def test_what_the_model_gets_wrong_stays_in_the_adjusted_error() -> None:
    case = predicted(ran(slower=1.1, missed=1.25), TIMES_S)
    assert case.adjusted_percent() == pytest.approx(100 * (1 / 1.25 - 1), abs=0.01)


def cases() -> list[Case]:
    return [predicted(ran(missed=missed), TIMES_S) for missed in (1.0, 1 / 1.1, 1 / 0.96, 1.0)]


def test_the_outcome_is_judged_by_the_errors_without_the_drift_taken_out() -> None:
    found = outcome(cases())  # of 0, 10, -4 and 0 %
    assert (found["value"], found["signed_percent"]) == (3.5, 1.5)
    assert (found["p90_percent"], found["holds"]) == (8.2, True)
    slow = [predicted(ran(1.2), TIMES_S)] * 2
    assert not outcome(slow)["holds"]
    assert outcome(slow)["adjusted_percent"] == 0


def test_the_summary_tells_every_models_errors_and_the_sign_of_each_case() -> None:
    lines = summary(cases())
    ours = next(line for line in lines if line.startswith(Queue.MD_INTERF_C.value))
    assert ours.split()[1:7:2] == ["3.5", "8.2", "+1.5"]
    assert lines[-1].split()[:3] == ["3", "x", "1"]
    assert [cell for cell in lines[-1].replace("/", " ").split() if cell[0] in "+-"][::2] == [
        "+0.0",
        "+10.0",
        "-4.0",
        "+0.0",
    ]
