"""The store as a process: gRPC on a Unix socket, sessions on another, one event loop for both."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hmac
import logging
import os
import resource
import signal
import socket
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import grpc

from serving_adapter.model_store.client import Client
from serving_adapter.model_store.cuda import Cuda, CudaError
from serving_adapter.model_store.disk import Disk
from serving_adapter.model_store.endpoint import Endpoint, bearer, make_folder
from serving_adapter.model_store.errors import NoRoom, StoreError, UnknownModel
from serving_adapter.model_store.eviction import POLICIES
from serving_adapter.model_store.gpu_memory import GpuMemory, OnDevice
from serving_adapter.model_store.host_memory import HostMemory, Weights, sealed_copy
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.protocol import model_store_pb2_grpc
from serving_adapter.model_store.remote import Remote
from serving_adapter.model_store.sessions import Session, Sessions
from serving_adapter.model_store.settings import StoreSettings
from serving_adapter.model_store.sharing_rule import SharingCosts, measure
from serving_adapter.model_store.store import Account, ModelStore, Opened
from serving_adapter.model_store.tier import Address

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 << 10
MAX_REPLY_BYTES = 64 << 20  # a list of all tensors of a model
HANDSHAKE_TIMEOUT_MS = 5_000
MAX_LABEL_CHARACTERS = 512
MAX_SENTENCE = 4096  # characters of an error
SAFETENSORS = "safetensors"
BACKLOG = 1024  # connections not let in yet
QUESTIONS = 9  # to measure what one takes
DESCRIPTORS = 1 << 17  # wanted at most: a segment takes one, a client two


class Service(model_store_pb2_grpc.ModelStoreServicer):
    """Translates between messages and the store."""

    def __init__(self, store: ModelStore, sessions: Sessions, settings: StoreSettings) -> None:
        self._store, self._sessions = store, sessions
        self._answering: set[asyncio.Task[None]] = set()
        self._layouts = Layouts()
        store.host.on_evicted = self._layouts.drop
        if store.gpu is not None:
            store.gpu.on_evicted = self._layouts.drop
        self._operator = Account(settings.client_quota_bytes)

    # --- open and close, asked over gRPC ---

    async def Open(self, request: pb.OpenRequest, context: grpc.aio.ServicerContext) -> pb.OpenReply:
        session = await self._session(request.session, context)
        async with _errors_told(context):
            descriptor = await self._awaited(session, request.ticket) if request.ticket else None
            opened = await self._open(session, _address(request.address), request.device, descriptor)
            reply = pb.OpenReply(lease=opened.lease, version=opened.version, found_in=opened.found_in)
            with self._store.kept(opened.lease):
                reply.MergeFrom(self._layouts.of(opened.model).message)
                await self._hand_over(session, {"lease": opened.lease}, _segment_descriptors(opened.model))
            return reply

    async def _awaited(self, session: Session, ticket: str) -> int:
        try:
            return await session.descriptor_of(ticket)
        except (TimeoutError, asyncio.CancelledError):
            raise StoreError("no file descriptor came with the request") from None

    async def Close(self, request: pb.CloseRequest, context: grpc.aio.ServicerContext) -> pb.Empty:
        session = await self._session(request.session, context)
        async with _errors_told(context):
            self._store.close(session.account, request.lease)
            session.leases.discard(request.lease)
            return pb.Empty()

    # --- open and close, asked on the session's own socket ---

    def ask(self, session: Session, message: dict[str, Any], descriptors: list[int]) -> None:
        """ValueError for what is no question; then the descriptors are still the caller's."""
        if "close" in message and not descriptors:
            with contextlib.suppress(StoreError):
                self._store.close(session.account, str(message["close"]))
                session.leases.discard(str(message["close"]))
            return
        question = message.get("open")
        if not isinstance(question, dict) or len(descriptors) > 1:
            raise ValueError("no such question")
        task = asyncio.get_running_loop().create_task(
            self._answer(session, question, message.get("id"), *descriptors)
        )
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(
        self, session: Session, question: dict[str, Any], number: object, descriptor: int | None = None
    ) -> None:
        session.questions += 1
        try:
            name, version = str(question.get("name", "")), str(question.get("version", ""))
            address = Address(str(question.get("namespace") or SAFETENSORS), name, version)
            opened = await self._open(session, address, str(question.get("device", "")), descriptor)
            with self._store.kept(opened.lease):
                answer = {"id": number, "lease": opened.lease, "version": opened.version}
                descriptors = [self._layouts.of(opened.model).descriptor, *_segment_descriptors(opened.model)]
                await self._hand_over(session, answer | {"found_in": opened.found_in}, descriptors)
        except Exception as error:
            if not isinstance(error, (StoreError, ValueError, OSError)):
                log.exception("a question was not answered")
            code = _status(error).name
            with contextlib.suppress(OSError):
                await session.send({"id": number, "error": str(error)[:MAX_SENTENCE], "code": code})
        finally:
            session.questions -= 1

    # --- both ---

    async def _open(self, session: Session, address: Address, device: str, descriptor: int | None) -> Opened:
        """Opens for a session, which then holds the lease; takes the descriptor over."""
        device = device or "cpu"
        if descriptor is None:
            opened = await self._store.open(session.account, address, device)
        else:
            try:
                label = address.name[:MAX_LABEL_CHARACTERS]
                opened = await self._store.open_file(
                    session.account, address.namespace, label, descriptor, device
                )
            finally:
                os.close(descriptor)
        if self._sessions.find(session.name) is None:  # it went while the model was loading
            self._store.forget([opened.lease])
            raise StoreError("the session has ended")
        session.leases.add(opened.lease)
        return opened

    async def _hand_over(self, session: Session, message: dict[str, Any], descriptors: list[int]) -> None:
        try:
            await session.send(message, descriptors)
        except OSError as error:
            self._sessions.end(session)
            raise StoreError(f"the client does not take the descriptors ({error.strerror})") from None

    # --- what an operator asks ---

    async def List(self, request: pb.Empty, context: grpc.aio.ServicerContext) -> pb.ListReply:
        tiers = self._store.tiers
        addresses = sorted({address for tier in tiers for address in tier.entries})
        return pb.ListReply(models=[self._model(address) for address in addresses])

    def _model(self, address: Address) -> pb.Model:
        entries = {t.name: t.entries[address] for t in self._store.tiers if address in t.entries}
        return pb.Model(
            address=pb.Address(
                namespace=address.namespace, name=self._store.label(address), version=address.version
            ),
            size_bytes=max(entry.usage.size_bytes for entry in entries.values()),
            tiers=list(entries),
            references=sum(entry.references for entry in entries.values()),
            pinned=any(entry.pinned for entry in entries.values()),
            opens=max(entry.usage.uses for entry in entries.values()),
        )

    async def Pin(self, request: pb.PinRequest, context: grpc.aio.ServicerContext) -> pb.Empty:
        async with _errors_told(context):
            await self._store.pin(self._operator, _address(request.address), request.pinned)
            return pb.Empty()

    async def Evict(self, request: pb.EvictRequest, context: grpc.aio.ServicerContext) -> pb.Empty:
        async with _errors_told(context):
            self._store.evict(_address(request.address), request.tier)
            return pb.Empty()

    async def Stats(self, request: pb.Empty, context: grpc.aio.ServicerContext) -> pb.StatsReply:
        store = self._store
        tiers = [
            pb.TierStats(
                tier=tier.name,
                capacity_bytes=tier.capacity_bytes,
                used_bytes=tier.used_bytes,
                hits=tier.hits,
                misses=tier.misses,
                evictions=tier.evictions,
            )
            for tier in store.tiers
        ]
        tiers.append(pb.TierStats(tier="remote", hits=store.remote_hits, misses=store.remote_misses))
        return pb.StatsReply(
            tiers=tiers,
            models=len({address for tier in store.tiers for address in tier.entries}),
            references=store.references,
            clients=len(self._sessions),
            deduplicated_bytes=store.host.deduplicated_bytes(),
            sharing_overhead_s=store.costs.overhead_s,
            disk_bytes_per_s=store.costs.disk_bytes_per_s,
            pid=os.getpid(),
        )

    async def _session(self, name: str, context: grpc.aio.ServicerContext) -> Session:
        session = self._sessions.find(name)
        if session is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "there is no such session; connect again")
            raise AssertionError("abort raises")
        return session


