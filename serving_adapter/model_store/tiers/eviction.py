"""Whom to evict from a full tier (TrIMS, section 4.1.2): each policy is a rank; the lowest goes first.

| symbol | meaning |
|---|---|
| f | uses of the entry, those before an earlier eviction included |
| c | seconds that loading it again would take |
| b | its bytes |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

REMEMBERED_KEYS = 1_000  # evicted models are remembered too, so that they are known when they return


@dataclass
class Usage:
    """What a policy may know of an entry."""

    key: Any  # what the tier calls it
    size_bytes: int
    reload_s: float
    uses: int = 0
    last_use: int = 0  # counts the tier's uses, no clock


class EvictionPolicy(Protocol):
    def used(self, usage: Usage) -> None:
        """An entry was used; its `uses` and `last_use` are set already."""

    def rank(self, usage: Usage) -> float | tuple[float, ...]:
        """The entry with the lowest rank is evicted first."""


class LeastRecentlyUsed:
    def used(self, usage: Usage) -> None: ...

    def rank(self, usage: Usage) -> float:
        return usage.last_use


class LeastCommonlyUsed:
    """The least used first; of those the one that was used longest ago."""

    def used(self, usage: Usage) -> None: ...

    def rank(self, usage: Usage) -> tuple[float, float]:
        return usage.uses, usage.last_use


class ReloadCostPerByte:
    """Keeps what would cost most to load again for each byte that it takes: rank f·c / b.

    f counts recent uses more than old ones: it halves with every `HALF_LIFE` uses of the tier for each model
    known, so that yesterday's favourites make room. Uses before an eviction count on.
    """

    HALF_LIFE = 3.0

    def __init__(self) -> None:
        self._uses = 0
        self._popularity: dict[Any, tuple[float, int]] = {}  # f, and the use at which it was that

    def used(self, usage: Usage) -> None:
        self._uses += 1
        self._popularity[usage.key] = (self._recent_uses(usage) + 1.0, self._uses)
        if len(self._popularity) > REMEMBERED_KEYS:
            del self._popularity[min(self._popularity, key=lambda key: self._popularity[key][1])]

    def rank(self, usage: Usage) -> tuple[float, float]:
        return self._recent_uses(usage) * usage.reload_s / max(1, usage.size_bytes), usage.last_use

    def _recent_uses(self, usage: Usage) -> float:
        uses, at = self._popularity.get(usage.key, (0.0, self._uses))
        return uses * 0.5 ** ((self._uses - at) / (self.HALF_LIFE * max(1, len(self._popularity))))


POLICIES: dict[str, type[EvictionPolicy]] = {
    "reload-cost": ReloadCostPerByte,
    "lru": LeastRecentlyUsed,
    "lcu": LeastCommonlyUsed,
}
