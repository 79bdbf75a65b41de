"""What one client refers to, and how much it may."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from serving_adapter.model_store.errors import NoRoom
from serving_adapter.model_store.opening.client_file import OneAtATime
from serving_adapter.model_store.tiers.tier import Address

MAX_READS_PER_CLIENT = 2  # at once; further ones wait, so a client with slow files leaves threads to others


class QuotaSpent(NoRoom):
    """One client's quota is spent, which says nothing of what others may."""

    def __init__(self, account: Account, sentence: str) -> None:
        super().__init__(sentence)
        self.account = account


@dataclass
class Account:
    """What one client refers to, and how much it may; a client is a process, however often it connects."""

    quota_bytes: int
    max_leases: int = 10_000
    leases: int = 0
    held_bytes: int = 0
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_READS_PER_CLIENT))
    file_calls: OneAtATime = field(default_factory=OneAtATime)
    _held: dict[tuple[str, Address], tuple[int, int]] = field(default_factory=dict)  # by tier, too

    def check(self, size_bytes: int) -> None:
        """QuotaSpent if the client may not refer to that many bytes more."""
        if self.held_bytes + size_bytes > self.quota_bytes:
            raise QuotaSpent(
                self,
                f"this client refers to {self.held_bytes:,} bytes and may refer to {self.quota_bytes:,}; the "
                f"model has {size_bytes:,}: close others, or start the store with a larger --client-quota",
            )

    def charge(self, tier: str, address: Address, size_bytes: int) -> None:
        """NoRoom if that would be more than the client may hold. Each tier's copy of a model counts."""
        references, charged_bytes = self._held.get((tier, address), (0, 0))
        if self.leases >= self.max_leases:
            raise NoRoom(f"this client has {self.leases:,} models open, the most it may; it must close some")
        if not references:
            self.check(size_bytes)
        self.leases += 1
        self.held_bytes += size_bytes - charged_bytes
        self._held[tier, address] = (references + 1, size_bytes)

    def release(self, tier: str, address: Address) -> None:
        references, size_bytes = self._held.pop((tier, address))
        self.leases -= 1
        if references > 1:
            self._held[tier, address] = (references - 1, size_bytes)
        else:
            self.held_bytes -= size_bytes

    def close(self, descriptors: Iterable[int]) -> None:
        """Closes what the client has handed over, without waiting for it."""
        for descriptor in descriptors:
            self.file_calls.submit(os.close, descriptor)
