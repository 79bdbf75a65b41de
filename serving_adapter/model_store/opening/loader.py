"""Reading a model into host memory: from a client's file, the local disk, or a remote repository."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from serving_adapter.model_store.blocking_calls import BlockingCalls
from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.mapped_memory import HUGE_PAGE_BYTES
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.opening.client_file import ClientFile
from serving_adapter.model_store.sharing_rule import SharingCosts
from serving_adapter.model_store.tiers import remote
from serving_adapter.model_store.tiers.disk import Disk, content_hash
from serving_adapter.model_store.tiers.disk_writer import DiskWriter
from serving_adapter.model_store.tiers.host_memory import (
    CHUNK_BYTES,
    HostMemory,
    Placement,
    Weights,
    fill,
    place,
    resident_bytes,
)
from serving_adapter.model_store.tiers.huge_pages import HugePages
from serving_adapter.model_store.tiers.repositories import Repositories
from serving_adapter.model_store.tiers.tier import Address, TierEntry
from serving_adapter.model_store.weights_file import StoredTensor, WeightsHeader, header_reader

ERRORS_OF_DAMAGED_FILES = (errno.ENOENT, errno.EIO)  # the cached file is at fault; in others the system is
SMALLEST_OWN_TENSOR_BYTES = 1 << 16  # granularity "tensor" does not ask what pays


class HostLoader:
    """Fills host memory from the tiers below it, the nearest first."""

    def __init__(
        self,
        host: HostMemory,
        disk: Disk,
        repositories: Repositories,
        disk_writer: DiskWriter,
        huge_pages: HugePages,
        blocking_calls: BlockingCalls,
        costs: Callable[[], SharingCosts],
        granularity: str,
    ) -> None:
        self._host, self._disk, self._repositories = host, disk, repositories
        self._disk_writer, self._huge_pages = disk_writer, huge_pages
        self._blocking_calls = blocking_calls
        self._costs, self._granularity = costs, granularity

    async def load(self, account: Account, address: Address, file: ClientFile | None) -> str:
        """Reads the model into host memory; the name of the tier that had it."""
        if file is not None:
            await self._from_file(account, address, file)
            return self._disk.name
        cached = self._disk.look_up(address)
        if cached is not None and await self._from_disk(account, address, cached):
            return self._disk.name
        await self._from_remote(account, address)
        return "remote"

    async def _from_file(self, account: Account, address: Address, file: ClientFile) -> None:
        stream = io.BufferedReader(file.reader(), CHUNK_BYTES)
        weights, seconds = await self._read(account, address, stream, file.size_bytes, file)
        weights = replace(weights, label=file.label, transient=file.is_unnamed)
        self._admit(address, weights, seconds)

    async def _from_disk(self, account: Account, address: Address, cached: TierEntry[Any]) -> bool:
        """False if the cached file is not what it was; it is discarded then."""
        try:
            with self._disk.open(cached) as stream:
                size_bytes = os.fstat(stream.fileno()).st_size
                weights, seconds = await self._read(account, address, stream, size_bytes)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in ERRORS_OF_DAMAGED_FILES:
                raise StoreError(f"{address} cannot be read from the cache: {error}") from None
            self._disk.discard(cached)
            return False
        if content_hash(weights) != cached.content.blob:
            weights.close()
            self._disk.discard(cached)
            return False
        self._admit(address, weights, seconds)
        return True

    async def _from_remote(self, account: Account, address: Address) -> None:
        for repository in self._repositories.remotes:
            try:
                stream = await self._blocking_calls.run(repository.open, address)
                if stream is None:
                    continue
                with stream:
                    weights, seconds = await self._read(account, address, stream, remote.size_of(stream))
            except StoreError:
                raise
            except Exception as error:  # drivers raise what their libraries do
                raise StoreError(f"{address} cannot be read from {repository.url}: {error}") from None
            self._repositories.hits += 1
            entry = self._admit(address, weights, seconds)
            self._disk_writer.write_later(address, entry)
            return
        raise self._repositories.missing(address)

    def _admit(self, address: Address, weights: Weights, reload_s: float) -> TierEntry[Weights]:
        entry = self._host.admit(address, weights, reload_s)
        self._huge_pages.put_together_later(entry.content)
        return entry

    async def _read(
        self,
        account: Account,
        address: Address,
        stream: Any,
        size_bytes: int | None,
        file: ClientFile | None = None,
    ) -> tuple[Weights, float]:
        """Makes room in host memory and reads the model into it; the model, and the seconds that took.

        A file that is not as long as its header tells makes no room: `size_bytes`, None where nobody knows.
        """
        start_s = time.monotonic()
        header = await self._blocking_calls.run(header_reader(address.namespace), stream)
        if size_bytes is not None:
            header.check_size(size_bytes)
        placements = self._placed(header.tensors)
        needed = resident_bytes(placements)
        self._host.reserve(needed, account.check)
        try:
            weights = await self._blocking_calls.run(_filled_from, stream, header, placements, file)
        finally:
            self._host.unreserve(needed)
        return weights, time.monotonic() - start_s

    def _placed(self, tensors: Sequence[StoredTensor]) -> tuple[Placement, ...]:
        if self._granularity == "auto":
            smallest_bytes = max(self._costs().smallest_object_bytes(), HUGE_PAGE_BYTES)
            return place(tensors, smallest_bytes, joins=True)
        return place(tensors, None if self._granularity == "model" else SMALLEST_OWN_TENSOR_BYTES)


def _filled_from(
    stream: Any, header: WeightsHeader, placements: tuple[Placement, ...], file: ClientFile | None
) -> Weights:
    """Reads the tensors, of a file that is whole and nothing else. Nothing is left behind if it fails."""
    weights = fill(stream, header, placements)
    try:
        if file is not None and file.has_changed():
            raise StoreError("the file changed while it was read; open it again once it is written")
        if stream.read(1):
            raise ValueError("the file goes on behind its last tensor")
    except BaseException:
        weights.close()
        raise
    return weights
