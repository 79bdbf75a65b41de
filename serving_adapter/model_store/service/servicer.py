"""What clients and operators ask of a store, over gRPC or on their session's socket: translated, no more."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import grpc

from serving_adapter.model_store.errors import StoreError, UnknownSession
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.opening.store import ModelStore, Opened
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.protocol import model_store_pb2_grpc
from serving_adapter.model_store.service.layouts import Layouts, segment_descriptors
from serving_adapter.model_store.service.outliving_leases import OutlivingLeases
from serving_adapter.model_store.service.refusals import refusal
from serving_adapter.model_store.service.sessions import ClientSession, Sessions
from serving_adapter.model_store.settings import StoreSettings
from serving_adapter.model_store.tiers.tier import Address

MAX_LABEL_CHARACTERS = 512
MAX_SIZE_BYTES = 1 << 62
SAFETENSORS = "safetensors"


class StoreService(model_store_pb2_grpc.ModelStoreServicer):
    """Translates between messages and the store."""

    def __init__(self, store: ModelStore, sessions: Sessions, settings: StoreSettings) -> None:
        self._store, self._sessions = store, sessions
        self._answering: set[asyncio.Task[None]] = set()
        self._layouts = Layouts()
        store.host.on_evicted = self._layouts.drop
        for gpu in store.gpus.values():
            gpu.on_evicted = self._layouts.drop
        self._operator = Account(settings.client_quota_bytes)
        self._outliving = OutlivingLeases(store)

    # --- open and close, asked over gRPC ---

    async def Open(self, request: pb.OpenRequest, context: grpc.aio.ServicerContext) -> pb.OpenReply:
        session = self._session(request.session)
        descriptor = await self._awaited(session, request.ticket) if request.ticket else None
        opened = await self._open(session, _address(request.address), request.device, descriptor)
        reply = pb.OpenReply(lease=opened.lease, version=opened.version, found_in=opened.found_in)
        with self._handing_over(session, opened):
            reply.MergeFrom(self._layouts.of(opened.model).message)
            await self._hand_over(session, {"lease": opened.lease}, segment_descriptors(opened.model))
        return reply

    async def _awaited(self, session: ClientSession, ticket: str) -> int:
        try:
            return await session.descriptor_of(ticket)
        except (TimeoutError, asyncio.CancelledError):
            raise StoreError("no file descriptor came with the request") from None

    async def Close(self, request: pb.CloseRequest, context: grpc.aio.ServicerContext) -> pb.Empty:
        session = self._session(request.session)
        self._store.close(session.account, request.lease)
        session.leases.discard(request.lease)
        return pb.Empty()

    # --- open and close, asked on the session's own socket ---

    def ask(self, session: ClientSession, message: dict[str, Any], descriptors: list[int]) -> None:
        """ValueError for what is no question; then the descriptors are still the caller's."""
        if "close" in message and not descriptors:
            with contextlib.suppress(StoreError):
                lease = _text(message, "close")
                self._store.close(session.account, lease)
                session.leases.discard(lease)
            return
        question, number = message.get("open"), message.get("id")
        if not isinstance(question, dict) or len(descriptors) > 1:
            raise ValueError("no such question")
        if not isinstance(number, int | str | None):
            raise ValueError("the number of a question is no number")
        task = asyncio.get_running_loop().create_task(self._answer(session, question, number, *descriptors))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(
        self,
        session: ClientSession,
        question: dict[str, Any],
        number: int | str | None,
        descriptor: int | None = None,
    ) -> None:
        session.questions += 1
        try:
            address, device, intermediate_bytes = _asked(question)
            given, descriptor = descriptor, None  # it is the store's to close from here on
            opened = await self._open(session, address, device, given, intermediate_bytes)
            with self._handing_over(session, opened):
                answer = {"id": number, "lease": opened.lease, "version": opened.version}
                descriptors = [self._layouts.of(opened.model).descriptor, *segment_descriptors(opened.model)]
                await self._hand_over(session, answer | {"found_in": opened.found_in}, descriptors)
        except Exception as error:
            refused = refusal(error, "a question on a session's socket")
            with contextlib.suppress(OSError):
                await session.send({"id": number, "error": refused.sentence, "code": refused.code.name})
        finally:
            session.questions -= 1
            if descriptor is not None:
                session.account.close([descriptor])

    # --- both ---

    async def _open(
        self,
        session: ClientSession,
        address: Address,
        device: str,
        descriptor: int | None,
        intermediate_bytes: int = 0,
    ) -> Opened:
        """Opens for a session, which then holds the lease; takes the descriptor over."""
        device = device or "cpu"
        if descriptor is None:
            opened = await self._store.open(session.account, address, device, intermediate_bytes)
        else:
            label = address.name[:MAX_LABEL_CHARACTERS]
            opened = await self._store.open_file(
                session.account, address.namespace, label, descriptor, device, intermediate_bytes
            )
        try:
            if self._sessions.find(session.name) is None:  # it went while the model was loading
                raise StoreError("the session has ended")
            if self._store.is_on_gpu(opened.lease):
                session.watch()
        except StoreError:
            self._store.forget([opened.lease])
            raise
        session.leases.add(opened.lease)
        return opened

    @contextlib.contextmanager
    def _handing_over(self, session: ClientSession, opened: Opened) -> Iterator[None]:
        """The model stays meanwhile. A lease that its client never learns of is given back."""
        with self._store.kept(opened.lease):
            try:
                yield
            except BaseException:
                session.leases.discard(opened.lease)
                self._store.forget([opened.lease])
                raise

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
        await self._store.pin(self._operator, _address(request.address), request.pinned)
        return pb.Empty()

    async def Evict(self, request: pb.EvictRequest, context: grpc.aio.ServicerContext) -> pb.Empty:
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

    def _session(self, name: str) -> ClientSession:
        session = self._sessions.find(name)
        if session is None:
            raise UnknownSession("there is no such session; connect again")
        return session


def _asked(question: dict[str, Any]) -> tuple[Address, str, int]:
    """The model, device and intermediate bytes that a question names; StoreError where it names none."""
    name, version = _text(question, "name"), _text(question, "version")
    address = Address(_text(question, "namespace") or SAFETENSORS, name, version)
    return address, _text(question, "device"), _size(question, "intermediate_bytes")


def _size(question: dict[str, Any], key: str) -> int:
    value = question.get(key, 0)
    if type(value) is not int or not 0 <= value <= MAX_SIZE_BYTES:
        raise StoreError(f"{key!r} of a question must be a whole number from 0 to {MAX_SIZE_BYTES:,}")
    return value


def _text(question: dict[str, Any], key: str) -> str:
    """What a question says, made text that any message can hold; StoreError if it is none.

    Names of files that are no UTF-8 come with halves of characters in them.
    """
    value = question.get(key, "")
    if not isinstance(value, str):
        raise StoreError(f"{key!r} of a question must be text, got {type(value).__name__}")
    return value.encode(errors="replace").decode()


def _address(address: pb.Address) -> Address:
    return Address(address.namespace or SAFETENSORS, address.name, address.version)
