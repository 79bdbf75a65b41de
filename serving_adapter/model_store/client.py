"""A client of the store: opens models, maps what it is handed, and gives it back when it is garbage.

It starts a store where none runs, and a new one where the old one died. gRPC starts threads, which a
process that is to fork must not have; a client made with `thread_free=True` has a forked child do its calls.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

from serving_adapter import messages
from serving_adapter.model_store.endpoint import (
    TOKEN_VARIABLE,
    Endpoint,
    bearer,
    default_endpoint,
    make_folder,
)
from serving_adapter.model_store.errors import NoRoom, StoreError, StoreUnavailable, UnknownModel
from serving_adapter.model_store.protocol import model_store_pb2 as pb

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 10.0  # of what the store does without reading a model
OPEN_TIMEOUT_S = 3600.0  # of a large model from far away; a store that dies is noticed at once
START_TIMEOUT_S = 60.0
IDLE_EXIT_S = 60.0  # of a store that a client started
MAX_REPLY_BYTES = 64 << 20
MAX_DESCRIPTORS = 253
NOT_FOR_THE_STORE = "MALLOC_"  # settings that rrl-serve gives its workers

Reply = TypeVar("Reply")


class OpenedModel(NamedTuple):
    """What a client holds of a model: where its tensors lie, and the segments as read-only maps."""

    tensors: Sequence[pb.Tensor]
    segments: Sequence[pb.Segment]
    maps: Sequence[mmap.mmap | None]  # None where a segment is empty, or on a GPU
    version: str
    found_in: str
    lease: Lease


class Calls(Protocol):
    """How a client reaches the store's gRPC service."""

    def __call__(self, method: str, request: Any, timeout_s: float) -> Any: ...

    def close(self) -> None: ...


