"""The model resource manager (TrIMS, section 4.1): opens models through the tiers and counts references.

A request finds the model in the highest tier that has it. A miss fills every tier on its way up (the state
diagram of section 4.1.1):

    in GPU memory ............................................... refer to it
    in host memory ........ copy it to the GPU, if asked for .... refer to it
    on the local disk ..... read into host memory, and on as above
    in a remote repository  read into host memory and on as above; then written to the disk

| part | does |
|---|---|
| `SharedLoads` | brings a model into a tier, once for all who ask |
| `HostLoader` | reads a model into host memory |
| `DiskWriter` | writes a model to the local disk, after the answer |
| `HugePages` | puts its pages together, after the answer |
| `PageLocks` | locks its pages for copies to a GPU |
| `Repositories` | knows the remote repositories and the newest versions |
| `Reclaimer` | evicts what nobody uses |
| `Residents` | does what an operator asks for |

All state belongs to one event loop. Reading, hashing and copying run in threads and touch none of it. A
client's file may wait for its file system, so everything that is done with it runs in threads too.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from serving_adapter.model_store.blocking_calls import BlockingCalls
from serving_adapter.model_store.cuda import CudaError
from serving_adapter.model_store.errors import NoRoom, StoreError, UnknownModel
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.opening.client_file import FILE_MODEL_NAME, ClientFile
from serving_adapter.model_store.opening.loader import HostLoader
from serving_adapter.model_store.opening.loads import SharedLoads
from serving_adapter.model_store.opening.residents import Residents
from serving_adapter.model_store.sharing_rule import SharingCosts
from serving_adapter.model_store.tiers import remote
from serving_adapter.model_store.tiers.disk import Disk
from serving_adapter.model_store.tiers.disk_writer import DiskWriter
from serving_adapter.model_store.tiers.gpu_memory import GpuMemory, OnDevice
from serving_adapter.model_store.tiers.host_memory import HostMemory, Weights
from serving_adapter.model_store.tiers.huge_pages import HugePages
from serving_adapter.model_store.tiers.page_locks import PageLocking, PageLocks
from serving_adapter.model_store.tiers.reclaimer import Reclaimer
from serving_adapter.model_store.tiers.remote import Remote
from serving_adapter.model_store.tiers.repositories import Repositories
from serving_adapter.model_store.tiers.tier import Address, Tier, TierEntry
from serving_adapter.model_store.weights_file import FORMATS, header_reader

LAST_WRITES_TIMEOUT_S = 10.0  # for the writes to disk of a store that ends
FIRST_GPU = "cuda:0"


class Lease(NamedTuple):
    """A reference that a client holds."""

    account: Account
    address: Address
    tier: Tier[Any]
    entry: TierEntry[Any]
    intermediate_bytes: int  # of the client, beside the weights


class Opened(NamedTuple):
    """What `open` gives: the lease's name, the model, and the tier that had it."""

    lease: str
    model: Weights | OnDevice
    version: str
    found_in: str


