"""The model resource manager (TrIMS, section 4.1): opens models through the tiers and counts references.

A request finds the model in the highest tier that has it; a miss fills every tier on its way up (the state
diagram of section 4.1.1):

    in GPU memory ............................................... refer to it
    in host memory ........ copy it to the GPU, if asked for .... refer to it
    on the local disk ..... read into host memory, and on as above
    in a remote repository  read into host memory and on as above; then written to the disk

All state belongs to one event loop. Reading, hashing and copying run in threads and touch none of it; so does
whatever is done with a client's file, which may wait for its file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from serving_adapter.model_store import gpu_memory, remote
from serving_adapter.model_store.account import Account, QuotaSpent
from serving_adapter.model_store.client_file import ClientFile
from serving_adapter.model_store.cuda import CudaError
from serving_adapter.model_store.disk import Disk, content_hash
from serving_adapter.model_store.errors import NoRoom, StoreError, UnknownModel
from serving_adapter.model_store.gpu_memory import GpuMemory, OnDevice
from serving_adapter.model_store.host_memory import (
    CHUNK_BYTES,
    HostMemory,
    Placement,
    Weights,
    fill,
    place,
    resident_bytes,
)
from serving_adapter.model_store.remote import Remote
from serving_adapter.model_store.sharing_rule import SharingCosts
from serving_adapter.model_store.tier import Address, Entry, Tier
from serving_adapter.model_store.weights_file import FORMATS, Header, header_reader

log = logging.getLogger(__name__)

NEWEST_VERSION_KEPT_S = 30.0
THREADS = 32
LAST_WRITES_S = 10.0  # that a store which ends gives its writes to disk
ANSWER_FIRST_S = 0.05  # the disk is written after the answer, not beside it
DAMAGED = (errno.ENOENT, errno.EIO)  # errors of a cached file; others are not its fault
FILE_NAME = ":file"  # of models opened by a descriptor; no name that a client could ask for
GPU_NAMES = ("cuda:0", "cuda")  # one GPU, the first
SMALLEST_OWN_TENSOR_BYTES = 1 << 16  # of granularity "tensor", which does not ask what pays

Result = TypeVar("Result")


class Lease(NamedTuple):
    """A reference that a client holds."""

    account: Account
    address: Address
    tier: Tier[Any]
    entry: Entry[Any]


class Opened(NamedTuple):
    """What `open` gives: the lease's name, the model, and the tier that had it."""

    lease: str
    model: Weights | OnDevice
    version: str
    found_in: str


