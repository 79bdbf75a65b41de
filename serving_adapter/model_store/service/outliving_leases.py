"""Leases of GPU memory outlive their session: they end with their process, or when it gives them back.

The kernel keeps host memory while somebody maps it, whatever the store does. A driver does not: another model
may be loaded into memory that the store frees, under tensors that are alive. A client that lost or closed its
connection may still compute with them, so the end of its process is waited for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from serving_adapter.model_store.opening.store import ModelStore
from serving_adapter.model_store.service.sessions import ClientSession


class OutlivingLeases:
    """Watches the processes whose sessions ended while they held GPU memory."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._processes: set[int] = set()

    def take_over(self, session: ClientSession, on_process_gone: Callable[[], object]) -> None:
        """Gives back what the session held, at once where that is safe."""
        leases, process = sorted(session.leases), session.process
        on_gpu = [lease for lease in leases if self._store.is_on_gpu(lease)]
        self._store.forget([lease for lease in leases if lease not in on_gpu])
        if process is None:
            return
        session.process = None
        if not on_gpu:
            os.close(process)
            return
        self._processes.add(process)
        asyncio.get_running_loop().add_reader(process, self._gone, process, on_gpu, on_process_gone)

    def _gone(self, process: int, leases: list[str], on_process_gone: Callable[[], object]) -> None:
        self._leave(process)
        self._store.forget(leases)
        on_process_gone()

    def _leave(self, process: int) -> None:
        asyncio.get_running_loop().remove_reader(process)
        self._processes.discard(process)
        os.close(process)

    def close(self) -> None:
        """Waits for no process any more; the driver frees what the store's own process has allocated."""
        for process in list(self._processes):
            self._leave(process)
