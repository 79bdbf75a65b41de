"""A gRPC connection to a server of the Open Inference Protocol, which counts its calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import grpc
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.control_key import CONTROL_KEY_HEADER
from serving_adapter.target.error import TargetError, explain
from serving_adapter.target.lease import TunerLease


class Connection:
    """Every failure is a TargetError of one sentence; a TargetLost once the server is `known`."""

    def __init__(
        self,
        address: str,
        is_local: bool,
        timeout_s: float,
        calls: Counter[str],
        control_key: str | None = None,
        tls_ca: str | None = None,
    ) -> None:
        self.address = address
        self.known = False
        self.lease: TunerLease | None = None  # what every load carries
        self._timeout_s = timeout_s
        self._calls = calls
        self._metadata = ((CONTROL_KEY_HEADER, control_key),) if control_key else ()
        self._channel = _channel(address, is_local, tls_ca)
        self._stub = GRPCInferenceServiceStub(self._channel)

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
            answer = self._channel.unary_unary(method)(
                request, timeout=self._timeout_s, metadata=self._metadata
            )
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
        return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)


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