class ModelStore:
    """`tiers` are given from the top; `gpu` is None where there is no CUDA."""

    def __init__(
        self,
        host: HostMemory,
        disk: Disk,
        remotes: Sequence[Remote],
        costs: SharingCosts,
        *,
        gpu: GpuMemory | None = None,
        granularity: str = "auto",
        eager_reclaim: bool = False,
    ) -> None:
        self.host, self.disk, self.gpu, self.remotes = host, disk, gpu, list(remotes)
        self.costs = costs
        self._granularity, self._eager_reclaim = granularity, eager_reclaim
        self.remote_hits = self.remote_misses = 0
        self._leases: dict[str, Lease] = {}
        self._fills: dict[tuple[str, Address], asyncio.Task[str]] = {}
        self._writes: set[asyncio.Task[None]] = set()
        self._awaited: Counter[tuple[str, Address]] = Counter()  # openers that wait for a filling
        self._newest: dict[tuple[str, str], tuple[float, str]] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="rrl-store")

    @property
    def tiers(self) -> list[Tier[Any]]:
        return [tier for tier in (self.gpu, self.host, self.disk) if tier is not None]

    @property
    def references(self) -> int:
        return len(self._leases)

    # --- open and close ----------------------------------------------------------------------------

    async def open(self, account: Account, address: Address, device: str = "cpu") -> Opened:
        """Opens a model of the repositories; an empty version is the newest.

        UnknownModel if nobody has it, NoRoom if a tier or the client's quota is too small.
        """
        remote.check_name(address)
        if address.namespace not in FORMATS:
            raise UnknownModel(f"unknown namespace {address.namespace!r}; known are {', '.join(FORMATS)}")
        if not address.version:
            async with account.reading:
                address = address._replace(version=await self._newest_version(address))
        return await self._open(account, address, device, None)

    async def open_file(
        self, account: Account, namespace: str, label: str, descriptor: int, device: str = "cpu"
    ) -> Opened:
        """Opens the weights in a file that the client has opened itself, so it reads nothing that it may not.

        The file is known by what `fstat` says of it. One that has no name cannot be asked for again, so its
        model goes with its last reference. The descriptor is the store's now.
        """
        file = ClientFile(descriptor, label)
        try:
            header_reader(namespace)
            await asyncio.wrap_future(account.file_calls.submit(file.look))
            address = Address(namespace, FILE_NAME, file.version)
            return await self._open(account, address, device, file)
        finally:
            # It may be read to the end although this client has gone meanwhile.
            filling = self._fills.get((self.host.name, Address(namespace, FILE_NAME, file.version)))
            if filling is None:
                account.close([file.let_go()])
            else:
                filling.add_done_callback(lambda _: account.close([file.let_go()]))

    async def _open(self, account: Account, address: Address, device: str, file: ClientFile | None) -> Opened:
        tier, found_in = self._tier_of(device), ""
        entry = tier.look_up(address)
        if entry is not None:
            found_in = tier.name
        while entry is None:  # again only if it was evicted before this task was resumed
            found_in = await self._filled(account, tier, address, file)
            entry = tier.entries.get(address)
        try:
            account.charge(address, entry.usage.size_bytes)
        except NoRoom:
            self._reclaim_if_done(tier, entry)
            raise
        entry.references += 1
        lease = secrets.token_hex(8)
        self._leases[lease] = Lease(account, address, tier, entry)
        return Opened(lease, entry.content, address.version, found_in)

    def close(self, account: Account, lease: str) -> None:
        """Gives a reference back; StoreError if it is not the client's."""
        held = self._leases.get(lease)
        if held is None or held.account is not account:
            raise StoreError(f"there is no lease {lease[:40]!r} of this client")
        self._release(lease)

    @contextlib.contextmanager
    def kept(self, lease: str) -> Iterator[None]:
        """The lease's model stays meanwhile, even if its client closes it: its descriptors are being sent."""
        _, _, tier, entry = self._leases[lease]
        entry.references += 1
        try:
            yield
        finally:
            entry.references -= 1
            self._reclaim_if_done(tier, entry)

    def forget(self, leases: Sequence[str]) -> None:
        """Gives back what a client that is gone still held."""
        for lease in leases:
            if lease in self._leases:
                self._release(lease)

    def _release(self, lease: str) -> None:
        account, address, tier, entry = self._leases.pop(lease)
        account.release(address)
        entry.references -= 1
        self._reclaim_if_done(tier, entry)

    def _reclaim_if_done(self, tier: Tier[Any], entry: Entry[Any]) -> None:
        """Evicts what nobody uses, if that is wanted at once or nobody could ask for it again."""
        cannot_return = isinstance(entry.content, (Weights, OnDevice)) and entry.content.transient
        key = tier.name, entry.usage.key
        is_wanted = entry.in_use or self._awaited[key] or key in self._fills
        is_here = tier.entries.get(entry.usage.key) is entry
        if is_here and not is_wanted and (self._eager_reclaim or cannot_return):
            tier.evict(entry)

    def _tier_of(self, device: str) -> Tier[Any]:
        if device == "cpu":
            return self.host
        if device in GPU_NAMES and self.gpu is not None:
            return self.gpu
        offered = "'cpu'" if self.gpu is None else f"'cpu' or {GPU_NAMES[0]!r}"
        raise StoreError(f"the store cannot open models on {device[:20]!r}; it can on {offered}")

    # --- misses ------------------------------------------------------------------------------------

    async def _filled(
        self, account: Account, tier: Tier[Any], address: Address, file: ClientFile | None
    ) -> str:
        """Brings the model into the tier; several who ask at once wait for one filling. Says who had it."""
        while True:
            try:
                return await self._filled_once(account, tier, address, file)
            except QuotaSpent as refusal:
                if refusal.account is account:
                    raise  # otherwise the filling was that client's, and this one may refer to more

    async def _filled_once(
        self, account: Account, tier: Tier[Any], address: Address, file: ClientFile | None
    ) -> str:
        """As `_filled`, but refused also where whoever began the filling may not refer to the model."""
        key = tier.name, address
        if key not in self._fills:
            await self._start_filling(account, tier, address, file)
        if key not in self._fills:
            return tier.name  # while it waited for its turn, somebody else had it filled
        self._awaited[key] += 1
        try:
            return await asyncio.shield(self._fills[key])
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(self._reclaim_unclaimed, tier, address)
            raise
        finally:
            self._awaited[key] -= 1
            if not self._awaited[key]:
                del self._awaited[key]

    async def _start_filling(
        self, account: Account, tier: Tier[Any], address: Address, file: ClientFile | None
    ) -> None:
        """Waits for the client's turn first: who joins a filling should not wait for its other files."""
        is_reading = tier is self.host
        if is_reading:
            await account.reading.acquire()
        if address in tier.entries or (tier.name, address) in self._fills:
            if is_reading:
                account.reading.release()
            return
        fill = self._fill_host if is_reading else self._fill_gpu
        task = asyncio.get_running_loop().create_task(fill(account, address, file))
        self._fills[tier.name, address] = task
        task.add_done_callback(lambda task: self._filling_ended(account, tier, address, task))

    def _reclaim_unclaimed(self, tier: Tier[Any], address: Address) -> None:
        """What was filled for clients that went meanwhile."""
        entry = tier.entries.get(address)
        if entry is not None:
            self._reclaim_if_done(tier, entry)

    def _filling_ended(
        self, account: Account, tier: Tier[Any], address: Address, task: asyncio.Task[str]
    ) -> None:
        del self._fills[tier.name, address]
        if tier is self.host:
            account.reading.release()
        self._reclaim_unclaimed(tier, address)
        if not task.cancelled():
            task.exception()  # whoever waits is told; a client that is gone is not missed

    async def _fill_gpu(self, account: Account, address: Address, file: ClientFile | None) -> str:
        assert self.gpu is not None
        entry, found_in = self.host.look_up(address), self.host.name
        while entry is None:
            found_in = await self._filled(account, self.host, address, file)
            entry = self.host.entries.get(address)
        entry.references += 1
        needed = gpu_memory.needed_bytes(entry.content)
        start_s = time.monotonic()
        try:
            self.gpu.reserve(needed)
            try:
                model = await self._in_thread(self.gpu.copy, entry.content)
            except CudaError as error:
                raise StoreError(f"{address} cannot be copied to the GPU: {error}") from None
            finally:
                self.gpu.unreserve(needed)
            self.gpu.admit(address, model, time.monotonic() - start_s)
        finally:
            entry.references -= 1
            self._reclaim_if_done(self.host, entry)
        return found_in

    async def _fill_host(self, account: Account, address: Address, file: ClientFile | None) -> str:
        if file is not None:
            await self._fill_from_file(account, address, file)
            return self.disk.name
        cached = self.disk.look_up(address)
        if cached is not None and await self._fill_from_disk(account, address, cached):
            return self.disk.name
        await self._fill_from_remote(account, address)
        return "remote"

    async def _fill_from_file(self, account: Account, address: Address, file: ClientFile) -> None:
        stream = io.BufferedReader(file.reader(), CHUNK_BYTES)
        weights, seconds = await self._read(account, address, stream, file)
        weights = replace(weights, label=file.label, transient=file.is_unnamed)
        self.host.admit(address, weights, seconds)

    async def _fill_from_disk(self, account: Account, address: Address, cached: Entry[Any]) -> bool:
        """False if the cached file is not what it was."""
        try:
            with self.disk.open(cached) as stream:
                weights, seconds = await self._read(account, address, stream)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in DAMAGED:
                raise StoreError(f"{address} cannot be read from the cache: {error}") from None
            self.disk.discard(cached)
            return False
        if content_hash(weights) != cached.content.blob:
            weights.close()
            self.disk.discard(cached)
            return False
        self.host.admit(address, weights, seconds)
        return True

    async def _fill_from_remote(self, account: Account, address: Address) -> None:
        for repository in self.remotes:
            try:
                stream = await self._in_thread(repository.open, address)
                if stream is None:
                    continue
                with stream:
                    weights, seconds = await self._read(account, address, stream)
            except StoreError:
                raise
            except Exception as error:  # drivers raise what their libraries do
                raise StoreError(f"{address} cannot be read from {repository.url}: {error}") from None
            self.remote_hits += 1
            entry = self.host.admit(address, weights, seconds)
            entry.references += 1
            self._keep(self._write_to_disk(address, entry))
            return
        self.remote_misses += 1
        where = ", ".join(repository.url for repository in self.remotes) or "there is no --remote"
        raise UnknownModel(f"no tier has the model {address} (remote repositories: {where})")

    async def _read(
        self, account: Account, address: Address, stream: Any, file: ClientFile | None = None
    ) -> tuple[Weights, float]:
        """Reads a model into host memory, of which room is made first; returns the seconds it took too."""
        start_s = time.monotonic()
        header = await self._in_thread(header_reader(address.namespace), stream)
        placements = place(header.tensors, self._smallest_object_bytes())
        needed = resident_bytes(placements)
        self.host.reserve(needed, account.check)
        try:
            weights = await self._in_thread(_filled_from, stream, header, placements, file)
        finally:
            self.host.unreserve(needed)
        return weights, time.monotonic() - start_s

    def _smallest_object_bytes(self) -> int | None:
        if self._granularity == "auto":
            return self.costs.smallest_object_bytes()
        return None if self._granularity == "model" else SMALLEST_OWN_TENSOR_BYTES

    async def _write_to_disk(self, address: Address, entry: Entry[Weights]) -> None:
        """Fills the disk tier after the client has its answer; the entry has been referred to for this."""
        weights = entry.content
        size_bytes = len(weights.header.raw) + weights.header.data_bytes
        from_remote_s = entry.usage.reload_s
        try:
            self.disk.reserve(size_bytes)
            try:
                await asyncio.sleep(ANSWER_FIRST_S)
                manifest = await self._in_thread(self.disk.write, address, weights)
            finally:
                self.disk.unreserve(size_bytes)
            self.disk.admit(address, manifest, from_remote_s)
            entry.usage.reload_s = size_bytes / self.costs.disk_bytes_per_s
        except (NoRoom, OSError) as error:
            log.warning("%s is not kept on disk: %s", address, error)
        finally:
            entry.references -= 1
            self._reclaim_if_done(self.host, entry)

    async def _newest_version(self, address: Address) -> str:
        key = (address.namespace, address.name)
        found_s, version = self._newest.get(key, (-NEWEST_VERSION_KEPT_S, ""))
        if time.monotonic() - found_s < NEWEST_VERSION_KEPT_S:
            return version
        for repository in self.remotes:
            try:
                newest = await self._in_thread(repository.newest_version, *key)
            except OSError:
                continue
            if newest is not None:
                self._newest[key] = (time.monotonic(), newest)
                return newest
        local = [
            a.version for tier in self.tiers for a in tier.entries if a[:2] == key and a.version.isdecimal()
        ]
        if not local:
            raise UnknownModel(f"no repository lists a version of {address.name!r}; name the version")
        return max(local, key=int)

    # --- what an operator does ---------------------------------------------------------------------

    async def pin(self, account: Account, address: Address, pinned: bool) -> None:
        """Loads a model and keeps it in host memory until it is unpinned; pins count against the account."""
        resident = [self.host.entries[a] for a in self._matching(address) if a in self.host.entries]
        if not pinned:
            for entry in resident:
                self._unpin(account, entry)
        elif any(entry.usage.key.name == FILE_NAME for entry in resident):  # nobody could load it by name
            for entry in resident:
                self._pin(account, entry)
        else:
            opened = await self.open(account, address)
            try:
                self._pin(account, self._leases[opened.lease].entry)
            finally:
                self._release(opened.lease)

    def _pin(self, account: Account, entry: Entry[Any]) -> None:
        if not entry.pinned:
            account.charge(entry.usage.key, entry.usage.size_bytes)
            entry.pinned = True

    def _unpin(self, account: Account, entry: Entry[Any]) -> None:
        if entry.pinned:
            account.release(entry.usage.key)
            entry.pinned = False
            self._reclaim_if_done(self.host, entry)

    def evict(self, address: Address, tier_name: str = "") -> None:
        """Evicts a model from a tier or all; NoRoom if it is in use, UnknownModel if it is not there."""
        tiers = [tier for tier in self.tiers if tier_name in ("", tier.name)]
        if not tiers:
            raise StoreError(
                f"there is no tier {tier_name[:40]!r}; there are {', '.join(t.name for t in self.tiers)}"
            )
        entries = [(t, t.entries[a]) for t in tiers for a in self._matching(address) if a in t.entries]
        if not entries:
            raise UnknownModel(f"no such model is resident: {address.name[:200]!r}")
        busy = [entry for _, entry in entries if entry.in_use]
        if busy:
            raise NoRoom(f"{busy[0].usage.key} is in use or pinned, so it is not evicted")
        for tier, entry in entries:
            tier.evict(entry)

    def _matching(self, address: Address) -> list[Address]:
        """The resident models that an address may mean: a file by its label; any version if it has none."""
        known = {a for tier in self.tiers for a in tier.entries}
        return [
            a
            for a in known
            if a.namespace == address.namespace
            and address.name in (a.name, self.label(a))
            and address.version in ("", a.version)
        ]

    def label(self, address: Address) -> str:
        """What to call a model: its name, or for a file what its client called it."""
        entry = self.host.entries.get(address)
        return entry.content.label if entry is not None and entry.content.label else address.name

    # --- life --------------------------------------------------------------------------------------

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def settled(self) -> None:
        """Waits until nothing is being written to disk."""
        while self._writes:
            await asyncio.gather(*self._writes)

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def close_all(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.settled(), LAST_WRITES_S)
        for task in self._fills.values():
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)  # one may hang on a client's file
        self.host.close()


def _filled_from(
    stream: Any, header: Header, placements: tuple[Placement, ...], file: ClientFile | None
) -> Weights:
    weights = fill(stream, header, placements)
    if file is not None and file.has_changed():
        weights.close()
        raise StoreError("the file changed while it was read; open it again once it is written")
    return weights
