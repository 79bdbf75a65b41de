"""A gRPC connection to a server of the Open Inference Protocol, which counts its calls."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.control_key import CONTROL_KEY_HEADER
from serving_adapter.target.error import TargetError
from serving_adapter.target.lease import TunerLease
from serving_adapter.target.open_inference.grpc_errors import explain

CONTROL_CALLS = ("RepositoryModelLoad", "RepositoryModelUnload")
RESTRICTED = "protocol is restricted"  # how a Triton asks for the key of other calls
MAX_IDLE_S = 30.0  # balancers forget silent connections after minutes, and tell nobody


class Connection:
    """Every failure is a TargetError of one sentence; a TargetLost once the server is `known`.

    The control key goes with control calls only, and with those of which the server says that it wants one.
    It never travels unencrypted to another machine. After a silence the next call goes over a new connection.
    """

    def __init__(
        self,
        address: str,
        is_local: bool,
        timeout_s: float,
        calls: Counter[str],
        control_key: str | None = None,
        tls_ca: str | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.known = False
        self.lease: TunerLease | None = None  # what every load carries
        self._timeout_s = timeout_s
        self._calls = calls
        self._control_key = control_key
        self._with_key = set(CONTROL_CALLS if control_key else ())
        self._is_private = is_local or tls_ca is not None
        self._open_channel = partial(_channel, address, is_local, tls_ca)
        self._clock_s, self._used_s, self._in_use = clock_s, clock_s(), 0
        self._lock = threading.Lock()
        self._open()

    def call(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        timeout_s = timeout_s or self._timeout_s
        try:
            return self._answer(method, request, timeout_s)
        except grpc.RpcError as error:
            raise explain(error, self.address, method, timeout_s, self.known) from None

    def call_packed(self, method: str, request: bytes) -> bytes:
        """A call beside the protocol, of two messages of bytes; `method` is its path."""
        name = method.rpartition("/")[2]
        self._calls[name] += 1
        try:
            with self._used():
                answer = self._channel.unary_unary(method)(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise explain(error, self.address, name, self._timeout_s, self.known) from None
        return bytes(answer)

    def fails_by(self, method: str, request: Any, codes: tuple[grpc.StatusCode, ...]) -> None:
        """A call that is to fail, by one of these codes; any other is an error."""
        try:
            self._answer(method, request, self._timeout_s)
        except grpc.RpcError as error:
            if error.code() not in codes:
                raise explain(error, self.address, method, self._timeout_s, self.known) from None

    def close(self) -> None:
        self._channel.close()

    def _answer(self, method: str, request: Any, timeout_s: float) -> Any:
        self._calls[method] += 1
        try:
            return self._sent(method, request, timeout_s)
        except grpc.RpcError as error:
            if not self._control_key or method in self._with_key or RESTRICTED not in (error.details() or ""):
                raise
        self._with_key.add(method)
        return self._sent(method, request, timeout_s)

    def _sent(self, method: str, request: Any, timeout_s: float) -> Any:
        metadata: list[tuple[str, str | None]] = []
        if method in self._with_key:
            if not self._is_private:
                raise TargetError(
                    f"the control key would travel unencrypted to {self.address}; give the certificates of a "
                    "server with TLS (--tls-ca), or reach it through a tunnel on this machine (ssh -L)"
                )
            metadata.append((CONTROL_KEY_HEADER, self._control_key))
        with self._used():
            return getattr(self._stub, method)(request, timeout=timeout_s, metadata=metadata)

    def _open(self) -> None:
        self._channel = self._open_channel()
        self._stub = GRPCInferenceServiceStub(self._channel)

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Keeps the channel meanwhile, which is a new one where the old one was silent for long."""
        with self._lock:
            if not self._in_use and self._clock_s() - self._used_s > MAX_IDLE_S:
                self._channel.close()
                self._open()
            self._in_use += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_use -= 1
                self._used_s = self._clock_s()


def _channel(address: str, is_local: bool, tls_ca: str | None) -> grpc.Channel:
    # Its own pool: a new channel to a server that came back must not inherit the old one's back-off.
    options = [("grpc.use_local_subchannel_pool", 1)]
    if is_local:
        options.append(("grpc.enable_http_proxy", 0))  # no proxy is between a machine and itself
    if tls_ca is None:
        return grpc.insecure_channel(address, options=options)
    try:
        with open(tls_ca, "rb") as file:
            certificates = file.read()
    except OSError as error:
        raise TargetError(
            f"cannot read the TLS certificates {tls_ca!r}: {error.strerror}; give a PEM file"
        ) from None
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(certificates), options=options)
