"""The counts of a tap within a Python client, for users who can put nothing between it and the server.

tally = ClientTally()
serve_tally(tally, port=8102, server_metrics_url="http://triton:8002/metrics")
client = tritonclient.grpc.InferenceServerClient("triton:8001")
count_requests_of(client, tally)

For a channel of one's own: `grpc.intercept_channel(channel, LatencyInterceptor(tally))`. Streams are not
counted, and neither are clients of `grpc.aio`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.server.metrics.page_server import serve_application
from serving_adapter.tap.calls import MODEL_INFER
from serving_adapter.tap.page import page_of
from serving_adapter.tap.tally import ClientTally


class LatencyInterceptor(grpc.UnaryUnaryClientInterceptor):
    """Counts the inference requests of the channels that it is put into."""

    def __init__(self, tally: ClientTally) -> None:
        self._tally = tally

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        if str(details.method).encode() != MODEL_INFER:
            return continuation(details, request)
        model, begun_s = self._tally.known(request.model_name), time.monotonic()
        self._tally.begun(model)
        call = continuation(details, request)
        call.add_done_callback(
            lambda ended: self._tally.answered(model, ended.code().name, time.monotonic() - begun_s)
        )
        return call


def count_requests_of(client: InferenceServerClient, tally: ClientTally) -> None:
    """Counts what tritonclient's client infers from now on, by `infer` and `async_infer`.

    TypeError for a client of another kind. A plugin of tritonclient would hear of no answers.
    """
    if not isinstance(client, InferenceServerClient):
        raise TypeError(
            f"must be a tritonclient.grpc.InferenceServerClient, got {type(client).__module__}."
            f"{type(client).__name__}; put rrl-tap before the server for clients of other kinds"
        )
    channel = grpc.intercept_channel(client._channel, LatencyInterceptor(tally))
    client._client_stub = GRPCInferenceServiceStub(channel)


def serve_tally(
    tally: ClientTally, port: int, server_metrics_url: str | None = None, host: str = "127.0.0.1"
) -> int:
    """Serves the page that `rrl-tune --metrics-url` reads; returns its port, a free one for 0."""
    return serve_application(page_of(tally, server_metrics_url), host, port)