class Lease:
    """A reference to a model, given back by `close`, or when the last of its maps is garbage."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self.name, self._session = client, name, client.session
        self._alive: list[None] = []

    def ends_with(self, maps: Sequence[object]) -> None:
        """Maps are kept alive by the tensors that lie in them."""
        self._alive = [None] * len(maps)
        for map_ in maps:
            weakref.finalize(map_, self._map_gone).atexit = False
        if not maps:
            self.close()

    def _map_gone(self) -> None:
        self._alive.pop()  # atomic: maps may end in several threads at once
        if not self._alive:
            self.close()

    def close(self) -> None:
        """Tells the store soon, from another thread; a finalizer must not wait."""
        self._client.give_back(self._session, self.name)


class Client:
    """One connection to a store; safe to use from several threads. Close it, or let the process end.

    A forked process shares its parent's references, and must make a client of its own to open more.
    """

    def __init__(
        self,
        endpoint: Endpoint | None = None,
        *,
        token: str | None = None,
        starts_store: bool = True,
        thread_free: bool = False,
    ) -> None:
        self.endpoint = endpoint or default_endpoint()
        self._token = token or os.environ.get(TOKEN_VARIABLE) or None
        self._starts_store, self._thread_free = starts_store, thread_free
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._to_close: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._closer: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._calls: Calls | None = None
        self.session = ""

    # --- models ------------------------------------------------------------------------------------

    def open(
        self, name: str, version: str = "", namespace: str = "safetensors", device: str = "cpu"
    ) -> OpenedModel:
        """Opens a model of the store's repositories; an empty version is the newest.

        UnknownModel, NoRoom, StoreUnavailable or another StoreError, each with one sentence.
        """
        address = pb.Address(namespace=namespace, name=name, version=version)
        return self._retrying(lambda: self._open(pb.OpenRequest(address=address, device=device)))

    def open_file(
        self, file: BinaryIO, label: str, namespace: str = "safetensors", device: str = "cpu"
    ) -> OpenedModel:
        """Opens the weights in an open file; the store reads them through its descriptor."""
        address = pb.Address(namespace=namespace, name=label)

        def attempt() -> OpenedModel:
            assert self._socket is not None
            ticket = secrets.token_hex(8)
            messages.send(self._socket, {"ticket": ticket}, (file.fileno(),))
            return self._open(pb.OpenRequest(address=address, device=device, ticket=ticket))

        return self._retrying(attempt)

    def call(self, method: str, request: Any, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """One of the service's other methods: `List`, `Pin`, `Evict`, `Stats`."""
        return self._retrying(lambda: self._call(method, request, timeout_s))

    def _open(self, request: pb.OpenRequest) -> OpenedModel:
        request.session = self.session
        reply = self._call("Open", request, OPEN_TIMEOUT_S)
        lease = Lease(self, reply.lease)
        on_gpu = any(segment.cuda_handle for segment in reply.segments)
        descriptors = [] if on_gpu else self._descriptors(reply.lease, len(reply.segments))
        maps: list[mmap.mmap | None] = [None] * len(reply.segments)
        try:
            for i, descriptor in enumerate(descriptors):
                if reply.segments[i].size_bytes:
                    maps[i] = mmap.mmap(descriptor, reply.segments[i].size_bytes, prot=mmap.PROT_READ)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if not on_gpu:
            lease.ends_with([map_ for map_ in maps if map_ is not None])
        self._start_closer()
        return OpenedModel(reply.tensors, reply.segments, maps, reply.version, reply.found_in, lease)

    def _descriptors(self, lease: str, count: int) -> list[int]:
        assert self._socket is not None
        descriptors: list[int] = []
        while len(descriptors) < count:
            message, received = messages.receive_with_descriptors(self._socket, MAX_DESCRIPTORS)
            if message is None:
                raise ConnectionResetError("the store ended")
            if message.get("lease") == lease:
                descriptors += received
            else:  # of an earlier call that was interrupted
                for descriptor in received:
                    os.close(descriptor)
        return descriptors

    # --- giving back -------------------------------------------------------------------------------

    def give_back(self, session: str, lease: str) -> None:
        """Queues a lease to be closed. In a forked process it does nothing: the lease is the parent's."""
        if os.getpid() == self._pid:
            self._to_close.put((session, lease))

    def _start_closer(self) -> None:
        if self._closer is None and not self._thread_free:
            self._closer = threading.Thread(target=self._close_leases, name="rrl-store-close", daemon=True)
            self._closer.start()

    def _close_leases(self) -> None:
        while (item := self._to_close.get()) is not None:
            session, lease = item
            with self._lock, contextlib.suppress(StoreError, OSError):
                if session == self.session and self._calls is not None:
                    self._call("Close", pb.CloseRequest(session=session, lease=lease), ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Gives every reference back. Tensors that are still around stay valid."""
        self._to_close.put(None)
        if self._closer is not None:
            self._closer.join(ANSWER_TIMEOUT_S)
        with self._lock:
            self._disconnect()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the connection ----------------------------------------------------------------------------

    def _retrying(self, attempt: Callable[[], Reply]) -> Reply:
        """Connects first if need be, and once more if the store turns out to have ended."""
        if os.getpid() != self._pid:
            raise StoreError("a forked process must make a client of its own")
        with self._lock:
            was_connected = self._socket is not None
            self._connect()
            try:
                return attempt()
            except (OSError, StoreUnavailable) as error:
                self._disconnect()
                if not was_connected:
                    raise self._silent(error) from None
            self._connect()
            try:
                return attempt()
            except OSError as error:
                self._disconnect()
                raise self._silent(error) from None

    def _silent(self, error: Exception | str = "it says nothing") -> StoreUnavailable:
        return StoreUnavailable(f"the store at {self.endpoint.folder} does not answer: {error}")

    def _connect(self) -> None:
        if self._socket is not None:
            return
        try:
            self._socket = self._greeted()
        except (FileNotFoundError, ConnectionRefusedError):
            if not self._starts_store:
                raise StoreUnavailable(
                    f"no model store runs at {self.endpoint.folder}; start one with: rrl-store serve"
                ) from None
            with _one_starter(self.endpoint):
                try:  # somebody else may have started it while we waited for our turn
                    self._socket = self._greeted()
                except (FileNotFoundError, ConnectionRefusedError):
                    _start_store(self.endpoint, self._token)
                    self._socket = self._greeted()
        self._calls = (_CallsByChild if self._thread_free else _CallsByChannel)(self.endpoint, self._token)

    def _greeted(self) -> socket.socket:
        """A connection to the descriptors' socket, with a session."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.endpoint.check()
            sock.settimeout(ANSWER_TIMEOUT_S)
            sock.connect(str(self.endpoint.descriptors))
            messages.send(sock, {"token": self._token})
            answer = messages.receive(sock)
        except PermissionError:
            sock.close()
            raise StoreError(f"the store at {self.endpoint.folder} belongs to another user") from None
        except TimeoutError:
            sock.close()
            raise self._silent() from None
        except BaseException:
            sock.close()
            raise
        if answer is None:
            sock.close()
            raise ConnectionRefusedError("the store ended")
        if "error" in answer:
            sock.close()
            raise StoreError(str(answer["error"]))
        self.session = str(answer["session"])
        return sock

    def _disconnect(self) -> None:
        if self._calls is not None:
            self._calls.close()
        if self._socket is not None:
            self._socket.close()
        self._calls = self._socket = None
        self.session = ""

    def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        assert self._calls is not None
        return self._calls(method, request, timeout_s)


class _CallsByChannel:
    """Calls over a gRPC channel of this process."""

    def __init__(self, endpoint: Endpoint, token: str | None) -> None:
        import grpc

        from serving_adapter.model_store.protocol.model_store_pb2_grpc import ModelStoreStub

        options = [("grpc.max_receive_message_length", MAX_REPLY_BYTES)]
        self._channel = grpc.insecure_channel(f"unix:{endpoint.rpc}", options)
        self._stub = ModelStoreStub(self._channel)
        self._metadata = bearer(token)
        self._error = grpc.RpcError

    def __call__(self, method: str, request: Any, timeout_s: float) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except self._error as error:
            raise _told(error.code().name, error.details() or "") from None

    def close(self) -> None:
        self._channel.close()


class _CallsByChild:
    """Calls from a forked child each: this process stays without threads."""

    def __init__(self, endpoint: Endpoint, token: str | None) -> None:
        self._endpoint, self._token = endpoint, token

    def __call__(self, method: str, request: Any, timeout_s: float) -> Any:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            self._in_child(method, request, timeout_s, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        with contextlib.suppress(ChildProcessError):  # whoever reaps all children may have been quicker
            os.waitpid(pid, 0)
        code, _, body = answer.partition(b"\n")
        if code == b"OK":
            return _REPLIES[method].FromString(body)
        raise _told(code.decode(), body.decode(errors="replace"))

    def _in_child(self, method: str, request: Any, timeout_s: float, writing: int) -> None:
        try:
            with os.fdopen(writing, "wb") as pipe:
                try:
                    calls = _CallsByChannel(self._endpoint, self._token)
                    pipe.write(b"OK\n" + calls(method, request, timeout_s).SerializeToString())
                except StoreError as error:
                    pipe.write(f"{_code_of(error)}\n{error}".encode())
        finally:
            os._exit(0)  # no exit handlers: they are the parent's

    def close(self) -> None: ...


_REPLIES: dict[str, Any] = {
    "Open": pb.OpenReply,
    "Close": pb.Empty,
    "List": pb.ListReply,
    "Stats": pb.StatsReply,
}
_ERRORS = {"NOT_FOUND": UnknownModel, "RESOURCE_EXHAUSTED": NoRoom, "UNAVAILABLE": StoreUnavailable}


def _told(code: str, details: str) -> StoreError:
    """The store's error as this side's exception; a session that is no more means that it was restarted."""
    if code == "UNAUTHENTICATED" and "session" in details:
        return StoreUnavailable(details)
    return _ERRORS.get(code, StoreError)(details or f"the store failed with {code or 'nothing'}")


def _code_of(error: StoreError) -> str:
    return next((code for code, kind in _ERRORS.items() if type(error) is kind), "FAILED_PRECONDITION")


@contextlib.contextmanager
def _one_starter(endpoint: Endpoint) -> Iterator[None]:
    """One process at a time looks for a store and starts one."""
    make_folder(endpoint)
    with (endpoint.folder / "starting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start_store(endpoint: Endpoint, token: str | None) -> None:
    """Returns when it listens. It ends by itself when it had no client for a while."""
    command = [sys.executable, "-m", "serving_adapter.model_store.command_line", "serve", "--detach"]
    command += ["--folder", str(endpoint.folder), "--idle-exit-s", str(IDLE_EXIT_S)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(NOT_FOR_THE_STORE)}
    if token is not None:
        environment[TOKEN_VARIABLE] = token
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=START_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise StoreUnavailable(f"a model store did not start within {START_TIMEOUT_S:g} s") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise StoreUnavailable(f"no model store could be started: {reason[0]}")
