"""The search for the capacity finds it where windows are noisy, and says how sure it is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from serving_adapter.load.capacity import CapacitySearch, FoundCapacity
from serving_adapter.load.concurrencies import parse_concurrencies


def searched(looking: CapacitySearch, bears: float, noise: float = 0.0, seed: int = 0) -> int:
    """Windows of a server that bears so much, give or take; returns how many were sent."""
    rng = np.random.default_rng(seed)
    windows = 0
    while not looking.over:
        held = looking.level * math.exp(noise * rng.standard_normal()) <= bears
        looking.tell(held, answered=min(looking.level, 0.9 * bears))
        windows += 1
        assert windows < 500
    return windows


@pytest.mark.parametrize("bears", [0.3, 9.9, 10.0, 143.0, 5000.0])
def test_a_rate_is_found_to_five_per_cent(bears: float) -> None:
    looking = CapacitySearch("rate", first=10.0)
    assert searched(looking, bears) < 60
    found = looking.found
    assert bears / 1.06 <= found.level <= bears
    assert found.confirmed
    assert found.broken > bears


@pytest.mark.parametrize("bears", [1, 2, 7, 16])
def test_a_small_concurrency_is_found_exactly(bears: int) -> None:
    looking = CapacitySearch("concurrency", first=1.0)
    searched(looking, bears)
    assert looking.found == FoundCapacity("concurrency", bears, True, bears + 1)


def test_what_is_found_holds_whatever_single_windows_say() -> None:
    """A bisection that trusts each look strays by the luck of one; here most answers are within the noise."""
    levels = []
    for seed in range(200):
        looking = CapacitySearch("rate", first=10.0)
        searched(looking, 100.0, noise=0.1, seed=seed)
        levels.append(looking.found.level)
    assert np.quantile(levels, 0.95) < 108
    assert np.quantile(levels, 0.05) > 85


def test_no_lower_load_is_sent_once_requests_are_late_that_met_no_other() -> None:
    looking = CapacitySearch("rate", first=10.0)
    windows = 0
    while not looking.over:
        looking.tell(False, alone_late=looking.level < 3)
        windows += 1
    assert windows == 2 * 3
    assert (looking.found.level, looking.found.broken) == (0, 2.5)


@pytest.mark.parametrize(("answered", "next_per_s"), [(90.0, 50.0), (20.0, 20.0), (0.0, 12.5)])
def test_what_was_answered_is_sent_next_unless_it_was_next_to_nothing(
    answered: float, next_per_s: float
) -> None:
    looking = CapacitySearch("rate", first=100.0)
    for _ in range(2):
        looking.tell(False, answered)
    assert looking.level == next_per_s


def test_nothing_is_borne_where_the_least_load_breaks_the_limit() -> None:
    for unit, first in (("rate", 10.0), ("concurrency", 4.0)):
        looking = CapacitySearch(unit, first)  # type: ignore[arg-type]
        searched(looking, 0.0)
        assert looking.found.level == 0
        assert not looking.found.confirmed
        assert "bears no load at p95 <= 50 ms" in looking.found.in_words(50.0)


def test_a_client_that_cannot_send_more_is_no_limit_of_the_server() -> None:
    looking = CapacitySearch("rate", first=10.0)
    while not looking.over:
        if looking.level > 200:
            looking.cannot_send_more()
        else:
            looking.tell(True)
    assert 150 < looking.found.level <= 200
    assert looking.found.in_words(50.0).endswith("at least: no higher load was sent")


def test_a_search_that_is_broken_off_says_so() -> None:
    looking = CapacitySearch("rate", first=10.0)
    for _ in range(4):
        looking.tell(True)
    assert looking.found.in_words(50.0) == (
        "bears 20/s at p95 <= 50 ms at least: no higher load was sent, not confirmed"
    )


def test_concurrencies_as_a_command_line_writes_them() -> None:
    assert parse_concurrencies(None) == []
    assert parse_concurrencies(4) == [4]
    assert parse_concurrencies("16,1:3") == [1, 2, 3, 16]
    for wrong in ("0", "2:1", "a", "1,,2", 9999, "1:100"):
        with pytest.raises(ValueError, match="--concurrency must be"):
            parse_concurrencies(wrong)


def test_a_search_that_judged_no_load_says_that_nothing_is_known() -> None:
    """It was broken off in its first window, or the client could not go on with the least load."""
    broken_off, held_up = CapacitySearch("rate", first=10.0), CapacitySearch("rate", first=10.0)
    held_up.tell(False, alone_late=True)  # so that no lower load is sent
    held_up.cannot_send_more()
    assert held_up.over
    for looking in (broken_off, held_up):
        assert looking.found.in_words(50.0) == (
            "what is borne at p95 <= 50 ms is not known: no load was sent for long enough to tell"
        )
