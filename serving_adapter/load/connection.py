"""The load generator's way to a server: channels, and the wait until the model there can be called."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.address import ServerAddress
from serving_adapter.target import TargetError
from serving_adapter.target.open_inference.grpc_errors import explain

ANSWER_TIMEOUT_S = 2.0  # for a question about readiness or metadata
POLL_S = 0.1
CODES_WITHOUT_INDEX = (
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAVAILABLE,
)


class NotYetReady(TargetError):
    """The server or the model does not answer yet, and may if one waits."""


@dataclass(frozen=True)
class ModelSignature:
    """What a client must know of a model to call it."""

    name: str
    inputs: Sequence[Any]  # TensorMetadata: name, datatype, shape
    is_batched: bool  # whether the inputs' first dimension is that of the batch


def open_channels(address: str, connections: int, tls_ca: Path | None) -> list[grpc.aio.Channel]:
    """Channels with a connection each, that find a server which comes back within a second."""
    where = ServerAddress.parse(address)
    address = str(where)
    options = [
        ("grpc.enable_http_proxy", int(not where.is_local)),  # no proxy is between a machine and itself
        ("grpc.use_local_subchannel_pool", 1),  # or channels to one address would share a connection
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
    ]
    if tls_ca is None:
        return [grpc.aio.insecure_channel(address, options) for _ in range(connections)]
    try:
        credentials = grpc.ssl_channel_credentials(tls_ca.read_bytes())
    except OSError as error:
        raise TargetError(f"cannot read the TLS certificates {tls_ca}: {error.strerror}") from error
    return [grpc.aio.secure_channel(address, credentials, options) for _ in range(connections)]


async def wait_for_model(
    channel: grpc.aio.Channel, address: str, model: str | None, wait_s: float
) -> ModelSignature:
    """The model as the server describes it, once it is ready; the server's only model if none is named."""
    end_s = time.monotonic() + wait_s
    while True:
        try:
            return await _describe(channel, address, model)
        except NotYetReady as error:
            if time.monotonic() >= end_s:
                raise TargetError(f"{error} (waited {wait_s:g} s)") from None
        await asyncio.sleep(POLL_S)


async def _describe(channel: grpc.aio.Channel, address: str, model: str | None) -> ModelSignature:
    stub = GRPCInferenceServiceStub(channel)

    async def ask(method: str, request: Any) -> Any:
        try:
            return await getattr(stub, method)(request, timeout=ANSWER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise _explained(error, address, method) from error

    async def serves(name: str) -> bool:
        return bool((await ask("ModelReady", messages.ModelReadyRequest(name=name))).ready)

    # A server is not ready either where another of its models could not be loaded.
    is_ready = (await ask("ServerReady", messages.ServerReadyRequest())).ready
    if not is_ready and (model is None or not await serves(model)):
        raise NotYetReady(f"the server at {address} answers, but is not ready")
    name = await _choose(stub, address, model)
    if not await serves(name):
        raise NotYetReady(f"the model {name!r} at {address} is not ready")
    metadata = await ask("ModelMetadata", messages.ModelMetadataRequest(name=name))
    config = await ask("ModelConfig", messages.ModelConfigRequest(name=name))
    return ModelSignature(name, metadata.inputs, config.config.max_batch_size >= 1)


async def _choose(stub: GRPCInferenceServiceStub, address: str, model: str | None) -> str:
    """The named model if the server knows it (or does not list its models), else its only one."""
    try:
        index = await stub.RepositoryIndex(messages.RepositoryIndexRequest(), timeout=ANSWER_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if model is not None and error.code() in CODES_WITHOUT_INDEX:
            return model
        raise _explained(error, address, "RepositoryIndex") from error
    names = sorted({entry.name for entry in index.models})
    if model is not None:
        if model in names:
            return model
        there = f"the models there: {', '.join(names)}" if names else "it serves none"
        raise TargetError(f"{address} has no model {model!r}; {there}")
    if len(names) != 1:
        there = f"one of {', '.join(names)}" if names else "but it serves none"
        raise TargetError(f"give --model, the model at {address} to call: {there}")
    return names[0]


def _explained(error: grpc.aio.AioRpcError, address: str, method: str) -> TargetError:
    explained = explain(error, address, method, ANSWER_TIMEOUT_S, was_connected=False)
    return NotYetReady(str(explained)) if _may_pass(error) else explained


def _may_pass(error: grpc.aio.AioRpcError) -> bool:
    """Whether waiting may help; what speaks another protocol will not learn ours."""
    details = (error.details() or "").lower()
    if "failed parsing http/2" in details or "http1" in details:
        return False
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
