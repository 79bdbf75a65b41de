"""Misses: each model is brought into a tier once, however many clients ask for it at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from serving_adapter.model_store.account import Account, QuotaSpent
from serving_adapter.model_store.blocking_calls import BlockingCalls
from serving_adapter.model_store.client_file import ClientFile
from serving_adapter.model_store.cuda import CudaError
from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.loader import HostLoader
from serving_adapter.model_store.tiers import gpu_memory
from serving_adapter.model_store.tiers.gpu_memory import GpuMemory
from serving_adapter.model_store.tiers.host_memory import HostMemory
from serving_adapter.model_store.tiers.reclaimer import Reclaimer
from serving_adapter.model_store.tiers.tier import Address, Tier


class SharedLoads:
    """The loads in progress. A load goes on when the client that began it goes."""

    def __init__(
        self,
        host: HostMemory,
        gpu: GpuMemory | None,
        loader: HostLoader,
        reclaimer: Reclaimer,
        blocking_calls: BlockingCalls,
    ) -> None:
        self._host, self._gpu = host, gpu
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
        load = self._loader.load if is_reading else self._copy_to_gpu
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

    async def _copy_to_gpu(self, account: Account, address: Address, file: ClientFile | None) -> str:
        assert self._gpu is not None
        entry, found_in = self._host.look_up(address), self._host.name
        while entry is None:
            found_in = await self.load(account, self._host, address, file)
            entry = self._host.entries.get(address)
        with self._reclaimer.reference(self._host, entry):
            needed = gpu_memory.needed_bytes(entry.content)
            start_s = time.monotonic()
            self._gpu.reserve(needed)
            try:
                model = await self._blocking_calls.run(self._gpu.copy, entry.content)
            except CudaError as error:
                raise StoreError(f"{address} cannot be copied to the GPU: {error}") from None
            finally:
                self._gpu.unreserve(needed)
            self._gpu.admit(address, model, time.monotonic() - start_s)
        return found_in
