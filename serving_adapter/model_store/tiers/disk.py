"""The local disk tier: a cache folder of plain weight files, addressed by content and checksummed.

    blobs/<hash>                             a weight file, as it came; the hash is that of its manifest
    models/<namespace>/<name>@<version>.json its manifest: the file's hash and size
    rrl-store-cache                          the mark by which a folder is known as a store's (`cache_folder`)

Files appear whole or not at all (written beside, then renamed), so a store that is killed leaves nothing
half-written behind. A file is hashed whenever it is read, and one that does not match its manifest is thrown
away and fetched again.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from blake3 import blake3

from serving_adapter.json_text import parsed
from serving_adapter.model_store.tiers.cache_folder import (
    BLOBS,
    MODELS,
    blob_names,
    is_blob,
    leftovers,
)
from serving_adapter.model_store.tiers.eviction import EvictionPolicy
from serving_adapter.model_store.tiers.host_memory import Weights, tensor_bytes
from serving_adapter.model_store.tiers.tier import Address, Tier, TierEntry
from serving_adapter.whole_files import written_whole

log = logging.getLogger(__name__)

FOR_THIS_USER = 0o600
ASSUMED_REMOTE_BYTES_PER_S = 100e6  # for models that an earlier store has fetched


@dataclass(frozen=True)
class Manifest:
    """What the cache knows of a model."""

    blob: str
    size_bytes: int


class Disk(Tier[Manifest]):
    """Finds at its start what an earlier store left in `folder`."""

    name = "disk"

    def __init__(self, folder: Path, capacity_bytes: int, policy: EvictionPolicy) -> None:
        super().__init__(capacity_bytes, policy)
        self.folder = folder
        self._blobs, self._models = folder / BLOBS, folder / MODELS
        self._users: Counter[str] = Counter()  # models that lie in a blob
        self._writers: Counter[str] = Counter()  # of models that will
        for part in (self._blobs, self._models):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._find_what_is_there()

    def own_bytes(self, entry: TierEntry[Manifest]) -> int:
        return entry.usage.size_bytes if self._users[entry.content.blob] == 1 else 0

    def open(self, entry: TierEntry[Manifest]) -> BinaryIO:
        """The model's file; OSError if somebody removed it."""
        return (self._blobs / entry.content.blob).open("rb", buffering=1 << 20)

    @contextlib.contextmanager
    def kept(self, blob: str) -> Iterator[None]:
        """That file stays meanwhile, whatever is evicted; afterwards it does if a model lies in it."""
        self._writers[blob] += 1
        try:
            yield
        finally:
            self._writers[blob] -= 1
            self._unlink_unless_used(blob)

    def write(self, address: Address, weights: Weights, blob: str) -> Manifest:
        """Writes the model's file and manifest (blocking); `admit` then makes it part of the tier.

        `blob` is its `content_hash`, which the caller has `kept`: the event loop may evict others meanwhile.
        """
        path = self._blobs / blob
        if not path.exists():
            with written_whole(path, FOR_THIS_USER) as file:
                file.write(weights.header.raw)
                for _, data in tensor_bytes(weights):
                    file.write(data)
        manifest = Manifest(blob, len(weights.header.raw) + weights.header.data_bytes)
        place = self._manifest_path(address)
        place.parent.mkdir(mode=0o700, exist_ok=True)
        with written_whole(place, FOR_THIS_USER) as file:
            file.write(json.dumps(asdict(manifest)).encode())
        return manifest

    def admit(self, address: Address, manifest: Manifest, reload_s: float) -> TierEntry[Manifest]:
        self._users[manifest.blob] += 1
        return self.add(address, manifest.size_bytes, reload_s, manifest)

    def discard(self, entry: TierEntry[Manifest]) -> None:
        """Removes a model whose file turned out to be damaged or gone."""
        log.warning("the cached file of %s was damaged; it will be fetched again", entry.usage.key)
        damaged = entry.content.blob
        for other in [e for e in self.entries.values() if e.content.blob == damaged]:
            other.pinned, other.references = False, 0
            self.evict(other)

    def _free(self, entry: TierEntry[Manifest]) -> None:
        blob = entry.content.blob
        self._users[blob] -= 1
        self._manifest_path(entry.usage.key).unlink(missing_ok=True)
        self._unlink_unless_used(blob)

    def _unlink_unless_used(self, blob: str) -> None:
        if not self._users[blob] and not self._writers[blob]:
            del self._users[blob], self._writers[blob]
            (self._blobs / blob).unlink(missing_ok=True)

    def _manifest_path(self, address: Address) -> Path:
        name = f"{quote(address.name, safe='')}@{quote(address.version, safe='')}.json"
        return self._models / quote(address.namespace, safe="") / name

    def _find_what_is_there(self) -> None:
        for leftover in leftovers(self.folder):
            leftover.unlink()
        for path in sorted(self._models.glob("*/*@*.json"), key=lambda p: p.stat().st_mtime_ns):
            name, _, version = path.stem.rpartition("@")
            address = Address(unquote(path.parent.name), unquote(name), unquote(version))
            manifest = _read_manifest(path) if path == self._manifest_path(address) else None
            if manifest is None or not _has_size(self._blobs / manifest.blob, manifest.size_bytes):
                path.unlink()
                continue
            self.admit(address, manifest, manifest.size_bytes / ASSUMED_REMOTE_BYTES_PER_S)
        known = {entry.content.blob for entry in self.entries.values()}
        for name in blob_names(self.folder):
            if name not in known:
                (self._blobs / name).unlink()
        self.shrink_to(self.capacity_bytes)


def content_hash(weights: Weights) -> str:
    """A blob's name: the hash of its header and of the hashes of its tensors."""
    hasher = blake3(weights.header.raw)
    for digest in weights.digests:
        hasher.update(digest)
    return hasher.hexdigest()


def _read_manifest(path: Path) -> Manifest | None:
    try:
        content = parsed(path.read_bytes())
        blob, size_bytes = str(content["blob"]), int(content["size_bytes"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return Manifest(blob, size_bytes) if is_blob(blob) else None


def _has_size(path: Path, size_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == size_bytes
