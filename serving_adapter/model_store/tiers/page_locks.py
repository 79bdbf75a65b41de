"""Page-locked host memory, from which a device copies at the full speed of its bus (TrIMS, section 4.1.1).

To lock gigabytes takes long, and so may unlocking them. Both are done in one thread, in the order in which
they were asked for, and the event loop waits for neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from serving_adapter.model_store.tiers.host_memory import Digest, Segment, Weights


class PageLocking(Protocol):
    """What a device's driver does for it; RuntimeError where it cannot."""

    def lock_pages(self, data: memoryview, /) -> None: ...

    def unlock_pages(self, data: memoryview, /) -> None: ...


class PageLocks:
    """Segments are locked when a device first copies them, and stay so until their memory goes."""

    def __init__(self, device: PageLocking) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rrl-store-locks")
        self._locked: dict[Digest, mmap.mmap] = {}  # the thread's alone

    async def lock(self, weights: Weights) -> dict[int, mmap.mmap]:
        """Where a model's segments are mapped and locked, by their numbers; the model must stay meanwhile.

        Those that cannot be locked are left out: copies from them are slower.
        """
        return await asyncio.wrap_future(self._thread.submit(self._lock, weights.segments))

    def unlock(self, segment: Segment) -> None:
        """Unlocks a segment whose memory goes, without waiting for it."""
        self._thread.submit(self._unlock, segment.digest)

    def close(self) -> None:
        """Waits until everything that was asked for is done."""
        self._thread.shutdown()

    def _lock(self, segments: Sequence[Segment]) -> dict[int, mmap.mmap]:
        for segment in segments:
            if segment.digest not in self._locked and segment.size_bytes:
                pages = segment.map()
                with contextlib.suppress(RuntimeError):
                    self._device.lock_pages(memoryview(pages))
                    self._locked[segment.digest] = pages
        return {i: self._locked[s.digest] for i, s in enumerate(segments) if s.digest in self._locked}

    def _unlock(self, digest: Digest) -> None:
        pages = self._locked.pop(digest, None)
        if pages is not None:
            with contextlib.suppress(RuntimeError):
                self._device.unlock_pages(memoryview(pages))