class ModelStore:
    """Hands out references to models. There are no `gpus` where there is no CUDA.

    `page_locking` is what the devices have in common: host memory that is locked for one is so for all.
    """

    def __init__(
        self,
        host: HostMemory,
        disk: Disk,
        remotes: Sequence[Remote],
        costs: SharingCosts,
        *,
        gpus: Sequence[GpuMemory] = (),
        page_locking: PageLocking | None = None,
        granularity: str = "auto",
        eager_reclaim: bool = False,
    ) -> None:
        self.host, self.disk = host, disk
        self.gpus = {gpu.device_name: gpu for gpu in gpus}
        self.costs = costs
        self._leases: dict[str, Lease] = {}
        self._blocking_calls = BlockingCalls()
        self._reclaimer = Reclaimer(eager_reclaim)
        self._huge_pages = HugePages(host, self._blocking_calls)
        self._page_locks = None if page_locking is None else PageLocks(page_locking)
        if self._page_locks is not None:
            host.on_segment_freed = self._page_locks.unlock
        self.repositories = Repositories(remotes, self._blocking_calls)
        self._disk_writer = DiskWriter(host, disk, self._reclaimer, self._blocking_calls, lambda: self.costs)
        loader = HostLoader(
            host,
            disk,
            self.repositories,
            self._disk_writer,
            self._huge_pages,
            self._blocking_calls,
            lambda: self.costs,
            granularity,
        )
        self.loads = SharedLoads(host, gpus, self._page_locks, loader, self._reclaimer, self._blocking_calls)
        self._residents = Residents(self.tiers, host, self._reclaimer)

    @property
    def tiers(self) -> list[Tier[Any]]:
        """The tiers of this machine, from the top."""
        return [*self.gpus.values(), self.host, self.disk]

    @property
    def references(self) -> int:
        return len(self._leases)

    # --- open and close ----------------------------------------------------------------------------

    async def open(
        self, account: Account, address: Address, device: str = "cpu", intermediate_bytes: int = 0
    ) -> Opened:
        """Opens a model of the repositories; an empty version is the newest.

        On a GPU, `intermediate_bytes` are kept free for what the client computes with the model, as long as
        it refers to it. UnknownModel if nobody has it, NoRoom if a tier or the client's quota is too small.
        """
        remote.check_name(address)
        if address.namespace not in FORMATS:
            raise UnknownModel(
                f"unknown namespace {address.namespace[:40]!r}; known are {', '.join(FORMATS)}"
            )
        if not address.version:
            async with account.reading:
                resident = (a for tier in self.tiers for a in tier.entries)
                version = await self.repositories.newest_version(address, resident)
                address = address._replace(version=version)
        return await self._open(account, address, device, None, intermediate_bytes)

    async def open_file(
        self,
        account: Account,
        namespace: str,
        label: str,
        descriptor: int,
        device: str = "cpu",
        intermediate_bytes: int = 0,
    ) -> Opened:
        """Opens the weights in a file that the client has opened itself, so it reads nothing that it may not.

        The file is known by what `fstat` says of it. One that has no name cannot be asked for again, so its
        model goes with its last reference. The descriptor is the store's now.
        """
        file = ClientFile(descriptor, label)
        try:
            header_reader(namespace)
            await asyncio.wrap_future(account.file_calls.submit(file.look))
            address = Address(namespace, FILE_MODEL_NAME, file.version)
            return await self._open(account, address, device, file, intermediate_bytes)
        finally:
            # The file may be read to its end although this client has gone meanwhile.
            address = Address(namespace, FILE_MODEL_NAME, file.version)
            self.loads.when_done(self.host, address, lambda: account.close([file.let_go()]))

    async def _open(
        self,
        account: Account,
        address: Address,
        device: str,
        file: ClientFile | None,
        intermediate_bytes: int,
    ) -> Opened:
        tier, found_in = self._tier_of(device), ""
        entry = tier.look_up(address)
        if entry is not None:
            found_in = tier.name
        while entry is None:  # again only if it was evicted before this task was resumed
            found_in = await self.loads.load(account, tier, address, file)
            entry = tier.entries.get(address)
        try:
            account.charge(tier.name, address, entry.usage.size_bytes)
        except NoRoom:
            self._reclaimer.reclaim(tier, entry)
            raise
        entry.references += 1
        lease = secrets.token_hex(8)
        self._leases[lease] = Lease(account, address, tier, entry, 0)
        if intermediate_bytes and isinstance(tier, GpuMemory):  # host memory is the client's own affair
            await self._keep_free(lease, tier, intermediate_bytes)
        return Opened(lease, entry.content, address.version, found_in)

    async def _keep_free(self, lease: str, gpu: GpuMemory, size_bytes: int) -> None:
        """Keeps room for what a client computes with its model, for which unused ones go (section 4.1.1)."""
        held = self._leases[lease]
        try:
            gpu.reserve(size_bytes, held.account.check)
        except NoRoom:
            self._release(lease)
            raise NoRoom(
                f"{held.address} fits, but not the {size_bytes:,} bytes of intermediate results beside it: "
                f"they are more than the client's quota or the {gpu.name} tier leaves"
            ) from None
        held.account.held_bytes += size_bytes
        self._leases[lease] = held._replace(intermediate_bytes=size_bytes)
        with contextlib.suppress(CudaError):  # others use the device too, and may have taken that room
            while await self._blocking_calls.run(gpu.free_bytes) < size_bytes and gpu.evict_one():
                pass

    def close(self, account: Account, lease: str) -> None:
        """Gives a reference back; StoreError if it is not the client's."""
        held = self._leases.get(lease)
        if held is None or held.account is not account:
            raise StoreError(f"there is no lease {lease[:40]!r} of this client")
        self._release(lease)

    def kept(self, lease: str) -> contextlib.AbstractContextManager[None]:
        """The lease's model stays meanwhile, even if its client closes it: its descriptors are being sent."""
        held = self._leases[lease]
        return self._reclaimer.reference(held.tier, held.entry)

    def is_on_gpu(self, lease: str) -> bool:
        held = self._leases.get(lease)
        return held is not None and isinstance(held.tier, GpuMemory)

    def forget(self, leases: Sequence[str]) -> None:
        """Gives back what a client that is gone still held."""
        for lease in leases:
            if lease in self._leases:
                self._release(lease)

    def _release(self, lease: str) -> None:
        account, address, tier, entry, intermediate_bytes = self._leases.pop(lease)
        account.release(tier.name, address)
        account.held_bytes -= intermediate_bytes
        entry.references -= 1
        tier.unreserve(intermediate_bytes)
        self._reclaimer.reclaim(tier, entry)

    def _tier_of(self, device: str) -> Tier[Any]:
        if device == "cpu":
            return self.host
        gpu = self.gpus.get(FIRST_GPU if device == "cuda" else device)
        if gpu is not None:
            return gpu
        offered = " or ".join(map(repr, ["cpu", *self.gpus]))
        hint = "" if self.gpus else " (rrl-store serve --gpu-bytes adds GPUs)"
        raise StoreError(f"the store cannot open models on {device[:20]!r}; it can on {offered}{hint}")

    # --- what an operator does ---------------------------------------------------------------------

    async def pin(self, account: Account, address: Address, pinned: bool) -> None:
        """Loads a model and keeps it in host memory until it is unpinned; pins count against the account.

        Without a version, the newest is pinned, and of the pinned ones the newest is unpinned.
        """
        resident = self._residents.in_host_memory(address)
        if not pinned:
            for entry in self._residents.to_unpin(address):
                self._residents.unpin(account, entry)
        elif any(entry.usage.key.name == FILE_MODEL_NAME for entry in resident):
            for entry in resident:  # nobody could load a client's file by its name
                self._residents.pin(account, entry)
        else:
            opened = await self.open(account, address)
            try:
                self._residents.pin(account, self._leases[opened.lease].entry)
            finally:
                self._release(opened.lease)

    def evict(self, address: Address, tier_name: str = "") -> None:
        """Evicts a model from a tier or all; NoRoom if it is in use, UnknownModel if it is not there."""
        self._residents.evict(address, tier_name)

    def label(self, address: Address) -> str:
        """What to call a model: its name, or for a file what its client called it."""
        return self._residents.label(address)

    # --- its end -----------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Waits until nothing is being done that follows answers: writing to disk, putting pages together."""
        await self._disk_writer.settled()
        await self._huge_pages.settled()

    async def close_all(self) -> None:
        """Ends the store: finishes its writes to disk, and gives up what it is loading."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.settled(), LAST_WRITES_TIMEOUT_S)
        self.loads.cancel()
        self._blocking_calls.shut_down()
        self.host.close()
        if self._page_locks is not None:
            self._page_locks.close()
