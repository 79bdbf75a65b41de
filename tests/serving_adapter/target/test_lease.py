"""Tuners of one model of a real server are kept apart, whatever they call its address."""

from __future__ import annotations

import pytest

from serving_adapter.target import LeaseLost, LeaseTaken, TunerLease

ONE, OTHER = TunerLease("rrl-tune of ann on a", 600), TunerLease("rrl-tune of bob on b", 600)


@pytest.fixture
def tuners(server, make_target):
    """Two targets that are the same model, by two names of the address; the lease is free again after it."""
    port = server.address.rpartition(":")[2]
    targets = [make_target(f"{host}:{port}") for host in ("127.0.0.1", "localhost")]
    for target in targets:
        target.connect()
    yield targets
    for target, lease in zip(targets, (ONE, OTHER), strict=True):
        target.forget_lease()
        try:
            target.take_lease(TunerLease(lease.owner, 0))
        except LeaseTaken:  # the other one's
            continue


def test_the_second_tuner_is_refused_by_name_until_the_first_gives_it_back(tuners):
    first, second = tuners
    assert first.take_lease(ONE)
    with pytest.raises(LeaseTaken, match="'sleep' is leased to rrl-tune of ann on a, for another"):
        second.take_lease(OTHER)
    assert first.take_lease(TunerLease(ONE.owner, 0))
    assert second.take_lease(OTHER)


def test_a_tuner_that_comes_back_has_its_own_lease(tuners):
    first, second = tuners
    first.take_lease(ONE)
    first.connect()
    first.take_lease(ONE)
    with pytest.raises(LeaseTaken):
        second.take_lease(OTHER)


def test_a_tuner_that_lost_its_lease_changes_nothing(tuners):
    first, second = tuners
    first.take_lease(TunerLease(ONE.owner, 0.001))
    while True:  # until it ends
        try:
            second.take_lease(OTHER)
            break
        except LeaseTaken:
            continue
    before = second.configuration()
    with pytest.raises(LeaseTaken, match="is leased to rrl-tune of bob on b"):
        first.apply({"max_batch_size": before["max_batch_size"] + 1})
    assert second.configuration() == before


@pytest.mark.parametrize("reconnects", [False, True])
def test_a_tuner_that_slept_while_another_had_the_lease_notices_and_changes_nothing(tuners, reconnects):
    first, second = tuners
    first.take_lease(ONE)
    second.take_lease(TunerLease(ONE.owner, 0))  # as when it runs out
    second.take_lease(OTHER)
    second.take_lease(TunerLease(OTHER.owner, 0))
    before = second.configuration()
    if reconnects:
        first.connect()
    for attempt in (
        first.prolong_lease,
        lambda: first.take_lease(ONE),
        lambda: first.apply({"max_batch_size": before["max_batch_size"] + 1}),
    ):
        with pytest.raises(LeaseLost, match="was leased to rrl-tune of bob on b since"):
            attempt()
    assert second.configuration() == before
    first.forget_lease()
    assert first.take_lease(ONE)


def test_a_person_changes_a_leased_model_by_hand(tuners):
    first, second = tuners
    first.take_lease(ONE)
    before = first.configuration()
    second.apply({"max_batch_size": before["max_batch_size"] + 1})
    assert first.configuration()["max_batch_size"] == before["max_batch_size"] + 1
    second.apply(before)


def test_a_stock_triton_has_no_leases(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    assert not target.take_lease(ONE)
