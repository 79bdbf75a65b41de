"""What clients and operators ask of a store, over gRPC or on their session's socket: translated, no more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Any, NamedTuple

import grpc

from serving_adapter.model_store.account import Account
from serving_adapter.model_store.errors import NoRoom, StoreError, UnknownModel
from serving_adapter.model_store.gpu_memory import OnDevice
from serving_adapter.model_store.host_memory import Weights, sealed_copy
from serving_adapter.model_store.outliving_leases import OutlivingLeases
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.protocol import model_store_pb2_grpc
from serving_adapter.model_store.sessions import ClientSession, Sessions
from serving_adapter.model_store.settings import StoreSettings
from serving_adapter.model_store.store import ModelStore, Opened
from serving_adapter.model_store.tier import Address

log = logging.getLogger(__name__)

MAX_LABEL_CHARACTERS = 512
MAX_SENTENCE = 4096  # characters of an error
SAFETENSORS = "safetensors"


class StoreService(model_store_pb2_grpc.ModelStoreServicer):
    """Translates between messages and the store."""

    def __init__(self, store: ModelStore, sessions: Sessions, settings: StoreSettings) -> None:
        self._store, self._sessions = store, sessions
        self._answering: set[asyncio.Task[None]] = set()
        self._layouts = Layouts()
        store.host.on_evicted = self._layouts.drop
        if store.gpu is not None:
            store.gpu.on_evicted = self._layouts.drop
        self._operator = Account(settings.client_quota_bytes)
        self._outliving = OutlivingLeases(store)

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

    async def _awaited(self, session: ClientSession, ticket: str) -> int:
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

    def ask(self, session: ClientSession, message: dict[str, Any], descriptors: list[int]) -> None:
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
        self, session: ClientSession, question: dict[str, Any], number: object, descriptor: int | None = None
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

    async def _open(
        self, session: ClientSession, address: Address, device: str, descriptor: int | None
    ) -> Opened:
        """Opens for a session, which then holds the lease; takes the descriptor over."""
        device = device or "cpu"
        if descriptor is None:
            opened = await self._store.open(session.account, address, device)
        else:
            label = address.name[:MAX_LABEL_CHARACTERS]
            opened = await self._store.open_file(
                session.account, address.namespace, label, descriptor, device
            )
        if self._store.is_on_gpu(opened.lease):
            try:
                session.watch()
            except StoreError:
                self._store.forget([opened.lease])
                raise
        if self._sessions.find(session.name) is None:  # it went while the model was loading
            self._store.forget([opened.lease])
            raise StoreError("the session has ended")
        session.leases.add(opened.lease)
        return opened

    def gone(self, session: ClientSession) -> None:
        """Gives back what a session held that has ended; what is on a GPU once its process has, too."""
        self._outliving.take_over(session, lambda: self._sessions.process_gone(session.pid))

    def close(self) -> None:
        self._outliving.close()

    async def _hand_over(
        self, session: ClientSession, message: dict[str, Any], descriptors: list[int]
    ) -> None:
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
        tiers.append(
            pb.TierStats(tier="remote", hits=store.repositories.hits, misses=store.repositories.misses)
        )
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

    async def _session(self, name: str, context: grpc.aio.ServicerContext) -> ClientSession:
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
        """Forgets the layout of a model that is evicted."""
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
