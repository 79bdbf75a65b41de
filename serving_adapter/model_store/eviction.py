"""Whom to evict from a full tier (TrIMS, section 4.1.2): each policy is a rank; the lowest goes first.

| symbol | meaning |
|---|---|
| f | uses of the entry so far, those before an earlier eviction included |
| c | seconds that loading it again would take |
| b | its bytes |
| L | the age of the tier: the priority of what was evicted last |
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol


@dataclass
class Usage:
    """What a policy may know of an entry."""

    key: Hashable
    size_bytes: int
    reload_s: float
    uses: int = 0
    last_use: int = 0  # counts the tier's uses, no clock
    priority: float = 0.0  # of ReloadCostPerByte


class EvictionPolicy(Protocol):
    def used(self, usage: Usage) -> None:
        """An entry was used; its `uses` and `last_use` are set already."""

    def evicted(self, usage: Usage) -> None:
        """The entry has just been evicted to make room."""

    def rank(self, usage: Usage) -> float | tuple[float, ...]:
        """The entry with the lowest rank is evicted first."""


class LeastRecentlyUsed:
    def used(self, usage: Usage) -> None: ...

    def evicted(self, usage: Usage) -> None: ...

    def rank(self, usage: Usage) -> float:
        return usage.last_use


class LeastCommonlyUsed:
    """The least used first; of those the one that was used longest ago."""

    def used(self, usage: Usage) -> None: ...

    def evicted(self, usage: Usage) -> None: ...

    def rank(self, usage: Usage) -> tuple[float, float]:
        return usage.uses, usage.last_use


class ReloadCostPerByte:
    """Keeps what would cost most to load again for each byte that it takes: priority L + f·c / b.

    This is GreedyDual-Size-Frequency (Cherkasova 1998) with measured reload times. L ages the entries: one
    that was popular once falls behind by what is evicted since its last use.
    """

    def __init__(self) -> None:
        self.age = 0.0

    def used(self, usage: Usage) -> None:
        usage.priority = self.age + usage.uses * usage.reload_s / max(1, usage.size_bytes)

    def evicted(self, usage: Usage) -> None:
        self.age = max(self.age, usage.priority)

    def rank(self, usage: Usage) -> tuple[float, float]:
        return usage.priority, usage.last_use


POLICIES: dict[str, type[EvictionPolicy]] = {
    "reload-cost": ReloadCostPerByte,
    "lru": LeastRecentlyUsed,
    "lcu": LeastCommonlyUsed,
}
