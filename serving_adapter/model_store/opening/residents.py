"""What an operator does with the models that are resident: find them, pin them, evict them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from serving_adapter.model_store.errors import NoRoom, StoreError, UnknownModel
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.tiers.host_memory import HostMemory, Weights
from serving_adapter.model_store.tiers.reclaimer import Reclaimer
from serving_adapter.model_store.tiers.tier import Address, Tier, TierEntry


class Residents:
    """The models in all tiers. Models are pinned in host memory only."""

    def __init__(self, tiers: Sequence[Tier[Any]], host: HostMemory, reclaimer: Reclaimer) -> None:
        self._tiers, self._host, self._reclaimer = tiers, host, reclaimer

    def label(self, address: Address) -> str:
        """What to call a model: its name, or for a file what its client called it."""
        entry = self._host.entries.get(address)
        return entry.content.label if entry is not None and entry.content.label else address.name

    def matching(self, address: Address) -> list[Address]:
        """The models that an address may mean: a file by its label; any version if it has none."""
        known = {a for tier in self._tiers for a in tier.entries}
        return [
            a
            for a in known
            if a.namespace == address.namespace
            and address.name in (a.name, self.label(a))
            and address.version in ("", a.version)
        ]

    def in_host_memory(self, address: Address) -> list[TierEntry[Weights]]:
        """Those of the matching models that are in host memory."""
        return [self._host.entries[a] for a in self.matching(address) if a in self._host.entries]

    def to_unpin(self, address: Address) -> list[TierEntry[Weights]]:
        """The pinned ones that it means: where it has no version, of a repository's model only the newest."""
        pinned = [entry for entry in self.in_host_memory(address) if entry.pinned]
        versions = [entry for entry in pinned if entry.usage.key.name == address.name]
        if address.version or not versions:
            return pinned
        newest = max(versions, key=lambda entry: _as_number(entry.usage.key.version))
        return [entry for entry in pinned if entry is newest or entry not in versions]

    def pin(self, account: Account, entry: TierEntry[Weights]) -> None:
        if not entry.pinned:
            account.charge(self._host.name, entry.usage.key, entry.usage.size_bytes)
            entry.pinned = True

    def unpin(self, account: Account, entry: TierEntry[Weights]) -> None:
        if entry.pinned:
            account.release(self._host.name, entry.usage.key)
            entry.pinned = False
            self._reclaimer.reclaim(self._host, entry)

    def evict(self, address: Address, tier_name: str) -> None:
        """Evicts the matching models from that tier, or from all if it is empty; all of them or none."""
        tiers = [tier for tier in self._tiers if tier_name in ("", tier.name)]
        if not tiers:
            raise StoreError(
                f"there is no tier {tier_name[:40]!r}; there are {', '.join(t.name for t in self._tiers)}"
            )
        entries = [(t, t.entries[a]) for t in tiers for a in self.matching(address) if a in t.entries]
        if not entries:
            raise UnknownModel(f"no such model is resident: {address.name[:200]!r}")
        busy = [entry for _, entry in entries if entry.in_use]
        if busy:
            raise NoRoom(f"{busy[0].usage.key} is in use or pinned, so it is not evicted")
        for tier, entry in entries:
            tier.evict(entry)


def _as_number(version: str) -> int:
    return int(version) if version.isdecimal() else -1