class _Layout(NamedTuple):
    """Where a model's tensors lie, written out: as a message, and in a memory file."""

    message: pb.OpenReply
    descriptor: int


class Layouts:
    """The layouts of resident models: kept, because writing one out is most of the work of opening."""

    def __init__(self) -> None:
        self._of: dict[Weights | OnDevice, _Layout] = {}

    def of(self, model: Weights | OnDevice) -> _Layout:
        if model not in self._of:
            message = pb.OpenReply(tensors=_tensors(model), segments=_segments(model))
            self._of[model] = _Layout(message, sealed_copy(message.SerializeToString()))
        return self._of[model]

    def drop(self, model: Weights | OnDevice) -> None:
        """Once the model is evicted."""
        layout = self._of.pop(model, None)
        if layout is not None:
            os.close(layout.descriptor)


def _tensors(model: Weights | OnDevice) -> list[pb.Tensor]:
    return [
        pb.Tensor(name=t.name, dtype=t.dtype, shape=t.shape, segment=segment, offset_bytes=offset_bytes)
        for t, segment, offset_bytes in model.placements
    ]


def _segments(model: Weights | OnDevice) -> list[pb.Segment]:
    if isinstance(model, Weights):
        return [pb.Segment(size_bytes=segment.size_bytes) for segment in model.segments]
    return [pb.Segment(size_bytes=model.size_bytes, cuda_handle=model.handle)]


