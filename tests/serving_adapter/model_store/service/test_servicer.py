"""What a client asks for that is gone before its answer leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from serving_adapter import messages
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.service.servicer import StoreService
from serving_adapter.model_store.service.sessions import Sessions
from serving_adapter.model_store.settings import StoreSettings
from tests.support.stores.fake_cuda import FakeCuda
from tests.support.stores.running_store import short_folder
from tests.support.stores.store_in_process import PLENTY, Gated
from tests.support.waiting import eventually


def watched_processes() -> int:
    """Descriptors of processes that this one has open."""
    targets = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum("pidfd" in target for target in targets)


@contextlib.contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Where a store listens, and a client that has connected there."""
    with short_folder() as folder, seqpacket() as listener, seqpacket() as client:
        listener.bind(str(folder / "socket"))
        listener.listen()
        client.connect(str(folder / "socket"))
        yield listener, client


def seqpacket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_a_client_that_goes_while_its_model_is_loaded_to_a_gpu_is_not_watched(make_store, repository, pages):
    repository.add("a", pages())

    async def scenario(listener: socket.socket, client: socket.socket) -> None:
        async with make_store(device=FakeCuda()) as store:
            remote = Gated(repository.url)
            store.repositories.remotes = [remote]
            sessions = Sessions(
                listener,
                None,
                lambda: Account(PLENTY),
                on_question=lambda *question: service.ask(*question),
                on_gone=lambda session: service.gone(session),
                max_sessions=1,
                max_sessions_a_process=1,
            )
            service = StoreService(store, sessions, StoreSettings(PLENTY, PLENTY, Path()))
            sessions.start()
            await eventually(lambda: len(sessions) == 1)
            before = watched_processes()
            messages.send(client, {"open": {"name": "a", "version": "1", "device": "cuda:0"}, "id": 1})
            await eventually(lambda: remote.opened == ["a"])
            client.close()
            await eventually(lambda: len(sessions) == 0)
            remote.gate.set()
            await eventually(lambda: not service._answering)
            assert store.references == 0
            assert watched_processes() == before
            sessions.close()

    with connection() as sockets:
        asyncio.run(scenario(*sockets))
