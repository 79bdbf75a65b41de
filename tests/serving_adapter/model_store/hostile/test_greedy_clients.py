"""A client that wants too much ends at its limits; others are served on."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading

import grpc
import pytest
import torch

from serving_adapter import messages
from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from tests.support.stores.hostile_clients import f32, open_and_check
from tests.support.stores.running_store import Seen
from tests.support.stores.weights_files import saved, with_header
from tests.support.waiting import until


def test_more_questions_at_once_than_a_client_may_ask_disconnect_it(unharmed):
    sock, _ = unharmed.session()
    with contextlib.closing(sock), contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for number in range(10_000):
            messages.send(sock, {"open": {"name": "served"}, "id": number})
        pytest.fail("it was never disconnected")


def test_more_tickets_than_a_client_may_have_disconnect_it(unharmed, good_file):
    sock, _ = unharmed.session()
    with contextlib.closing(sock), good_file.open("rb") as file:

        def send_many() -> None:
            for i in range(10_000):
                messages.send(sock, {"ticket": str(i)}, (file.fileno(),))

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_many()


def test_opens_without_closes_end_at_the_limit_and_return_with_the_connection(unharmed):
    with unharmed.stub() as stub:
        sock, session = unharmed.session()
        with contextlib.closing(sock):
            request = pb.OpenRequest(session=session, address=pb.Address(name="served"))

            def read() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        message, descriptors = messages.receive_with_descriptors(sock, 253)
                        for descriptor in descriptors:
                            os.close(descriptor)
                        if message is None:
                            return

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            opened: list[str] = []

            def open_many() -> None:
                while len(opened) < 20_000:
                    opened.append(stub.Open(request).lease)

            with pytest.raises(grpc.RpcError, match="2,000 models open, the most it may"):
                open_many()
            assert len(opened) == 2_000
            unharmed.good.is_served_again()
            sock.shutdown(socket.SHUT_RDWR)
            reader.join(30)


def test_a_client_that_never_reads_its_descriptors_is_disconnected(unharmed):
    with unharmed.stub() as stub:
        sock, session = unharmed.session()
        with contextlib.closing(sock):
            request = pb.OpenRequest(session=session, address=pb.Address(name="served"))

            def open_many() -> None:
                for _ in range(9_000):
                    stub.Open(request)

            with pytest.raises(grpc.RpcError, match="does not take the descriptors"):
                open_many()
            with pytest.raises(grpc.RpcError, match="no such session"):
                stub.Open(request)


def test_a_quota_binds_a_client_and_nobody_else(unharmed, tmp_path):
    """Connecting again does not help, for a client is a process."""
    path = saved({"a": torch.zeros(12 << 20)}, tmp_path / "48M.safetensors")
    other = saved({"a": torch.ones(12 << 20)}, tmp_path / "other.safetensors")
    with unharmed.client() as client, unharmed.client() as again:
        with path.open("rb") as file:
            held = client.open_file(file, "quota-a")
            once_more = again.open_file(file, "quota-a")  # the same model counts once
        with other.open("rb") as file, pytest.raises(StoreError, match="--client-quota"):
            again.open_file(file, "quota-b")
        unharmed.good.is_served_again()
        del held, once_more


def test_a_client_over_its_quota_evicts_nothing_of_others(start_store, tmp_path):
    store = start_store("--host-bytes", "64M", "--client-quota", "1M")
    small = saved({"a": torch.ones(10_000)}, tmp_path / "small.safetensors")
    with_header(tmp_path / "large", {"a": f32(15 << 20)}, 60 << 20)
    with store.client() as client, store.client() as hostile:
        for label in ("first", "second"):
            os.utime(small, ns=(len(label), len(label)))
            with small.open("rb") as file:
                client.open_file(file, label)
        until(lambda: Seen(client).references == 0)
        with (tmp_path / "large").open("rb") as file, pytest.raises(StoreError, match="quota"):
            hostile.open_file(file, "large")
        assert {model.address.name for model in Seen(client).models()} >= {"first", "second"}


def test_a_store_short_of_descriptors_recovers(start_store, tmp_path, good_file):
    store = start_store(
        "--granularity", "tensor",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150)),
    )  # fmt: skip
    with_header(tmp_path / "many", {str(i): f32(1 << 14, 4 * i << 14) for i in range(300)}, 300 * (4 << 14))
    with store.client() as client:
        open_and_check(client, good_file)
        until(lambda: Seen(client).references == 0)
        before = len(store.descriptors())
        for _ in range(3):
            with (tmp_path / "many").open("rb") as file, pytest.raises(StoreError):
                client.open_file(file, "many")
        open_and_check(client, good_file)
        until(lambda: len(store.descriptors()) <= before, "the descriptors return")
