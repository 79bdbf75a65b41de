"""The lease on a model keeps two tuners apart, and nobody else."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from serving_adapter.server.protocol.lease import LeaseHeld, ModelLease


class Clock:
    now_s = 1000.0

    def __call__(self) -> int:
        return round(1e9 * self.now_s)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lease(clock):
    return ModelLease("minilm", clock)


def test_a_second_owner_is_told_who_has_it_and_for_how_long(lease, clock):
    lease.take("rrl-tune of ann on a", 30_000)
    clock.now_s += 10
    with pytest.raises(LeaseHeld, match="'minilm' is leased to rrl-tune of ann on a, for another 20 s"):
        lease.take("rrl-tune of bob on b", 30_000)


def test_its_owner_prolongs_it(lease, clock):
    lease.take("a", 30_000)
    clock.now_s += 29
    lease.take("a", 30_000)
    clock.now_s += 29
    with pytest.raises(LeaseHeld):
        lease.take("b", 1)


def test_an_owner_that_slept_while_another_had_it_is_told_who_that_was(lease, clock):
    lease.take("a", 30_000)
    clock.now_s += 31
    lease.take("a", 30_000, prolongs=True)  # nobody came
    clock.now_s += 31
    lease.take("b", 30_000)
    lease.take("b", 0)
    for duration_ms in (30_000, 0):
        with pytest.raises(LeaseHeld, match="'minilm' was leased to b since the lease of this tuner ran out"):
            lease.take("a", duration_ms, prolongs=True)
    lease.take("a", 30_000)  # it begins anew


def test_a_server_that_started_anew_has_no_other_owner(lease):
    lease.take("a", 30_000, prolongs=True)


def test_it_ends_by_itself_or_is_given_back(lease, clock):
    lease.take("a", 30_000)
    clock.now_s += 30
    lease.take("b", 30_000)
    lease.take("b", 0)
    lease.take("c", 30_000)


def test_it_does_not_end_before_its_owner_s_change_has(lease, clock):
    with closing(asyncio.new_event_loop()) as loop:
        changing = loop.create_future()
        lease.take("a", 30_000)
        lease.last_until(changing)
        clock.now_s += 40
        with pytest.raises(LeaseHeld, match="is leased to a, for another 0 s unless it prolongs that"):
            lease.take("b", 1)
        lease.take("a", 0)
        changing.set_result(None)
        loop.run_until_complete(asyncio.sleep(0))
        lease.take("b", 1)


@pytest.mark.parametrize("owner", ["", "two\nlines", "x" * 201, "\x1b[31m"])
def test_an_owner_is_one_line(lease, owner):
    with pytest.raises(ValueError, match="lease_owner must be a line of 1 to 200 characters"):
        lease.take(owner, 1)


@pytest.mark.parametrize("duration_ms", [-1, 3_600_001])
def test_it_lasts_an_hour_at_most(lease, duration_ms):
    with pytest.raises(ValueError, match="lease_ms must be from 0 to 3600000"):
        lease.take("a", duration_ms)
