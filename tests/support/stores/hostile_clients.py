"""What hostile clients of a store do, and how it is seen what became of them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import grpc
import pytest
import torch

from serving_adapter import messages
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.torch_side.tensors import state_dict
from tests.support.stores.running_store import RunningStore
from tests.support.stores.weights_files import some_weights


def open_and_check(client, path) -> None:
    with path.open("rb") as file:
        opened = state_dict(client.open_file(file, "good"))
    for name, tensor in some_weights().items():
        assert torch.equal(opened[name], tensor)


def ended_by_store(sock: socket.socket) -> bool:
    """Whether the store closes the connection, whatever it says before."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@contextlib.contextmanager
def opened_fd(path, flags: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def refusal_of(store: RunningStore, descriptor: int, namespace: str = "safetensors") -> grpc.RpcError:
    sock, session = store.session()
    with contextlib.closing(sock), store.stub() as stub:
        messages.send(sock, {"ticket": "t"}, (descriptor,))
        address = pb.Address(name="hostile", namespace=namespace)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Open(pb.OpenRequest(session=session, ticket="t", address=address), timeout=30)
    return refused.value


def f32(elements: int, begin: int = 0) -> dict[str, object]:
    return {"dtype": "F32", "shape": [elements], "data_offsets": [begin, begin + 4 * elements]}
