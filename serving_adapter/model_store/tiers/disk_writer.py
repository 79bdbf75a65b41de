"""Models from remote repositories, written to the local disk after their clients have the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from serving_adapter.model_store.blocking_calls import BlockingCalls
from serving_adapter.model_store.errors import NoRoom
from serving_adapter.model_store.sharing_rule import SharingCosts
from serving_adapter.model_store.tiers.disk import Disk, content_hash
from serving_adapter.model_store.tiers.host_memory import HostMemory, Weights
from serving_adapter.model_store.tiers.reclaimer import Reclaimer
from serving_adapter.model_store.tiers.tier import Address, TierEntry

log = logging.getLogger(__name__)

WRITE_DELAY_S = 0.05  # the disk is written after the answer, not beside it


class DiskWriter:
    """Fills the disk tier from host memory. A model that is being written stays in host memory."""

    def __init__(
        self,
        host: HostMemory,
        disk: Disk,
        reclaimer: Reclaimer,
        blocking_calls: BlockingCalls,
        costs: Callable[[], SharingCosts],
    ) -> None:
        self._host, self._disk, self._reclaimer = host, disk, reclaimer
        self._blocking_calls = blocking_calls
        self._costs = costs
        self._writes: set[asyncio.Task[None]] = set()

    def write_later(self, address: Address, entry: TierEntry[Weights]) -> None:
        """Refers to the entry at once, so that nobody can evict it before it is written."""
        entry.references += 1
        task = asyncio.ensure_future(self._write(address, entry))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def settled(self) -> None:
        """Waits until nothing is being written."""
        while self._writes:
            await asyncio.gather(*self._writes)

    async def _write(self, address: Address, entry: TierEntry[Weights]) -> None:
        weights = entry.content
        size_bytes = len(weights.header.raw) + weights.header.data_bytes
        from_remote_s = entry.usage.reload_s
        try:
            self._disk.reserve(size_bytes)
            try:
                await asyncio.sleep(WRITE_DELAY_S)
                blob = await self._blocking_calls.run(content_hash, weights)
                with self._disk.kept(blob):
                    manifest = await self._blocking_calls.run(self._disk.write, address, weights, blob)
                    self._disk.admit(address, manifest, from_remote_s)
            finally:
                self._disk.unreserve(size_bytes)
            entry.usage.reload_s = size_bytes / self._costs().disk_bytes_per_s
        except (NoRoom, OSError) as error:
            log.warning("%s is not kept on disk: %s", address, error)
        finally:
            entry.references -= 1
            self._reclaimer.reclaim(self._host, entry)
