"""Each policy evicts in the order that is worked out by hand here."""

from __future__ import annotations

import pytest

from serving_adapter.model_store.tiers.eviction import (
    POLICIES,
    REMEMBERED_KEYS,
    EvictionPolicy,
    LeastCommonlyUsed,
    LeastRecentlyUsed,
    ReloadCostPerByte,
    Usage,
)
from serving_adapter.model_store.tiers.tier import Address, Tier, TierEntry


class Shelf(Tier[None]):
    """A tier whose entries are nothing but their sizes; remembers whom it let go."""

    name = "shelf"

    def __init__(self, capacity_bytes: int, policy: EvictionPolicy) -> None:
        super().__init__(capacity_bytes, policy)
        self.gone = ""

    def _free(self, entry: TierEntry[None]) -> None:
        assert isinstance(entry.usage.key, Address)
        self.gone += entry.usage.key.name

    def fill(self, name: str, size_bytes: int = 10, reload_s: float = 1.0) -> TierEntry[None]:
        self.reserve(size_bytes)
        self.unreserve(size_bytes)
        return self.add(address(name), size_bytes, reload_s, None)

    def use(self, names: str) -> None:
        for name in names:
            assert self.look_up(address(name)) is not None


def address(name: str) -> Address:
    return Address("safetensors", name, "1")


def order_of_eviction(shelf: Shelf) -> str:
    """Asks for the whole tier, so that everything goes."""
    shelf.gone = ""
    shelf.reserve(shelf.capacity_bytes)
    shelf.unreserve(shelf.capacity_bytes)
    return shelf.gone


@pytest.mark.parametrize(
    ("uses", "order"),
    [("", "abcd"), ("a", "bcda"), ("dcba", "dcba"), ("aaab", "cdab"), ("abcda", "bcda")],
)
def test_least_recently_used_goes_by_the_last_use_alone(uses, order):
    shelf = Shelf(40, LeastRecentlyUsed())
    for name in "abcd":
        shelf.fill(name)
    shelf.use(uses)
    assert order_of_eviction(shelf) == order


@pytest.mark.parametrize(
    ("uses", "order"),
    [
        ("", "abcd"),  # all were used once: the oldest use goes
        ("dd", "abcd"),
        ("aab", "cdba"),
        ("bbbaaa", "cdba"),  # as often, but b longer ago
        ("abcdabc", "dabc"),
    ],
)
def test_least_commonly_used_goes_by_uses_and_then_by_the_last(uses, order):
    shelf = Shelf(40, LeastCommonlyUsed())
    for name in "abcd":
        shelf.fill(name)
    shelf.use(uses)
    assert order_of_eviction(shelf) == order


def test_uses_before_an_eviction_are_remembered():
    shelf = Shelf(20, LeastCommonlyUsed())
    shelf.fill("a")
    shelf.use("aaa")  # 4 uses
    shelf.fill("b")
    shelf.evict(shelf.entries[address("a")])
    shelf.use("bb")  # 3 uses
    assert shelf.fill("a").usage.uses == 5
    assert order_of_eviction(shelf) == "ba"


def test_reload_cost_weighs_seconds_by_bytes():
    shelf = Shelf(1000, ReloadCostPerByte())
    shelf.fill("a", 100, 1.0)  # 0.01 a byte
    shelf.fill("b", 10, 1.0)  # 0.1
    shelf.fill("c", 100, 20.0)  # 0.2
    shelf.fill("d", 500, 1.0)  # 0.002; what was used last has at most 1.2 times the f of what was first
    assert order_of_eviction(shelf) == "dabc"


def test_reload_cost_counts_every_use():
    shelf = Shelf(1000, ReloadCostPerByte())
    shelf.fill("a", 100, 1.0)
    shelf.fill("b", 10, 1.0)
    shelf.fill("c", 100, 90.0)
    shelf.use("a" * 20)  # f between 7 and 14: above b's less than 0.1, below c's more than 0.9 * 0.2
    assert order_of_eviction(shelf) == "bac"


def test_uses_count_half_after_three_uses_for_each_model_known():
    policy = ReloadCostPerByte()
    a, b = Usage("a", size_bytes=10, reload_s=4.0), Usage("b", size_bytes=10, reload_s=4.0)
    policy.used(a)
    assert policy.rank(a) == (0.4, 0)
    for _ in range(6):  # of two models
        policy.used(b)
    assert policy.rank(a) == (pytest.approx(0.2), 0)
    policy.used(a)  # seven uses later
    assert policy.rank(a) == (pytest.approx((0.5 ** (7 / 6) + 1) * 0.4), 0)


def test_yesterdays_favourite_makes_room_where_counting_uses_would_keep_it():
    for policy, order in ((ReloadCostPerByte(), "acb"), (LeastCommonlyUsed(), "cab")):
        shelf = Shelf(30, policy)
        shelf.fill("a")
        shelf.use("aaa")  # f = 2.9
        shelf.fill("b")
        shelf.use("b" * 19)
        shelf.fill("c")  # 21 uses later, of three models: a's f = 2.9 * 2 ** (-21 / 9) = 0.6, c's is 1
        assert order_of_eviction(shelf) == order


def test_uses_before_an_eviction_count_on_in_the_reload_cost():
    shelf = Shelf(20, ReloadCostPerByte())
    shelf.fill("a")
    shelf.use("aaaa")
    shelf.evict(shelf.entries[address("a")])
    shelf.fill("a")
    shelf.fill("b")
    assert order_of_eviction(shelf) == "ba"


def test_where_nothing_costs_anything_the_least_recently_used_goes():
    shelf = Shelf(30, ReloadCostPerByte())
    for name in "abc":
        shelf.fill(name, 10, reload_s=0.0)
    shelf.use("aaab")
    assert order_of_eviction(shelf) == "cab"


def test_an_empty_model_divides_by_no_zero():
    shelf = Shelf(30, ReloadCostPerByte())
    shelf.fill("a", 0, 1.0)
    shelf.fill("b", 10, 1.0)
    assert order_of_eviction(shelf) == "b"  # which is enough


def test_a_policy_forgets_the_models_used_longest_ago_when_it_knows_too_many():
    policy = ReloadCostPerByte()
    models = [Usage(key, size_bytes=1, reload_s=1.0) for key in range(REMEMBERED_KEYS + 1)]
    for model in models:
        policy.used(model)
    assert policy.rank(models[0]) == (0.0, 0)
    assert policy.rank(models[1])[0] > 0


def test_policies_have_the_names_of_the_command_line():
    assert {
        "reload-cost": ReloadCostPerByte,
        "lru": LeastRecentlyUsed,
        "lcu": LeastCommonlyUsed,
    } == POLICIES
