"""Clients of the `server` that a module of tests starts."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from tritonclient import grpc as triton
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub


@pytest.fixture
def client(server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


@pytest.fixture
def stub(server) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(server.address) as channel:
        yield GRPCInferenceServiceStub(channel)