def _segment_descriptors(model: Weights | OnDevice) -> list[int]:
    return [segment.fd for segment in model.segments] if isinstance(model, Weights) else []


def _address(address: pb.Address) -> Address:
    return Address(address.namespace or SAFETENSORS, address.name, address.version)


def _status(error: Exception) -> grpc.StatusCode:
    if isinstance(error, UnknownModel):
        return grpc.StatusCode.NOT_FOUND
    return (
        grpc.StatusCode.RESOURCE_EXHAUSTED
        if isinstance(error, NoRoom)
        else grpc.StatusCode.FAILED_PRECONDITION
    )


@contextlib.asynccontextmanager
async def _errors_told(context: grpc.aio.ServicerContext) -> Any:
    """Turns the store's errors into a status with the sentence."""
    try:
        yield
    except StoreError as error:
        await context.abort(_status(error), str(error))
    except (ValueError, OSError) as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:1000])


class TokenRequired(grpc.aio.ServerInterceptor):
    """Refuses calls without the token, those that need no session (`List`, `Stats`, ...) included."""

    def __init__(self, token: str) -> None:
        self._expected = bearer(token)[0]

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        given = dict(details.invocation_metadata or ()).get(self._expected[0], "")
        if isinstance(given, str) and hmac.compare_digest(given.encode(), self._expected[1].encode()):
            return await continuation(details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(request: Any, context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the store wants another token; set RRL_STORE_TOKEN")


async def run(endpoint: Endpoint, settings: StoreSettings, on_ready: Callable[[], None]) -> None:
    """Serves until SIGTERM or SIGINT, or until nobody was there for `idle_exit_s`.

    StoreError if another store serves the endpoint already.
    """
    make_folder(endpoint)
    with (
        _only_one(endpoint.lock, f"a store serves {endpoint.folder} already"),
        _only_one(_made(settings.cache) / "lock", f"another store keeps its cache in {settings.cache}"),
    ):
        _allow_many_descriptors()
        costs = SharingCosts.read(endpoint.folder) or measure(settings.cache)
        store = _store(settings, costs)
        listener = _bound(endpoint, settings)
        sessions = Sessions(
            listener,
            settings.token,
            lambda: Account(settings.client_quota_bytes),
            on_question=lambda *question: service.ask(*question),
            on_gone=lambda session: store.forget(sorted(session.leases)),
            max_sessions=settings.max_clients,
            max_sessions_a_process=settings.max_connections_a_process,
        )
        service = Service(store, sessions, settings)
        server = _server(endpoint, settings, service)
        await server.start()
        os.chmod(endpoint.rpc, settings.socket_mode)
        if settings.socket_mode & stat.S_IRGRP:
            os.chmod(endpoint.folder, 0o750)
        sessions.start()
        if not costs.open_s:
            store.costs = costs._replace(open_s=await asyncio.to_thread(_open_s, endpoint, settings.token))
            store.costs.write(endpoint.folder)
        stop = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        on_ready()
        try:
            await _stopped(stop, sessions, settings.idle_exit_s)
        finally:
            sessions.close()
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
        for _ in range(QUESTIONS):
            start_s = time.perf_counter()
            with contextlib.suppress(UnknownModel):
                client.open("/")
            seconds.append(time.perf_counter() - start_s)
    return median(seconds)


def _store(settings: StoreSettings, costs: SharingCosts) -> ModelStore:
    policy = POLICIES[settings.policy]
    cuda = _cuda() if settings.gpu_bytes else None
    remotes = [Remote(url) for url in settings.remotes]
    for repository in remotes:
        repository.check()
    return ModelStore(
        HostMemory(settings.host_bytes, policy(), page_locking=cuda),
        Disk(settings.cache, settings.disk_bytes, policy()),
        remotes,
        costs,
        gpu=None if cuda is None else GpuMemory(cuda, settings.gpu_bytes, policy()),
        granularity=settings.granularity,
        eager_reclaim=settings.eager_reclaim,
    )


def _cuda() -> Cuda:
    try:
        return Cuda()
    except CudaError as error:
        raise StoreError(f"there can be no GPU tier: {error}; leave --gpu-bytes out") from None


def _server(endpoint: Endpoint, settings: StoreSettings, service: Service) -> grpc.aio.Server:
    server = grpc.aio.server(
        interceptors=[] if settings.token is None else [TokenRequired(settings.token)],
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


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _only_one(path: Path, otherwise: str) -> Any:
    """Holds a lock, which the kernel frees when the process ends."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(otherwise) from None
        yield


def _allow_many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
