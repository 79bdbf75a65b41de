"""The store as a process: gRPC on a Unix socket, sessions on another, one event loop for both."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import grpc

from serving_adapter.model_store import cuda
from serving_adapter.model_store.clients.client import Client
from serving_adapter.model_store.cuda import Cuda, CudaError
from serving_adapter.model_store.endpoint import Endpoint, make_folder
from serving_adapter.model_store.errors import StoreError, UnknownModel
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.opening.store import ModelStore
from serving_adapter.model_store.protocol import model_store_pb2_grpc
from serving_adapter.model_store.service.interceptors import RefusedInSentences, TokenRequired
from serving_adapter.model_store.service.servicer import StoreService
from serving_adapter.model_store.service.sessions import Sessions
from serving_adapter.model_store.settings import StoreSettings
from serving_adapter.model_store.sharing_rule import SharingCosts, measure
from serving_adapter.model_store.tiers import cache_folder
from serving_adapter.model_store.tiers.disk import Disk
from serving_adapter.model_store.tiers.eviction import POLICIES
from serving_adapter.model_store.tiers.gpu_memory import GpuMemory
from serving_adapter.model_store.tiers.host_memory import HostMemory
from serving_adapter.model_store.tiers.remote import Remote
from serving_adapter.resources import allow_descriptors
from serving_adapter.stop_signal import stop_on_signal

MAX_REQUEST_BYTES = 64 << 10
MAX_REPLY_BYTES = 64 << 20  # a list of all tensors of a model
HANDSHAKE_TIMEOUT_MS = 5_000
BACKLOG = 1024  # connections not let in yet
TIMED_QUESTIONS = 9  # to measure what one takes
MAX_OPEN_DESCRIPTORS = 1 << 17  # wanted at most: a segment takes one, a client two


async def run(endpoint: Endpoint, settings: StoreSettings, on_ready: Callable[[], None]) -> None:
    """Serves until SIGTERM or SIGINT, or until nobody was there for `idle_exit_s`.

    StoreError if another store serves the endpoint already.
    """
    make_folder(endpoint)
    with (
        _only_one(endpoint.lock, f"a store serves {endpoint.folder} already"),
        _only_one(_claimed(settings.cache), f"another store keeps its cache in {settings.cache}"),
    ):
        allow_descriptors(MAX_OPEN_DESCRIPTORS)
        costs = SharingCosts.read(endpoint.folder) or measure(settings.cache)
        store = _store(settings, costs)
        listener = _bound(endpoint, settings)
        sessions = Sessions(
            listener,
            settings.token,
            lambda: Account(settings.client_quota_bytes),
            on_question=lambda *question: service.ask(*question),
            on_gone=lambda session: service.gone(session),
            max_sessions=settings.max_clients,
            max_sessions_a_process=settings.max_connections_a_process,
        )
        service = StoreService(store, sessions, settings)
        server = _server(endpoint, settings, service)
        await server.start()
        os.chmod(endpoint.rpc, settings.socket_mode)
        if settings.socket_mode & stat.S_IRGRP:
            os.chmod(endpoint.folder, 0o750)
        sessions.start()
        if not costs.open_s:
            store.costs = costs._replace(open_s=await asyncio.to_thread(_open_s, endpoint, settings.token))
            store.costs.write(endpoint.folder)
        stop = stop_on_signal()
        on_ready()
        try:
            await _stopped(stop, sessions, settings.idle_exit_s)
        finally:
            sessions.close()
            service.close()
            await server.stop(1.0)
            await store.close_all()
            for path in (endpoint.rpc, endpoint.descriptors):
                path.unlink(missing_ok=True)


async def _stopped(stop: asyncio.Event, sessions: Sessions, idle_exit_s: float | None) -> None:
    while idle_exit_s is None or sessions.empty_s < idle_exit_s:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                stop.wait(), None if idle_exit_s is None else idle_exit_s - sessions.empty_s
            )
            return


def _open_s(endpoint: Endpoint, token: str | None) -> float:
    """What a question to the store takes, whatever it is about (blocking): here a name that cannot be."""
    seconds = []
    with Client(endpoint, token=token, starts_store=False) as client:
        for _ in range(TIMED_QUESTIONS):
            start_s = time.perf_counter()
            with contextlib.suppress(UnknownModel):
                client.open("/")
            seconds.append(time.perf_counter() - start_s)
    return median(seconds)


def _store(settings: StoreSettings, costs: SharingCosts) -> ModelStore:
    policy = POLICIES[settings.policy]
    devices = _devices() if settings.gpu_bytes else []
    remotes = [Remote(url) for url in settings.remotes]
    for repository in remotes:
        repository.check()
    return ModelStore(
        HostMemory(settings.host_bytes, policy()),
        Disk(settings.cache, settings.disk_bytes, policy()),
        remotes,
        costs,
        gpus=[GpuMemory(device, settings.gpu_bytes, policy(), i) for i, device in enumerate(devices)],
        page_locking=devices[0] if devices else None,
        granularity=settings.granularity,
        eager_reclaim=settings.eager_reclaim,
    )


def _devices() -> Sequence[Cuda]:
    try:
        return cuda.devices()
    except CudaError as error:
        raise StoreError(f"there can be no GPU tier: {error}; leave --gpu-bytes out") from None


def _server(endpoint: Endpoint, settings: StoreSettings, service: StoreService) -> grpc.aio.Server:
    guards: list[grpc.aio.ServerInterceptor] = [RefusedInSentences()]
    if settings.token is not None:
        guards.insert(0, TokenRequired(settings.token))
    server = grpc.aio.server(
        interceptors=guards,
        options=[
            ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
            ("grpc.max_send_message_length", MAX_REPLY_BYTES),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ],
    )
    model_store_pb2_grpc.add_ModelStoreServicer_to_server(service, server)
    with _nobody_else():
        endpoint.rpc.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{endpoint.rpc}")
    return server


def _bound(endpoint: Endpoint, settings: StoreSettings) -> socket.socket:
    endpoint.descriptors.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with _nobody_else():
        listener.bind(str(endpoint.descriptors))
    os.chmod(endpoint.descriptors, settings.socket_mode)
    listener.listen(BACKLOG)
    return listener


@contextlib.contextmanager
def _nobody_else() -> Any:
    """Sockets that appear meanwhile are for this user only."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _claimed(cache: Path) -> Path:
    """The lock of a cache folder that is a store's; StoreError where it is anybody else's."""
    cache_folder.claim(cache)
    return cache / cache_folder.LOCK


@contextlib.contextmanager
def _only_one(path: Path, otherwise: str) -> Any:
    """Holds a lock, which the kernel frees when the process ends."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(otherwise) from None
        yield
