"""Hostile files are refused, and what is done to a file while it is read harms nobody."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import threading
import time

import grpc
import pytest

from serving_adapter import messages
from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from tests.support.stores.hostile_clients import f32, opened_fd, refusal_of
from tests.support.stores.running_store import rrl_store
from tests.support.stores.weights_files import saved, some_weights, with_header

BIG = 1 << 40


HOSTILE_FILES = {
    "empty": lambda p: p.write_bytes(b""),
    "seven bytes": lambda p: p.write_bytes(b"1234567"),
    "a header of 2^64 bytes": lambda p: p.write_bytes(b"\xff" * 8),
    "a header of 100 MB that is a hole": lambda p: hole(p, 100 << 20),
    "no JSON": lambda p: with_header(p, b"{]"),
    "deep JSON": lambda p: with_header(p, b"[" * 1_000_000),
    "a list": lambda p: with_header(p, []),
    "no entries": lambda p: with_header(p, {"a": 3}),
    "a tensor of terabytes": lambda p: with_header(p, {"a": f32(BIG)}),
    "a tensor of terabytes that are a hole": lambda p: with_header(p, {"a": f32(BIG)}, 4 * BIG),
    "a tensor beyond any integer": lambda p: with_header(p, {"a": f32(1 << 80)}),
    "a negative shape": lambda p: with_header(p, {"a": f32(-5)}),
    "overlapping tensors": lambda p: with_header(p, {"a": f32(100), "b": f32(100, 200)}, 600),
    "a name with half a character": lambda p: with_header(p, {"a\ud800": f32(1)}, 4),
    "a truncated tensor": lambda p: with_header(p, {"a": f32(1 << 20)}, 1000),
    "many truncated tensors": lambda p: with_header(
        p, {str(i): f32(1 << 15, 4 * i << 15) for i in range(100)}, 99 * (4 << 15)
    ),
    "more descriptors than there are": lambda p: with_header(
        p, {str(i): f32(1 << 14, 4 * i << 14) for i in range(4000)}, 4000 * (4 << 14) - 1
    ),
}


def hole(path, header_bytes: int) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<Q", header_bytes))
        file.truncate(8 + header_bytes)


@pytest.mark.parametrize("case", HOSTILE_FILES)
def test_hostile_files_are_refused(unharmed, tmp_path, case):
    HOSTILE_FILES[case](tmp_path / "hostile")
    with opened_fd(tmp_path / "hostile") as fd:
        error = refusal_of(unharmed, fd)
    assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED), error
    assert error.details()


def test_a_shape_of_huge_numbers_does_not_hold_up_the_others(start_store, tmp_path):
    """Their product would take minutes, during which Python runs nothing else."""
    shape = ", ".join(["9" * 4000] * 1500)
    text = f'{{"a": {{"dtype": "F32", "shape": [{shape}], "data_offsets": [0, 4]}}}}'
    with_header(tmp_path / "hostile", text.encode(), 4)
    with opened_fd(tmp_path / "hostile") as fd:
        error = refusal_of(start_store(), fd)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error


def test_an_unknown_format_is_refused(unharmed, good_file):
    with opened_fd(good_file) as fd:
        assert "unknown namespace" in (refusal_of(unharmed, fd, "pickle").details() or "")


def test_a_file_that_shrinks_and_grows_while_it_is_read_harms_nobody(unharmed, tmp_path):
    path = tmp_path / "changing"
    size = 4 << 20
    with_header(path, {"a": f32(size // 4)}, size)
    with path.open("r+b") as file, contextlib.ExitStack() as stack:
        done = threading.Event()

        def change() -> None:
            whole = os.fstat(file.fileno()).st_size
            for i in itertools.cycle((whole, whole // 2)):
                if done.is_set():
                    return
                os.ftruncate(file.fileno(), i)

        thread = threading.Thread(target=change, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(done.set)
        with unharmed.client() as client:
            for _ in range(20):
                with contextlib.suppress(StoreError):
                    client.open_file(file, "changing")


def test_a_client_that_leaves_while_its_file_is_read_leaves_nothing(unharmed, tmp_path):
    """What is cancelled closes the descriptor, whose number then names another client's file."""
    path, size = tmp_path / "slow", 48 << 20
    with_header(path, {str(i): f32(size // 16, i * size // 4) for i in range(4)}, size)
    for i in range(15):
        os.utime(path, ns=(i, i))  # a file of its own each time
        sock, session = unharmed.session()
        with contextlib.closing(sock), unharmed.stub() as stub, opened_fd(path) as fd:
            messages.send(sock, {"ticket": "t"}, (fd,))
            call = stub.Open.future(
                pb.OpenRequest(session=session, ticket="t", address=pb.Address(name=f"slow{i}"))
            )
            time.sleep(0.002 * i)  # anywhere within the reading
            call.cancel()


def test_a_client_that_leaves_fails_nobody_who_opens_the_same_file(unharmed, tmp_path):
    path, size = tmp_path / "popular", 48 << 20
    with_header(path, {"a": f32(size // 4)}, size)
    for i in range(6):
        os.utime(path, ns=(i, i))
        sock, session = unharmed.session()
        with contextlib.closing(sock), unharmed.stub() as stub, opened_fd(path) as fd:
            messages.send(sock, {"ticket": "t"}, (fd,))
            leaving = stub.Open.future(
                pb.OpenRequest(session=session, ticket="t", address=pb.Address(name="popular"))
            )
            other, other_session = unharmed.session()
            with contextlib.closing(other):
                messages.send(other, {"ticket": "t"}, (fd,))
                staying = stub.Open.future(
                    pb.OpenRequest(session=other_session, ticket="t", address=pb.Address(name="popular"))
                )
                time.sleep(0.005)  # both are probably being served by one reading now
                leaving.cancel()
                assert staying.result(30).tensors


@pytest.mark.parametrize("label", ["[/red]", "[bold]x[/bold]", "\x1b[2J\x1b]0;owned\x07", "a\nb", "\u202e"])
def test_a_hostile_label_is_shown_as_it_is_or_not_at_all(start_store, tmp_path, label):
    store = start_store()
    path = saved(some_weights(), tmp_path / "labelled")
    with store.client() as client, path.open("rb") as file:
        client.open_file(file, label)
        listed = rrl_store("ls", "--folder", store.folder)
    assert listed.returncode == 0, listed.stderr[-300:]
    assert "\x1b" not in listed.stdout
    if label.isprintable():
        assert label in listed.stdout
