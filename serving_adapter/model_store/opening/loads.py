"""Misses: each model is brought into a tier once, however many clients ask for it at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from serving_adapter.model_store.blocking_calls import BlockingCalls
from serving_adapter.model_store.cuda import CudaError, CudaOutOfMemory
from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.opening.account import Account, QuotaSpent
from serving_adapter.model_store.opening.client_file import ClientFile
from serving_adapter.model_store.opening.loader import HostLoader
from serving_adapter.model_store.tiers import gpu_memory
from serving_adapter.model_store.tiers.disk import content_hash
from serving_adapter.model_store.tiers.gpu_memory import GpuMemory, OnDevice
from serving_adapter.model_store.tiers.host_memory import HostMemory, Weights
from serving_adapter.model_store.tiers.page_locks import PageLocks
from serving_adapter.model_store.tiers.reclaimer import Reclaimer
from serving_adapter.model_store.tiers.tier import Address, Tier, TierEntry

Load = Callable[[Account, Address, ClientFile | None], Coroutine[Any, Any, str]]


class SharedLoads:
    """The loads in progress. A load goes on when the client that began it goes."""

    def __init__(
        self,
        host: HostMemory,
        gpus: Sequence[GpuMemory],
        page_locks: PageLocks | None,
        loader: HostLoader,
        reclaimer: Reclaimer,
        blocking_calls: BlockingCalls,
    ) -> None:
        self._host, self._gpus, self._page_locks = host, gpus, page_locks
        self._loader, self._reclaimer = loader, reclaimer
        self._blocking_calls = blocking_calls
        self._tasks: dict[tuple[str, Address], asyncio.Task[str]] = {}

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    async def load(self, account: Account, tier: Tier[Any], address: Address, file: ClientFile | None) -> str:
        """Brings the model into the tier; several who ask at once wait for one load. Says who had it."""
        while True:
            try:
                return await self._load_once(account, tier, address, file)
            except QuotaSpent as refusal:
                if refusal.account is account:
                    raise  # otherwise the load was that client's, and this one may refer to more

    def when_done(self, tier: Tier[Any], address: Address, action: Callable[[], object]) -> None:
        """Calls `action` once that load has ended, or at once if there is none."""
        task = self._tasks.get((tier.name, address))
        if task is None:
            action()
        else:
            task.add_done_callback(lambda _: action())

    def cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _load_once(
        self, account: Account, tier: Tier[Any], address: Address, file: ClientFile | None
    ) -> str:
        """Does as `load`, but is refused too if whoever began the load may not refer to the model."""
        key = tier.name, address
        if key not in self._tasks:
            await self._start(account, tier, address, file)
        if key not in self._tasks:
            return tier.name  # while it waited for its turn, somebody else had it loaded
        self._reclaimer.want(tier, address)
        try:
            return await asyncio.shield(self._tasks[key])
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(self._reclaimer.reclaim_at, tier, address)
            raise
        finally:
            self._reclaimer.unwant(tier, address)

    async def _start(
        self, account: Account, tier: Tier[Any], address: Address, file: ClientFile | None
    ) -> None:
        """Waits for the client's turn first: who joins a load should not wait for its other files."""
        is_reading = tier is self._host
        if is_reading:
            await account.reading.acquire()
        if address in tier.entries or (tier.name, address) in self._tasks:
            if is_reading:
                account.reading.release()
            return
        load: Load = self._loader.load
        if isinstance(tier, GpuMemory):
            load = partial(self._copy_to_gpu, tier)
        task = asyncio.get_running_loop().create_task(load(account, address, file))
        self._tasks[tier.name, address] = task
        self._reclaimer.want(tier, address)
        task.add_done_callback(lambda task: self._ended(account, tier, address, task))

    def _ended(self, account: Account, tier: Tier[Any], address: Address, task: asyncio.Task[str]) -> None:
        del self._tasks[tier.name, address]
        self._reclaimer.unwant(tier, address)
        if tier is self._host:
            account.reading.release()
        self._reclaimer.reclaim_at(tier, address)
        if not task.cancelled():
            task.exception()  # whoever waits is told; a client that is gone is not missed

    async def _copy_to_gpu(
        self, gpu: GpuMemory, account: Account, address: Address, file: ClientFile | None
    ) -> str:
        """Copies the model to a device, from another one if it is there; the name of the tier that had it."""
        found = self._on_another(gpu, address)
        if found is not None:
            peer, on_peer = found
            with self._reclaimer.reference(peer, on_peer):
                model = on_peer.content
                if not self._admit_present(gpu, address, model, model.content, on_peer.usage.reload_s):
                    copy = partial(gpu.copy_of_peer, peer, model)
                    await self._admit_copy(gpu, address, model.size_bytes, copy)
            return peer.name
        entry, found_in = self._host.look_up(address), self._host.name
        while entry is None:
            found_in = await self.load(account, self._host, address, file)
            entry = self._host.entries.get(address)
        with self._reclaimer.reference(self._host, entry):
            weights = entry.content
            content = await self._blocking_calls.run(content_hash, weights)
            if self._admit_present(gpu, address, weights, content, entry.usage.reload_s):
                return found_in
            mapped = {} if self._page_locks is None else await self._page_locks.lock(weights)
            needed_bytes = gpu_memory.needed_bytes(weights)
            await self._admit_copy(gpu, address, needed_bytes, partial(gpu.copy, weights, content, mapped))
        return found_in

    def _on_another(self, gpu: GpuMemory, address: Address) -> tuple[GpuMemory, TierEntry[OnDevice]] | None:
        for other in self._gpus:
            if other is not gpu and address in other.entries:
                entry = other.look_up(address)
                return None if entry is None else (other, entry)
        return None

    def _admit_present(
        self, gpu: GpuMemory, address: Address, model: Weights | OnDevice, content: str, reload_s: float
    ) -> bool:
        """Adds the model, which takes no room, where the device has its content under another name."""
        present = gpu.with_content(content)
        if present is not None:
            gpu.admit(address, replace(present, transient=model.transient), reload_s)
        return present is not None

    async def _admit_copy(
        self, gpu: GpuMemory, address: Address, needed_bytes: int, copy: Callable[[], OnDevice]
    ) -> None:
        """Makes room in the tier, copies the model, and adds it."""
        start_s = time.monotonic()
        gpu.reserve(needed_bytes)
        try:
            model = await self._copied(gpu, copy)
        except CudaError as error:
            raise StoreError(f"{address} cannot be copied to the GPU: {error}") from None
        finally:
            gpu.unreserve(needed_bytes)
        gpu.admit(address, model, time.monotonic() - start_s)

    async def _copied(self, gpu: GpuMemory, copy: Callable[[], OnDevice]) -> OnDevice:
        """Copies; where others have taken the device's memory, unused models go until there is room again."""
        while True:
            try:
                return await self._blocking_calls.run(copy)
            except CudaOutOfMemory:
                if not gpu.evict_one():
                    raise
