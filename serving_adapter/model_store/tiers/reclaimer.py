"""Eviction of models that nobody uses any more, as soon as their last user lets go of them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from serving_adapter.model_store.tiers.gpu_memory import OnDevice
from serving_adapter.model_store.tiers.host_memory import Weights
from serving_adapter.model_store.tiers.tier import Address, Tier, TierEntry


class Reclaimer:
    """Evicts unused models that could not be asked for again; with `eager`, every unused model.

    A model that somebody loads, or waits for, is wanted although nobody refers to it yet.
    """

    def __init__(self, eager: bool) -> None:
        self._eager = eager
        self._wanted: Counter[tuple[str, Address]] = Counter()

    def want(self, tier: Tier[Any], address: Address) -> None:
        """The model stays in the tier until `unwant`, once it is there."""
        self._wanted[tier.name, address] += 1

    def unwant(self, tier: Tier[Any], address: Address) -> None:
        """Ends one `want`. Nothing is evicted by it."""
        key = tier.name, address
        self._wanted[key] -= 1
        if not self._wanted[key]:
            del self._wanted[key]

    @contextlib.contextmanager
    def reference(self, tier: Tier[Any], entry: TierEntry[Any]) -> Iterator[None]:
        """The model stays meanwhile, whoever else gives it back."""
        entry.references += 1
        try:
            yield
        finally:
            entry.references -= 1
            self.reclaim(tier, entry)

    def reclaim(self, tier: Tier[Any], entry: TierEntry[Any]) -> None:
        """Evicts the entry if nobody uses or wants it, and it is not worth keeping."""
        cannot_return = isinstance(entry.content, (Weights, OnDevice)) and entry.content.transient
        is_wanted = entry.in_use or self._wanted[tier.name, entry.usage.key]
        is_here = tier.entries.get(entry.usage.key) is entry
        if is_here and not is_wanted and (self._eager or cannot_return):
            tier.evict(entry)

    def reclaim_at(self, tier: Tier[Any], address: Address) -> None:
        """Does as `reclaim`, for a model that may not be in the tier: its clients may have gone meanwhile."""
        entry = tier.entries.get(address)
        if entry is not None:
            self.reclaim(tier, entry)
