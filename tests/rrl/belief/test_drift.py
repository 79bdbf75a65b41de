"""The machine's speed of each moment is told apart from what is so of every entry."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rrl.belief import drift
from rrl.belief.drift import Rows, Scale, Shocks

SCALE = Scale(0.03, 0.015)


def usual(intervals: int) -> Shocks:
    return Shocks(np.ones(intervals), np.ones(intervals))


def random_rows(seed: int, intervals: int = 6, entries: int = 4, rows: int = 17) -> Rows:
    """Every interval has a row, and so has every entry."""
    rng = np.random.default_rng(seed)
    interval = np.concatenate([np.arange(intervals), rng.integers(intervals, size=rows - intervals)])
    entry = np.concatenate([np.arange(entries), rng.integers(entries, size=rows - entries)])
    return Rows(interval, 10 * entry, rng.normal(-2.0, 0.3, rows), rng.uniform(1e-4, 1e-2, rows))


def dense(rows: Rows, times: np.ndarray, scale: Scale, shocks: Shocks) -> tuple[np.ndarray, np.ndarray]:
    """N and Z, built entry by entry."""
    of_intervals = scale.drift_sd**2 * drift.correlations(times, shocks)
    of_intervals += np.diag(shocks.scatter * scale.scatter_sd**2)
    noise = np.diag(rows.variance) + of_intervals[np.ix_(rows.interval, rows.interval)]
    return noise, (rows.entry[:, None] == np.unique(rows.entry)).astype(float)


def log_density(y: np.ndarray, covariance: np.ndarray) -> float:
    """Of N(0, covariance), without its 2π."""
    return -0.5 * float(y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(covariance)[1])


@pytest.mark.parametrize("seed", range(5))
def test_generalised_least_squares_equals_the_dense_computation(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    rows, times = random_rows(seed), np.array([1.0, 2.0, 3.0, 7.0, 8.0, 20.0])
    shocks = Shocks(rng.uniform(0.5, 20.0, 6), rng.uniform(0.5, 20.0, 6))
    found = drift.evidences(rows, times, [SCALE], shocks)[SCALE]
    noise, z = dense(rows, times, SCALE, shocks)
    w = z.T @ np.linalg.solve(noise, z)
    np.testing.assert_array_equal(found.entries, np.unique(rows.entry))
    np.testing.assert_allclose(found.noise, np.linalg.inv(w), rtol=1e-7)
    np.testing.assert_allclose(
        found.log_times, np.linalg.solve(w, z.T @ np.linalg.solve(noise, rows.log_time))
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_likelihood_of_the_rows_is_that_of_the_entries_and_the_constant(seed: int) -> None:
    """Whatever is believed of the entries: here some covariance of theirs, drawn at random."""
    rng = np.random.default_rng(seed)
    rows, times = random_rows(seed), np.arange(1.0, 7.0)
    found = drift.evidences(rows, times, [SCALE], usual(6))[SCALE]
    noise, z = dense(rows, times, SCALE, usual(6))
    root = rng.standard_normal((4, 4))
    entries, mean = root @ root.T, rng.normal(-2.0, 0.3, 4)
    of_rows = log_density(rows.log_time - z @ mean, z @ entries @ z.T + noise)
    of_entries = log_density(found.log_times - mean, entries + found.noise)
    assert found.log_constant + of_entries == pytest.approx(of_rows)


def test_drift_fades_with_time_and_shocks_add_to_it() -> None:
    times = np.array([1.0, 2.0, 5.0])
    quiet = SCALE.drift_sd**2 * drift.correlations(times, usual(3))
    np.testing.assert_allclose(np.diag(quiet), SCALE.drift_sd**2)
    assert quiet[0, 2] == pytest.approx(SCALE.drift_sd**2 * drift.CORRELATION**4)
    shaken = SCALE.drift_sd**2 * drift.correlations(times, Shocks(np.array([1.0, 9.0, 1.0]), np.ones(3)))
    assert shaken[0, 0] == quiet[0, 0]
    assert shaken[1, 1] > 2 * quiet[1, 1]
    assert shaken[2, 2] > quiet[2, 2]
    np.testing.assert_array_equal(shaken, shaken.T)


def at(log_times: list[tuple[int, int, float]], variance: float = 1e-6) -> Rows:
    """Rows given by interval, entry and ln S."""
    interval, entry, log_time = zip(*log_times, strict=True)
    return Rows(np.array(interval), np.array(entry), np.array(log_time), np.full(len(entry), variance))


def test_the_shift_of_a_slow_interval_is_its_own_and_not_that_of_the_entries() -> None:
    slow = 0.2
    rows = at([(t, e, -float(e) + slow * (t == 3)) for t in range(6) for e in (1, 2, 3)])
    expected = -rows.entry.astype(float)
    shocks = usual(6)
    for _ in range(4):
        found, shocks = drift.effects(rows, np.arange(6.0), SCALE, shocks, expected)
    shared = found.drift + found.scatter
    assert shared[3] == pytest.approx(slow, abs=0.01)
    np.testing.assert_allclose(np.delete(shared, 3), 0.0, atol=0.01)
    entries = drift.evidences(rows, np.arange(6.0), [SCALE], shocks)[SCALE]
    np.testing.assert_allclose(entries.log_times, -entries.entries, atol=0.01)


def test_a_configuration_seen_only_in_a_slow_interval_is_told_by_what_was_beside_it() -> None:
    """Entry 9 was seen once, beside entry 1, which took a fifth longer than usual just then."""
    rows = at([(t, 1, 0.2 * (t == 4)) for t in range(8)] + [(4, 9, 1.2)])
    found = drift.evidences(rows, np.arange(8.0), [SCALE], usual(8))[SCALE]
    assert dict(zip(found.entries, found.log_times, strict=True))[9] == pytest.approx(1.0, abs=0.04)


@pytest.mark.parametrize("step", [math.log(1.5), -math.log(1.5)])
def test_a_lasting_change_is_followed_within_two_intervals(step: float) -> None:
    for since in (1, 2):
        intervals = 10 + since
        rows = at([(t, 1, step * (t >= 10)) for t in range(intervals)])
        shocks, expected = usual(intervals), np.zeros(intervals)
        for _ in range(6):
            found, shocks = drift.effects(rows, np.arange(float(intervals)), SCALE, shocks, expected)
    assert found.drift[-1] / step > 0.8
    assert abs(found.drift[9]) < 0.1 * abs(step)


def test_what_is_usual_is_no_shock_and_what_is_rare_is() -> None:
    rng = np.random.default_rng(0)
    d, log_times = 0.0, []
    for t in range(30):
        d = drift.CORRELATION * d + SCALE.drift_sd * math.sqrt(1 - drift.CORRELATION**2) * rng.normal()
        log_times.append((t, 1, d + 0.5 * (t >= 20)))
    rows, shocks = at(log_times), usual(30)
    for _ in range(6):
        _, shocks = drift.effects(rows, np.arange(30.0), SCALE, shocks, np.zeros(30))
    assert shocks.drift[20] > 20
    assert np.median(np.delete(shocks.drift, 20)) < 2


def test_what_persists_of_a_drift_falls_with_every_interval() -> None:
    assert drift.persisting(0) == 1.0
    assert drift.persisting() == drift.CORRELATION
    assert drift.persisting(2) == pytest.approx(drift.CORRELATION**2)
