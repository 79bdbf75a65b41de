"""A stretch of many requests is made shorter, and stays what it was like."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.arrival_summary import dispersion_of_times
from rrl.queueing.windows import shortened
from serving_adapter.load.arrivals import Arrivals, Bursts, Poisson

MOST, DURATION_S = 10_000, 1000.0
BURSTS = Bursts(60.0, burst_ratio=8.0, mean_burst_s=20.0, mean_calm_s=80.0)


def stretch(arrivals: Arrivals, duration_s: float = DURATION_S) -> np.ndarray:
    """Offsets of what arrives in this time."""
    parts = []
    for chunk in arrivals.times_s(np.random.default_rng(0)):
        parts.append(chunk[chunk < duration_s])
        if chunk[-1] >= duration_s:
            return np.concatenate(parts)
    raise AssertionError("arrivals go on for ever")


def test_of_few_requests_nothing_changes() -> None:
    offsets_s = np.sort(np.random.default_rng(0).uniform(0, DURATION_S, MOST))
    kept_s, duration_s = shortened(offsets_s, DURATION_S, MOST)
    assert kept_s is offsets_s
    assert duration_s == DURATION_S


@pytest.mark.parametrize("arrivals", [Poisson(60.0), BURSTS])
def test_requests_come_at_the_same_rates_for_a_shorter_time(arrivals: Arrivals) -> None:
    offsets_s = stretch(arrivals)
    kept_s, duration_s = shortened(offsets_s, DURATION_S, MOST)
    share = MOST / len(offsets_s)
    assert 0.97 * MOST < len(kept_s) <= MOST
    assert (np.diff(kept_s) >= 0).all()
    assert duration_s == pytest.approx(DURATION_S * share)
    (before, _), (after, _) = (
        np.histogram(times_s, bins=16, range=(0, length_s))
        for times_s, length_s in ((offsets_s, DURATION_S), (kept_s, duration_s))
    )
    assert np.abs(after - share * before).mean() < 0.15 * share * before.mean()
    assert dispersion_of_times(kept_s, duration_s) == pytest.approx(
        share * dispersion_of_times(offsets_s, DURATION_S), rel=0.5, abs=1.0
    )


def test_poisson_arrivals_stay_as_uneven_from_one_moment_to_the_next() -> None:
    gaps_s = np.diff(shortened(stretch(Poisson(60.0)), DURATION_S, MOST)[0])
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.0, abs=0.05)


def test_what_comes_at_once_still_does() -> None:
    kept_s, _ = shortened(np.repeat([2.0, 999.0], [20_000, 30_000]), DURATION_S, MOST)
    assert len(kept_s) == MOST
    assert len(np.unique(kept_s)) == 1


def test_what_comes_at_regular_moments_comes_as_far_apart_and_until_the_end() -> None:
    """As many at each moment, too: less at once would make a shorter queue."""
    kept_s, duration_s = shortened(np.repeat(np.arange(0.0, DURATION_S, 20.0), 1000), DURATION_S, MOST)
    moments_s, requests = np.unique(kept_s, return_counts=True)
    assert (len(kept_s), duration_s) == (MOST, DURATION_S / 5)
    assert set(requests) == {1000}
    np.testing.assert_allclose(np.diff(moments_s), 20.0, rtol=0.3)
