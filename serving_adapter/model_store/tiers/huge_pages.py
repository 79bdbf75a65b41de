"""Huge pages for the models in host memory, so that their readers pay for few page faults.

A memory file has pages of 4 KB unless `/sys/kernel/mm/transparent_hugepage/shmem_enabled` says otherwise. A
process pays for each that it touches first. The file's owner may have the kernel put the pages together, 512
to a huge one, and needs no right for it. A reader then pays for one fault in 2 MB.

It takes longer than to read the model from memory, so it follows the answer. Where the kernel cannot do it,
everything stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os

from serving_adapter.model_store.blocking_calls import BlockingCalls
from serving_adapter.model_store.mapped_memory import HUGE_PAGE_BYTES, MappedMemory
from serving_adapter.model_store.tiers.host_memory import HostMemory, Segment, Weights

DELAY_S = 0.05  # after the answer, not beside it
TRIES = 3  # a page that somebody touches at that moment cannot be moved


class HugePages:
    """Puts the pages of resident models together, one segment at a time."""

    def __init__(self, host: HostMemory, blocking_calls: BlockingCalls) -> None:
        self._host, self._blocking_calls = host, blocking_calls
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def put_together_later(self, weights: Weights) -> None:
        """Each segment is tried once, whichever models lie in it."""
        segments = [s for s in weights.segments if s.size_bytes >= HUGE_PAGE_BYTES and not s.is_collapsed]
        for segment in segments:
            segment.is_collapsed = True
        if segments:
            task = asyncio.ensure_future(self._put_together(segments))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Waits until no pages are being put together."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def _put_together(self, segments: list[Segment]) -> None:
        await asyncio.sleep(DELAY_S)
        for segment in segments:
            async with self._turn:
                if self._host.segments.get(segment.digest) is not segment:
                    continue  # evicted meanwhile
                with contextlib.suppress(OSError):  # it may not be possible here, or without a descriptor
                    own = os.dup(segment.fd)  # the segment may be evicted now, and its number used again
                    await self._blocking_calls.run(_collapse_and_close, own, segment.size_bytes)


def _collapse_and_close(descriptor: int, size_bytes: int) -> None:
    try:
        collapse(descriptor, size_bytes)
    finally:
        os.close(descriptor)


def collapse(descriptor: int, size_bytes: int) -> None:
    """Puts the pages of a memory file together (blocking); OSError where the kernel cannot."""
    memory = MappedMemory([size_bytes])
    memory.map(0, descriptor)
    for left in reversed(range(TRIES)):
        try:
            memory.collapse(0)
            return
        except OSError as error:
            if error.errno != errno.EAGAIN or not left:
                raise
