"""A tier stays within its capacity, and never lets go of what is in use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_adapter.model_store.errors import NoRoom
from serving_adapter.model_store.tiers.eviction import POLICIES, LeastRecentlyUsed
from serving_adapter.model_store.tiers.tier import REMEMBERED_KEYS, Address, Tier, TierEntry


class Shelf(Tier[str]):
    """A tier whose entries are only counted; nothing in use may be freed, and nothing twice."""

    name = "shelf"

    def __init__(self, capacity_bytes: int, policy: str = "lru") -> None:
        super().__init__(capacity_bytes, POLICIES[policy]())
        self.freed: list[TierEntry[str]] = []

    def _free(self, entry: TierEntry[str]) -> None:
        assert not entry.in_use
        assert not any(entry is other for other in self.freed)
        self.freed.append(entry)

    def fill(self, key: int, size_bytes: int, reload_s: float = 1.0) -> TierEntry[str]:
        self.reserve(size_bytes)
        self.unreserve(size_bytes)
        return self.add(address(key), size_bytes, reload_s, "content")


def address(key: int) -> Address:
    return Address("safetensors", f"model-{key}", "1")


operations = st.lists(
    st.tuples(
        st.sampled_from(
            ["fill", "fill", "look", "refer", "release", "pin", "unpin", "evict", "reserve", "unreserve"]
        ),
        st.integers(0, 7),
        st.integers(0, 60),
        st.floats(0, 10),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(sorted(POLICIES)), operations)
def test_no_sequence_of_operations_frees_what_is_in_use_or_overfills_the_tier(policy, sequence):
    shelf = Shelf(100, policy)
    looked, held, room_made = 0, [], 0
    for operation, key, size_bytes, reload_s in sequence:
        entry = shelf.entries.get(address(key))
        if operation in ("fill", "reserve") and (operation == "reserve" or entry is None):
            needed_by_others = shelf.reserved_bytes + sum(
                e.usage.size_bytes for e in shelf.entries.values() if e.in_use
            )
            gone = len(shelf.freed)
            try:
                if operation == "fill":
                    shelf.fill(key, size_bytes, reload_s)
                else:
                    shelf.reserve(size_bytes)
                    held.append(size_bytes)
            except NoRoom:
                assert needed_by_others + size_bytes > 100
            else:
                assert needed_by_others + size_bytes <= 100
            room_made += len(shelf.freed) - gone
        elif operation == "unreserve" and held:
            shelf.unreserve(held.pop())
        elif operation == "look":
            looked += 1
            assert shelf.look_up(address(key)) is entry
        elif entry is None:
            continue
        elif operation == "refer":
            entry.references += 1
        elif operation == "release" and entry.references:
            entry.references -= 1
        elif operation in ("pin", "unpin"):
            entry.pinned = operation == "pin"
        elif operation == "evict" and entry.in_use:
            with pytest.raises(NoRoom):
                shelf.evict(entry)
            assert shelf.entries[address(key)] is entry
        elif operation == "evict":
            shelf.evict(entry)
            assert address(key) not in shelf.entries
        assert shelf.used_bytes <= 100
        assert shelf.held_bytes == sum(e.usage.size_bytes for e in shelf.entries.values())
        assert shelf.reserved_bytes == sum(held)
    assert shelf.hits + shelf.misses == looked
    assert shelf.evictions == room_made


@settings(deadline=None)
@given(
    st.sampled_from(sorted(POLICIES)),
    st.lists(st.tuples(st.integers(1, 30), st.floats(0, 5), st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(1, 240),
)
def test_only_the_lowest_ranks_go_and_no_more_than_needed(policy, models, needed_bytes):
    shelf = Shelf(240, policy)
    for key, (size_bytes, reload_s, uses) in enumerate(models):
        shelf.fill(key, size_bytes, reload_s)
        for _ in range(uses):
            shelf.look_up(address(key))
    ranks: dict[Any, Any] = {
        entry.usage.key: shelf.policy.rank(entry.usage) for entry in shelf.entries.values()
    }
    shelf.reserve(needed_bytes)
    gone = [entry.usage for entry in shelf.freed]
    assert [ranks[usage.key] for usage in gone] == sorted(ranks[usage.key] for usage in gone)
    assert all(ranks[usage.key] <= ranks[kept] for usage in gone for kept in shelf.entries)
    if gone:
        assert shelf.used_bytes + gone[-1].size_bytes > 240  # the last was needed too


def test_a_model_larger_than_the_tier_is_refused_and_nothing_goes_for_it():
    shelf = Shelf(1000)
    shelf.fill(1, 1000)
    with pytest.raises(NoRoom) as refused:
        shelf.reserve(1001)
    assert str(refused.value) == (
        "the model has 1,001 bytes, the shelf tier holds 1,000 in all; start the store with more"
    )
    assert (shelf.freed, shelf.used_bytes, shelf.evictions) == ([], 1000, 0)


def test_a_tier_full_of_what_is_in_use_says_so():
    shelf = Shelf(1000)
    shelf.fill(1, 600).references = 1
    shelf.fill(2, 300).pinned = True
    with pytest.raises(NoRoom) as refused:
        shelf.reserve(101)
    assert str(refused.value) == (
        "the model has 101 bytes; of the shelf tier's 1,000 900 are in use, "
        "and models in use are never evicted"
    )
    assert shelf.reserved_bytes == 0
    shelf.reserve(100)


def test_what_is_in_use_is_passed_over_for_what_is_not():
    shelf = Shelf(1000)
    shelf.fill(1, 600).references = 1
    unused = shelf.fill(2, 300)
    shelf.reserve(400)
    assert shelf.freed == [unused]


def test_what_cannot_fit_beside_the_models_in_use_evicts_nobody():
    shelf = Shelf(1000)
    shelf.fill(1, 600).references = 1
    shelf.fill(2, 300)
    with pytest.raises(NoRoom):
        shelf.reserve(500)  # evicting model 2 would not be enough
    assert shelf.freed == []


def test_who_asks_may_refuse_the_bytes_before_anything_goes_for_them():
    def refuse(size_bytes: int) -> None:
        raise NoRoom(f"not {size_bytes}")

    shelf = Shelf(1000)
    shelf.fill(1, 600)
    with pytest.raises(NoRoom, match="not 500"):
        shelf.reserve(500, refuse)
    with pytest.raises(NoRoom, match="holds 1,000 in all"):  # the tier's own refusal comes first
        shelf.reserve(1001, refuse)
    assert (shelf.freed, shelf.reserved_bytes) == ([], 0)


def test_a_reservation_keeps_its_room_until_it_is_given_up():
    shelf = Shelf(1000)
    shelf.reserve(600)
    with pytest.raises(NoRoom, match="600 are in use"):
        shelf.reserve(401)
    shelf.unreserve(600)
    shelf.reserve(1000)
    assert shelf.used_bytes == 1000


def test_evicting_what_is_in_use_is_refused_by_its_name():
    shelf = Shelf(1000)
    entry = shelf.fill(1, 10)
    for entry.references, entry.pinned in ((1, False), (0, True)):
        with pytest.raises(NoRoom, match="safetensors/model-1/1 is in use"):
            shelf.evict(entry)
    entry.pinned = False
    shelf.evict(entry)
    assert shelf.freed == [entry]


def test_hits_and_misses_are_counted_and_an_operators_eviction_is_not():
    shelf = Shelf(1000)
    assert shelf.look_up(address(1)) is None
    shelf.evict(shelf.fill(1, 10))
    shelf.fill(2, 1000)
    assert shelf.look_up(address(2)) is shelf.entries[address(2)]
    shelf.fill(3, 1)
    assert (shelf.hits, shelf.misses, shelf.evictions) == (1, 1, 1)


def test_only_so_many_evicted_models_are_remembered():
    shelf: Tier[None] = Tier(1, LeastRecentlyUsed())
    shelf._free = lambda entry: None  # type: ignore[method-assign]
    for key in range(REMEMBERED_KEYS + 5):
        shelf.evict(shelf.add(address(key), 0, 0.0, None))
    assert len(shelf._evicted_uses) == REMEMBERED_KEYS
    assert shelf.add(address(0), 0, 0.0, None).usage.uses == 1  # forgotten
    assert shelf.add(address(REMEMBERED_KEYS), 0, 0.0, None).usage.uses == 2
