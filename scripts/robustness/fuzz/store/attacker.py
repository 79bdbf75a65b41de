"""One client of a model store that says whatever the grammar tells it to, and judges each answer."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc

from scripts.robustness.fuzz.calls import CODES_OF_IMPATIENCE, CODES_OF_REFUSALS
from scripts.robustness.fuzz.findings import Findings, no_sentence
from scripts.robustness.fuzz.store.files import SOUND, StoreFiles
from scripts.robustness.fuzz.store.grammar import (
    SERVICE,
    Known,
    Step,
    StoreBytes,
    StoreCall,
    StorePacket,
    step,
)
from serving_adapter import messages
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.protocol import model_store_pb2 as pb

BOUND_S = 60.0  # an answer that takes longer has hung, on a machine that has other work too
MOST_DESCRIPTORS = 253
STEPS_OF_A_CONNECTION = 300
REFUSALS = {*CODES_OF_REFUSALS, grpc.StatusCode.UNAUTHENTICATED}
NOT_SENT = (errno.EMSGSIZE, errno.ETOOMANYREFS)  # the kernel refuses it, or what is in flight is too much


class AttackTally:
    """What all attackers of a run saw."""

    def __init__(self, findings: Findings) -> None:
        self._findings, self._lock = findings, threading.Lock()
        self.kinds: Counter[str] = Counter()
        self.models = 0

    def took(self, kind: str) -> None:
        with self._lock:
            self.kinds[kind] += 1

    def handed_over(self) -> None:
        with self._lock:
            self.models += 1

    def fault(self, what: str, number: int, step: Step, seen: str = "") -> None:
        with self._lock:
            self._findings.add(what, f"{seen} ({step.kind}, packet {number})")

    def broke(self, error: Exception, number: int) -> None:
        """An attacker met what no sound store does, and is gone."""
        with self._lock:
            seen = f"{type(error).__name__}: {error} (packet {number})"
            self._findings.add("a client cannot go on", seen)


class Attacker:
    """Connections to both sockets of a store, remade whenever they end."""

    def __init__(self, endpoint: Endpoint, files: StoreFiles, seed: int, tally: AttackTally) -> None:
        self._endpoint, self._files, self._seed, self._tally = endpoint, files, seed, tally
        self._known = Known()
        self._is_clean = True  # the session's socket has had sound packets alone
        self._steps = 0
        self._socket = self._connected()
        self._channel = self._new_channel()

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._channel.close()

    def take(self, number: int) -> None:
        """Does the step of that number."""
        self._steps += 1
        if self._steps % STEPS_OF_A_CONNECTION == 0:
            self._reconnect()
        taken = step(self._seed, number, self._known)
        self._tally.took(taken.kind)
        try:
            if isinstance(taken, StorePacket):
                self._send(number, taken)
            elif isinstance(taken, StoreCall):
                self._call(number, taken)
            else:
                self._send_bytes(taken)
        except TimeoutError:
            self._tally.fault("hangs: no answer within the bound", number, taken)
            self._reconnect()
        except OSError as error:
            if self._is_clean:
                self._tally.fault("hangs up on a sound client", number, taken, str(error))
            self._reconnect()

    # --- the session's socket ----------------------------------------------------------------------

    def _send(self, number: int, packet: StorePacket) -> None:
        self._is_clean &= packet.kind.startswith("sound")
        self._put(packet.data, packet.descriptors)
        if packet.is_left:
            self._reconnect()
        elif packet.is_sound:
            answer, descriptors = self._receive(number, packet, lambda m: m.get("id") == number)
            with _closing(descriptors):
                if "error" in answer:
                    self._tally.fault("refuses a sound file", number, packet, str(answer["error"]))
                else:
                    self._check(number, packet, descriptors, SOUND.index(packet.descriptors[0]) + 1)
        else:
            self._drain(number, packet)

    def _put(self, data: bytes, kinds: tuple[str, ...]) -> None:
        """OSError if the store has hung up."""
        with _closing([self._files.open(kind) for kind in kinds]) as descriptors:
            try:
                if descriptors:
                    socket.send_fds(self._socket, [data], descriptors)
                else:
                    self._socket.send(data)
            except OSError as error:
                if error.errno not in NOT_SENT:
                    raise

    def _receive(
        self, number: int, step: Step, is_it: Callable[[dict[str, Any]], bool]
    ) -> tuple[dict[str, Any], list[int]]:
        """The packet that is meant; the others are looked at as they pass by."""
        while True:
            message, descriptors = messages.receive_with_descriptors(self._socket, MOST_DESCRIPTORS)
            if message is None:
                raise ConnectionResetError("it hung up")
            self._note(number, step, message)
            if is_it(message):
                return message, descriptors
            with _closing(descriptors):
                pass

    def _drain(self, number: int, step: Step) -> None:
        """Takes what has come by now."""
        self._socket.settimeout(0.0)
        try:
            self._receive(number, step, lambda message: False)
        except BlockingIOError:
            pass
        finally:
            self._socket.settimeout(BOUND_S)

    def _note(self, number: int, step: Step, message: dict[str, Any]) -> None:
        if "error" in message:
            wrong = no_sentence(str(message["error"]))
            if wrong is not None:
                self._tally.fault(wrong, number, step, str(message["error"])[:300])
        elif "lease" in message:
            leases = (*self._known.leases, str(message["lease"]))[-8:]
            self._known = Known(self._known.session, leases)

    def _check(self, number: int, step: Step, descriptors: list[int], filler: int) -> None:
        """The model that was handed over must be that of the file."""
        layout = pb.OpenReply.FromString(os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0))
        for tensor in layout.tensors:
            data = os.pread(descriptors[1 + tensor.segment], tensor.shape[0], tensor.offset_bytes)
            if data != bytes([filler]) * tensor.shape[0]:
                self._tally.fault("hands over another file's bytes", number, step)
                return
        self._tally.handed_over()

    def _connected(self) -> socket.socket:
        """A connection with a session. The store may have to notice first that earlier ones are gone."""
        deadline_s = time.monotonic() + BOUND_S
        while True:
            with contextlib.ExitStack() as unless_let_in:
                sock = unless_let_in.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                sock.settimeout(BOUND_S)
                sock.connect(str(self._endpoint.descriptors))
                answer = messages.receive(sock)
                if answer is not None and "session" in answer:
                    self._known, self._is_clean = Known(str(answer["session"])), True
                    unless_let_in.pop_all()
                    return sock
            if time.monotonic() > deadline_s:
                raise ConnectionError(f"the store lets nobody in: {answer}")

    def _reconnect(self) -> None:
        self._socket.close()
        self._socket = self._connected()

    # --- gRPC --------------------------------------------------------------------------------------

    def _call(self, number: int, call: StoreCall) -> None:
        if call.ticket:
            self._put(b'{"ticket":"%s"}' % call.ticket.encode(), (SOUND[0],))
        is_clean = self._is_clean
        calling = self._channel.unary_unary(SERVICE + call.method).future(
            call.data, timeout=BOUND_S, metadata=call.metadata or None
        )
        if call.cancelled_after_s is not None:
            with contextlib.suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError, grpc.RpcError):
                calling.exception(timeout=call.cancelled_after_s)
            calling.cancel()
        try:
            answer = bytes(calling.result())
        except (grpc.RpcError, grpc.FutureCancelledError):
            self._judge(number, call, calling, is_clean)
        else:
            if call.method == "Open" and call.is_sound:
                lease = pb.OpenReply.FromString(answer).lease
                _, descriptors = self._receive(number, call, lambda message: message.get("lease") == lease)
                with _closing(descriptors):
                    self._tally.handed_over()

    def _judge(self, number: int, call: StoreCall, calling: Any, is_clean: bool) -> None:
        code, details = calling.code(), calling.details()
        if code in CODES_OF_IMPATIENCE:
            if call.cancelled_after_s is None:
                self._tally.fault("hangs: no answer within the bound", number, call, details)
            return
        if code not in REFUSALS:
            self._tally.fault(f"fails with {code.name}", number, call, details)
        elif call.is_sound and (is_clean or call.method != "Open"):
            self._tally.fault("refuses a sound call", number, call, details)
        elif (wrong := no_sentence(details)) is not None:
            self._tally.fault(wrong, number, call, details)

    def _new_channel(self) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.insecure_channel(f"unix:{self._endpoint.rpc}", options)

    def _send_bytes(self, sent: StoreBytes) -> None:
        """Says something on a connection of its own, and goes."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(BOUND_S)
            sock.connect(str(self._endpoint.rpc))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(sent.data)
        self._channel.close()
        self._channel = self._new_channel()


@contextlib.contextmanager
def _closing(descriptors: list[int]) -> Any:
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
