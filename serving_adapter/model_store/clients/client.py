"""A client of the store: opens models, maps what it is handed, and gives it back when it is garbage.

It asks on the socket of its session. That takes a millisecond and needs no thread, so the process may fork
afterwards. gRPC is imported for an operator's questions only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TypeVar

from serving_adapter import messages
from serving_adapter.model_store.clients.access import ANSWER_TIMEOUT_S, StoreAccess
from serving_adapter.model_store.clients.operators_rpc import ERRORS, OperatorsRpc
from serving_adapter.model_store.endpoint import TOKEN_VARIABLE, Endpoint, default_endpoint
from serving_adapter.model_store.errors import StoreError, StoreUnavailable
from serving_adapter.model_store.mapped_memory import MappedMemory
from serving_adapter.model_store.protocol import model_store_pb2 as pb

OPEN_TIMEOUT_S = 3600.0  # for a large model from far away; a store that dies is noticed at once
MAX_DESCRIPTORS = 253

Reply = TypeVar("Reply")


class OpenedModel(NamedTuple):
    """What a client holds of a model: where its tensors lie, and the memory they lie in.

    `memory` is None on a GPU, where `segments[0].cuda_handle` opens it. `device` is "cuda:N" there, counted
    as the store's process sees the devices. `lease` names the reference. `give_back` ends it; what is in
    host memory does so by itself.
    """

    tensors: Sequence[pb.Tensor]
    segments: Sequence[pb.Segment]
    memory: MappedMemory | None
    version: str
    found_in: str
    lease: str
    give_back: Callable[[], None]
    device: str = "cpu"


class Client:
    """One connection to a store; safe to use from several threads. Close it, or let the process end.

    A forked process shares its parent's references, and must make a client of its own to open more.
    """

    def __init__(
        self, endpoint: Endpoint | None = None, *, token: str | None = None, starts_store: bool = True
    ) -> None:
        self.endpoint = endpoint or default_endpoint()
        self._token = token or os.environ.get(TOKEN_VARIABLE) or None
        self._access = StoreAccess(self.endpoint, self._token, starts_store)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._rpc: OperatorsRpc | None = None
        self._to_close: deque[str] = deque()
        self._asked = 0
        self.session = ""

    @property
    def give_up_s(self) -> float | None:
        """On the monotonic clock: whoever can do without the store waits for it until then."""
        return self._access.give_up_s

    @give_up_s.setter
    def give_up_s(self, until_s: float | None) -> None:
        self._access.give_up_s = until_s

    # --- models ------------------------------------------------------------------------------------

    def open(
        self,
        name: str,
        version: str = "",
        namespace: str = "safetensors",
        device: str = "cpu",
        *,
        intermediate_bytes: int = 0,
    ) -> OpenedModel:
        """Opens a model of the store's repositories; an empty version is the newest.

        On a GPU the store keeps `intermediate_bytes` free, for what this process computes with the model.
        UnknownModel, NoRoom, StoreUnavailable or another StoreError, each with one sentence.
        """
        question: dict[str, Any] = {"name": name, "version": version, "namespace": namespace}
        question |= {"device": device, "intermediate_bytes": intermediate_bytes}
        return self._retrying(lambda: self._open(question))

    def open_file(
        self,
        file: BinaryIO,
        label: str,
        namespace: str = "safetensors",
        device: str = "cpu",
        *,
        copies_on_write: bool = False,
        intermediate_bytes: int = 0,
    ) -> OpenedModel:
        """Opens the weights in an open file; the store reads them through its descriptor.

        With `copies_on_write` the memory may be written to, and what is written stays in this process.
        """
        question: dict[str, Any] = {"name": label, "namespace": namespace}
        question |= {"device": device, "intermediate_bytes": intermediate_bytes}
        return self._retrying(lambda: self._open(question, (file.fileno(),), copies_on_write))

    def _open(
        self, question: dict[str, Any], descriptors: tuple[int, ...] = (), copies_on_write: bool = False
    ) -> OpenedModel:
        assert self._socket is not None
        self._send_closes()
        self._socket.settimeout(self._access.left_s(OPEN_TIMEOUT_S))
        self._asked += 1
        messages.send(self._socket, {"open": question, "id": self._asked}, descriptors)
        reply, received = self._receive("id", self._asked)
        if "error" in reply:
            raise ERRORS.get(reply.get("code", ""), StoreError)(reply["error"])
        lease = str(reply["lease"])
        try:
            layout, memory = self._mapped(lease, received, copies_on_write)
        except BaseException:
            self.give_back(self.session, lease)
            raise
        if memory is not None:
            weakref.finalize(memory.buffer, self.give_back, self.session, lease).atexit = False
        # What is on a GPU outlives the session in the store: it may only go when its memory is closed here.
        give_back = partial(self.give_back, self.session if memory is not None else None, lease)
        device = "cuda:0" if question["device"] == "cuda" else question["device"]
        return OpenedModel(
            *(layout.tensors, layout.segments, memory, reply["version"], reply["found_in"]),
            *(lease, give_back, device),
        )

    def _mapped(
        self, lease: str, received: list[int], copies_on_write: bool
    ) -> tuple[pb.OpenReply, MappedMemory | None]:
        """Maps each descriptor as it comes, so that few are open at once."""
        try:
            layout = _layout(received[0])
            if any(segment.cuda_handle for segment in layout.segments):
                return layout, None
            sizes = [segment.size_bytes for segment in layout.segments]
            memory = _mapping(partial(MappedMemory, copies_on_write=copies_on_write), sizes)
            os.close(received.pop(0))
            for i in range(len(layout.segments)):
                if not received:
                    _, received = self._receive("lease", lease)
                _mapping(memory.map, i, received[0])
                os.close(received.pop(0))
            return layout, memory
        finally:
            for descriptor in received:
                os.close(descriptor)

    def _receive(self, key: str, value: object) -> tuple[dict[str, Any], list[int]]:
        """The packet with that key and value; those of questions that were interrupted are dropped."""
        assert self._socket is not None
        while True:
            try:
                message, descriptors = messages.receive_with_descriptors(self._socket, MAX_DESCRIPTORS)
            except ValueError as error:
                raise ConnectionError(f"its answer cannot be read ({error})") from None
            if message is None:
                raise ConnectionResetError("it ended")
            if message.get(key) == value:
                return message, descriptors
            for descriptor in descriptors:
                os.close(descriptor)
            if "id" in message and "lease" in message:
                self.give_back(self.session, message["lease"])

    # --- giving back -------------------------------------------------------------------------------

    def give_back(self, session: str | None, lease: str) -> None:
        """Tells the store, without waiting: garbage is collected anywhere.

        Does nothing in a forked process, whose parent holds the lease, nor when that session has ended. A
        lease of any session (None) is given back as soon as there is one.
        """
        sock = self._socket
        if os.getpid() != self._pid or session not in (None, self.session):
            return
        if sock is None:
            if session is None:
                self._to_close.append(lease)
            return
        try:
            os.write(sock.fileno(), b'{"close":"%s"}' % lease.encode())  # with a timeout, it never blocks
        except BlockingIOError:
            self._to_close.append(lease)  # with the next question
        except OSError:
            pass  # the store ended, and the lease with it

    def _send_closes(self) -> None:
        assert self._socket is not None
        while self._to_close:
            messages.send(self._socket, {"close": self._to_close.popleft()})

    def close(self) -> None:
        """Gives every reference back. Tensors that are still around stay valid."""
        with self._lock:
            self._disconnect()

    def end_with_process(self) -> None:
        """Hangs up as the end of the process does. Those forked from it go on with its references."""
        if self._lock.acquire(blocking=False):  # else a thread still asks, and nobody waits for it at the end
            try:
                if self._socket is not None:
                    self._socket.close()
                self._socket = None
            finally:
                self._lock.release()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- an operator's questions -------------------------------------------------------------------

    def call(self, method: str, request: Any, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """`List`, `Pin`, `Evict` or `Stats` over gRPC, which starts threads. Never starts a store."""
        with self._lock:
            for is_last in (self._rpc is None, True):
                if self._rpc is None:
                    try:
                        self.endpoint.check()
                        self.endpoint.rpc.stat()
                    except FileNotFoundError:
                        raise self._access.absent() from None
                    except OSError as error:
                        raise self._access.silent(error.strerror or error) from None
                    self._rpc = OperatorsRpc(self.endpoint, self._token)
                try:
                    return self._rpc(method, request, timeout_s)
                except StoreUnavailable:  # it may have been another store, which has ended
                    self._rpc.close()
                    self._rpc = None
                    if is_last:
                        raise
            raise AssertionError("the last attempt returns or raises")

    # --- the connection ----------------------------------------------------------------------------

    def _retrying(self, attempt: Callable[[], Reply]) -> Reply:
        """Connects first if need be, and once more if the store turns out to have ended."""
        if os.getpid() != self._pid:
            raise StoreError("a forked process must make a client of its own")
        with self._lock:
            for is_last in (self._socket is None, True):
                self._connect()
                try:
                    return attempt()
                except OSError as error:
                    self._disconnect()
                    if is_last or isinstance(error, TimeoutError):
                        raise self._access.silent(error) from None
            raise AssertionError("the last attempt returns or raises")

    def _connect(self) -> None:
        if self._socket is None:
            self._socket, self.session = self._access.session()

    def _disconnect(self) -> None:
        if self._rpc is not None:
            self._rpc.close()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # a forked process may have it open too
            self._socket.close()
        self._rpc = self._socket = None
        self.session = ""


def _layout(descriptor: int) -> pb.OpenReply:
    return pb.OpenReply.FromString(os.pread(descriptor, os.fstat(descriptor).st_size, 0))


def _mapping(function: Callable[..., Reply], *arguments: Any) -> Reply:
    """A refusal by the kernel is this process's trouble, not the connection's."""
    try:
        return function(*arguments)
    except OSError as error:
        raise StoreError(f"the model cannot be mapped into this process: {error.strerror}") from None
