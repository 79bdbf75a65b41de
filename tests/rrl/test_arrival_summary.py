from __future__ import annotations

import math

import numpy as np
import pytest

from rrl.arrival_summary import dispersion_of, index_of_dispersion, summarised
from rrl.measurement import MAX_POINTS, NOT_TOLD


def poisson(rate_per_s: float, duration_s: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0.0, duration_s, rng.poisson(rate_per_s * duration_s)))


def test_few_arrivals_are_told_one_by_one() -> None:
    summary = summarised(np.array([0.01234, 0.5, 0.50004, 3.0]), np.array([1, 8, 2, 1]))
    assert summary.offsets_s == (0.0123, 0.5, 0.5, 3.0)
    assert summary.requests == (1, 1, 1, 1)
    assert summary.items == (1, 8, 2, 1)
    assert summarised(np.array([0.5, 1.0])).items == (1, 1)
    assert summarised(np.empty(0)) == NOT_TOLD


def test_as_many_as_there_are_points_are_still_told_one_by_one() -> None:
    assert len(summarised(np.linspace(0.0, 5.0, MAX_POINTS)).offsets_s) == MAX_POINTS
    assert len(summarised(np.linspace(0.0, 5.0, MAX_POINTS + 1)).offsets_s) <= MAX_POINTS


def test_of_many_arrivals_none_is_lost_and_each_group_begins_with_its_first() -> None:
    rng = np.random.default_rng(1)
    offsets_s = np.round(poisson(4000.0, 5.0), 4)
    items = rng.integers(1, 9, len(offsets_s))
    summary = summarised(offsets_s, items)
    assert MAX_POINTS / 2 < len(summary.offsets_s) <= MAX_POINTS
    assert (sum(summary.requests), sum(summary.items)) == (len(offsets_s), items.sum())
    first = np.concatenate([[0], np.cumsum(summary.requests)[:-1]])
    assert summary.offsets_s == tuple(offsets_s[first].tolist())
    assert summary.items == tuple(np.add.reduceat(items, first).tolist())
    assert all(type(value) is int for value in (*summary.requests, *summary.items))


def test_a_burst_stays_a_burst() -> None:
    summary = summarised(np.concatenate([np.linspace(1.0, 1.1, 2000), np.linspace(4.1, 4.2, 2000)]))
    assert all(1.0 <= offset_s <= 1.1 or 4.1 <= offset_s <= 4.2 for offset_s in summary.offsets_s)
    assert dispersion_of(summary, 5.0) == pytest.approx(4000 * 14 / 15 / 2, rel=0.01)


def test_arrivals_of_one_moment_are_one_group() -> None:
    assert summarised(np.full(1000, 2.5)) == ((2.5,), (1000,), (1000,))


@pytest.mark.parametrize("rate_per_s", [20.0, 2000.0])
def test_the_dispersion_of_poisson_arrivals_is_one_on_average(rate_per_s: float) -> None:
    told = [dispersion_of(summarised(poisson(rate_per_s, 5.0, seed)), 5.0) for seed in range(100)]
    assert np.mean(told) == pytest.approx(1.0, abs=0.15)


def test_regular_arrivals_have_next_to_no_dispersion() -> None:
    assert dispersion_of(summarised(np.arange(0.0, 5.0, 0.01)), 5.0) < 0.05


def test_of_few_requests_no_dispersion_is_told() -> None:
    assert math.isnan(dispersion_of(summarised(np.linspace(0.0, 4.0, 19)), 5.0))
    assert not math.isnan(dispersion_of(summarised(np.linspace(0.0, 4.0, 20)), 5.0))
    assert math.isnan(dispersion_of(NOT_TOLD, 5.0))
    assert math.isnan(index_of_dispersion(np.zeros(8)))
