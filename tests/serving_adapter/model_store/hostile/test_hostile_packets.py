"""Garbage on the socket of the descriptors hurts nobody but its sender."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket

import pytest

from serving_adapter import messages
from tests.support.stores.hostile_clients import ended_by_store, opened_fd
from tests.support.stores.running_store import Seen
from tests.support.waiting import until


def hostile_packets() -> list[bytes]:
    randomly = random.Random(0)
    return [
        b"\0",
        b"{",
        b"null",
        b"[]",
        b"17",
        b'"ticket"',
        b"NaN",
        b"9" * 10_000,
        b"[" * 100_000,
        b'{"a":' * 20_000,
        b"\xff\xfe" * 50,
        b'{"ticket": {"ticket": {}}}',
        b'{"ticket": "\\ud800"}',
        b'{"token": "\\ud800"}',
        b'{"token": ' + b'"' + b"x" * 100_000 + b'"}',
        b"x" * (127 << 10),
        *(randomly.randbytes(randomly.randrange(1, 2000)) for _ in range(30)),
    ]


def test_garbage_on_the_descriptors_socket_disconnects_its_sender(unharmed):
    for packet in hostile_packets():
        with contextlib.closing(unharmed.raw()) as sock:  # as the first packet
            sock.send(packet)
            sock.shutdown(socket.SHUT_WR)
            assert ended_by_store(sock)
        sock, _ = unharmed.session()
        with contextlib.closing(sock):  # and within a session
            sock.send(packet)
            assert ended_by_store(sock)


def test_garbage_where_a_token_is_wanted_leaves_no_connection_behind(start_store):
    store = start_store(token="open sesame")
    with store.client(token="open sesame") as client:
        seen = Seen(client)
        seen.stats()
        before = len(store.descriptors())
        for packet in [*hostile_packets(), b'{"token": null}', b'{"token": 5}', b'{"token": "\xc3\xa9"}']:
            with contextlib.closing(store.raw()) as sock:
                sock.send(packet)
                assert ended_by_store(sock), packet[:40]
        until(lambda: len(store.descriptors()) <= before, "the descriptors return")
        assert seen.stats().clients == 0


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"name": "../../etc/passwd"},
        {"name": ["served"], "version": {}},
        {"name": "served", "device": None},
        {"name": "served", "namespace": "pickle"},
        {"name": "served", "device": "cuda:7"},
        {"name": "s" * 60_000},
    ],
)
def test_hostile_questions_are_refused_with_a_sentence_and_the_next_is_answered(unharmed, question):
    sock, _ = unharmed.session()
    with contextlib.closing(sock):
        messages.send(sock, {"open": question, "id": 1})
        refusal = messages.receive(sock)
        assert refusal is not None
        assert refusal["id"] == 1
        assert 10 < len(refusal["error"]) < 1000
        messages.send(sock, {"open": {"name": "served"}, "id": 2})
        answer, descriptors = messages.receive_with_descriptors(sock, 253)
        for descriptor in descriptors:
            os.close(descriptor)
        assert answer is not None
        assert answer["id"] == 2
        assert answer["lease"]


@pytest.mark.parametrize("question", [5, "served", ["served"], None])
def test_what_is_no_question_disconnects_its_sender(unharmed, question):
    sock, _ = unharmed.session()
    with contextlib.closing(sock):
        messages.send(sock, {"open": question})
        assert ended_by_store(sock)


def test_a_packet_larger_than_any_message_disconnects_its_sender(unharmed):
    sock, _ = unharmed.session()
    with contextlib.closing(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sock.send(json.dumps({"ticket": "x" * (150 << 10)}).encode())
        assert ended_by_store(sock)


def test_descriptors_beside_garbage_are_closed(unharmed):
    reading, writing = os.pipe()
    packets = [(b"\0garbage", 1), (b"{}", 4), (b"[]", 4), (b"null", 4), (b'{"ticket":"t"}', 3)]
    packets += [(b'{"ticket":"t"}', 200), (b"{}", 250), (b'{"ticket":[]}', 1)]
    for packet, count in packets:
        for first in (True, False):
            sock = unharmed.raw() if first else unharmed.session()[0]
            with contextlib.closing(sock):
                socket.send_fds(sock, [packet], [writing] * count)
                if not (first and packet.startswith(b"{")):  # a greeting may be any object
                    assert ended_by_store(sock)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b""  # nobody holds the other end


DEEPEST_LISTS = range(960, 1000)  # about what Python's reader of JSON takes, and its writer does not


def test_a_question_whose_number_is_lists_in_lists_disconnects_its_sender(unharmed):
    for levels in DEEPEST_LISTS:
        sock, _ = unharmed.session()
        with contextlib.closing(sock):
            sock.send(b'{"open":{"name":"served"},"id":%s}' % (b"[" * levels + b"]" * levels))
            assert ended_by_store(sock), levels


def test_a_label_with_half_a_character_hides_no_model_from_an_operator(unharmed, good_file, tmp_path):
    """Names of files that are no UTF-8 have such characters in Python."""
    copied = tmp_path / "file"
    copied.write_bytes(good_file.read_bytes())
    sock, _ = unharmed.session()
    with contextlib.closing(sock), opened_fd(copied) as fd, unharmed.client() as operator:
        messages.send(sock, {"open": {"name": "half \udcff"}, "id": 1}, (fd,))
        answer, descriptors = messages.receive_with_descriptors(sock, 253)
        for descriptor in descriptors:
            os.close(descriptor)
        assert answer is not None
        assert answer["lease"]
        assert "half ?" in {model.address.name for model in Seen(operator).models()}


def test_the_descriptor_of_a_question_that_is_refused_is_closed(unharmed):
    reading, writing = os.pipe()
    sock, _ = unharmed.session()
    with contextlib.closing(sock), os.fdopen(reading, "rb") as pipe:
        for question in ({"name": 1}, {"name": "x", "device": []}, {"name": "x", "namespace": "pickle"}):
            messages.send(sock, {"open": question, "id": 1}, (writing,))
            answer = messages.receive(sock)
            assert answer is not None
            assert answer["error"]
        os.close(writing)
        assert pipe.read() == b""  # nobody holds the other end, though the client stays
