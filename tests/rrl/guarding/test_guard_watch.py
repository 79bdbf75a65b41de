"""The guard aborts an interval that goes wrong before its time is over, and no other."""

from __future__ import annotations

import heapq
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrl.measurement import Progress
from tests.support.runs.guard_told import BAD, GOOD, START, begun, begun_failing, tell

Service = Literal["exponential", "constant", "uniform"]


def queue_glances(
    rng: np.random.Generator,
    rate_per_s: float,
    capacity_per_s: float,
    servers: int,
    service: Service,
    warm_s: float = 30.0,
    watched_s: float = 10.0,
) -> list[Progress]:
    """A first-come-first-served queue, glanced at four times a second once it is in its steady state."""
    n = rng.poisson(rate_per_s * (warm_s + watched_s))
    arrivals = np.sort(rng.uniform(0, warm_s + watched_s, n))
    mean_s = servers / capacity_per_s
    draws = {
        "exponential": rng.exponential(mean_s, n),
        "constant": np.full(n, mean_s),
        "uniform": rng.uniform(0, 2 * mean_s, n),
    }[service]
    free = [0.0] * servers
    finishes = []
    for at, s in zip(arrivals, draws, strict=True):
        begin = max(at, heapq.heappop(free))
        heapq.heappush(free, begin + s)
        finishes.append(begin + s)
    done = np.sort(finishes)
    before = int(np.searchsorted(arrivals, warm_s)), int(np.searchsorted(done, warm_s))
    glances = []
    for elapsed in np.arange(0.25, watched_s, 0.25):
        a = int(np.searchsorted(arrivals, warm_s + elapsed)) - before[0]
        d = int(np.searchsorted(done, warm_s + elapsed)) - before[1]
        growth = a - d
        glances.append(Progress(float(elapsed), a, d, before[0] - before[1] + growth, growth))
    return glances


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rate_per_s=st.floats(2, 200),
    utilisation=st.floats(0.05, 0.85),
    servers=st.integers(1, 8),
    service=st.sampled_from(["exponential", "constant", "uniform"]),
    start_ms=st.floats(1, 500),
)
def test_a_stable_queue_is_never_aborted(
    seed: int, rate_per_s: float, utilisation: float, servers: int, service: Service, start_ms: float
) -> None:
    guard = begun(start_ms=start_ms)
    guard.admit(BAD)
    rng = np.random.default_rng(seed)
    for progress in queue_glances(rng, rate_per_s, rate_per_s / utilisation, servers, service):
        assert guard.watch(progress) == ""


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rate_per_s=st.floats(50, 200), overload=st.floats(2.0, 20.0))
def test_a_queue_that_runs_away_is_aborted_within_five_seconds(
    seed: int, rate_per_s: float, overload: float
) -> None:
    guard = begun(start_ms=50.0)
    guard.admit(BAD)
    rng = np.random.default_rng(seed)
    glances = queue_glances(rng, rate_per_s, rate_per_s / overload, 1, "constant", warm_s=0.0)
    reasons = [(p.elapsed_s, reason) for p in glances if (reason := guard.watch(p))]
    assert reasons
    elapsed_s, reason = reasons[0]
    assert 1.0 <= elapsed_s <= 5.0
    assert "running away" in reason


@pytest.mark.parametrize("progress", [Progress(0.9, 100, 0, 100, 100), Progress(5.0, 19, 0, 19, 19)])
def test_too_little_seen_aborts_nothing(progress: Progress) -> None:
    guard = begun()
    guard.admit(BAD)
    assert guard.watch(progress) == ""


def test_what_a_rollback_would_return_to_is_not_aborted() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    runaway = Progress(3.0, 300, 20, 280, 280)
    for number, aborts in ((START, False), (GOOD, False), (BAD, True)):
        guard.admit(number)
        assert bool(guard.watch(runaway)) is aborts


def test_a_queue_that_was_there_before_and_goes_down_is_not_a_runaway() -> None:
    guard = begun()
    guard.admit(BAD)
    assert guard.watch(Progress(3.0, 120, 300, 500, -180)) == ""


@pytest.mark.parametrize(
    ("elapsed_s", "completions", "failures", "aborts"),
    [(2.0, 80, 40, True), (2.0, 0, 20, True), (2.0, 80, 3, False), (0.9, 80, 40, False), (2.0, 9, 10, False)],
)
def test_an_interval_in_which_requests_fail_is_aborted_before_its_time_is_over(
    elapsed_s: float, completions: int, failures: int, aborts: bool
) -> None:
    progress = Progress(elapsed_s, completions + failures, completions, 0, 0, failures)
    guard = begun()
    guard.admit(BAD)
    reason = guard.watch(progress)
    assert reason == (
        f"{failures} of {completions + failures} requests failed within {elapsed_s:.1f} s" if aborts else ""
    )
    guard.enter(START)
    assert guard.watch(progress) == ""


def test_an_interval_that_fails_as_much_as_the_start_goes_on() -> None:
    guard = begun_failing(failures=80)  # half
    guard.admit(BAD)
    assert guard.watch(Progress(2.0, 40, 20, 0, 0, failures=20)) == ""
    assert guard.watch(Progress(2.0, 40, 1, 0, 0, failures=39))
