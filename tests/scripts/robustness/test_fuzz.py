"""The short form of the fuzz, and that it finds what it is there to find."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from scripts.robustness.fuzz.calls import LOAD, Fate, FuzzCall
from scripts.robustness.fuzz.findings import Findings, as_json, from_json, no_sentence
from scripts.robustness.fuzz.readers.every_reader import READERS, Reader
from scripts.robustness.fuzz.readers.run import fuzz_readers, objection, sound_files
from scripts.robustness.fuzz.server import run as server_run
from scripts.robustness.fuzz.server.grammar import METHODS, call
from scripts.robustness.fuzz.server.infer_grammar import TOKEN_ROWS, infer_request
from scripts.robustness.fuzz.server.oracle import MINILM, AnswerOracle
from scripts.robustness.fuzz.store.files import StoreFiles
from scripts.robustness.fuzz.store.grammar import Known, StorePacket, step
from scripts.robustness.fuzz.store.run import ATTACKERS, StoreFuzzed, attack, fuzz_store
from serving_adapter import messages
from serving_adapter.model_store.endpoint import Endpoint

REQUESTS = 2000
PACKETS = 2000
READS = 60


def test_the_server_bears_the_corpus_and_some_thousand_calls() -> None:
    findings = Findings()
    seen = asyncio.run(server_run.fuzz_server(1, 0, REQUESTS, REQUESTS, 1e9, findings))
    assert not list(findings.lines())
    assert seen.requests == REQUESTS
    assert seen.right_answers > REQUESTS / 10


def test_the_store_bears_some_thousand_packets_beside_an_honest_client() -> None:
    findings = Findings()
    seen = fuzz_store(1, 0, PACKETS, PACKETS, 1e9, findings)
    assert not list(findings.lines())
    assert seen.packets == PACKETS
    assert seen.models_handed_over > PACKETS / 10
    assert seen.honest_openings > 0


@contextlib.contextmanager
def store_that_answers(data: bytes) -> Iterator[Endpoint]:
    """Lets each attacker in once, and answers all of its packets with the same."""

    def serve() -> None:
        sock, _ = listener.accept()
        with sock, contextlib.suppress(ConnectionError):
            messages.send(sock, {"session": "s"})
            while sock.recv(messages.MAX_MESSAGE_BYTES):
                sock.send(data)

    with (
        tempfile.TemporaryDirectory(prefix="rrl-fuzz-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        endpoint = Endpoint(Path(folder))
        listener.bind(str(endpoint.descriptors))
        listener.listen(ATTACKERS)
        listener.settimeout(60)
        with ThreadPoolExecutor(ATTACKERS) as threads:
            served = [threads.submit(serve) for _ in range(ATTACKERS)]
            yield endpoint
        for each in served:
            each.result()


def attacked(endpoint: Endpoint, folder: Path, first: int, last: int) -> tuple[Findings, StoreFuzzed]:
    store: Any = SimpleNamespace(endpoint=endpoint, is_alive=lambda: True)
    findings, seen = Findings(), StoreFuzzed()
    attack(store, StoreFiles(folder, 0), 0, first, last, findings, seen)
    return findings, seen


def is_sound_packet(number: int) -> bool:
    taken = step(0, number, Known())
    return isinstance(taken, StorePacket) and taken.is_sound


def test_a_store_whose_answer_breaks_a_client_is_found(tmp_path: Path) -> None:
    number = next(filter(is_sound_packet, count()))
    with store_that_answers(b"not json") as endpoint:
        findings, seen = attacked(endpoint, tmp_path, number, number + 1)
    (found,) = findings.first.values()
    assert found.what == "a client cannot go on"
    assert "this is no message" in found.seen
    assert f"packet {number})" in found.seen
    assert seen.packets == 1


def test_a_store_that_lets_nobody_in_is_found_and_no_packet_counts_as_sent(tmp_path: Path) -> None:
    findings, seen = attacked(Endpoint(tmp_path), tmp_path, 0, 100)
    assert {found.what for found in findings.first.values()} == {"a client cannot go on"}
    assert seen.packets == 0


def test_readers_bear_the_corpus_and_damaged_files() -> None:
    findings = Findings()
    counts = fuzz_readers(1, READS, 1e9, findings)
    assert not list(findings.lines())
    assert min(counts.values()) > 0


@pytest.mark.parametrize("name", READERS)
def test_every_reader_takes_a_sound_file(name: str) -> None:
    def reads(data: bytes) -> bool:
        try:
            READERS[name].read(data)
        except ValueError:
            return False
        return True

    assert any(reads(data) for data in sound_files(name))


def test_memory_that_only_goes_up_and_down_has_not_grown() -> None:
    assert server_run.least_at_both_ends([500, 560, 470, 530, 480, 560]) == (470, 480)
    assert server_run.least_at_both_ends([500, 520, 540, 560, 580, 600]) == (500, 560)
    assert server_run.least_at_both_ends([500]) == (500, 500)


def test_a_call_of_a_seed_is_always_the_same() -> None:
    calls = [call(3, i, "key") for i in range(200)]
    assert calls == [call(3, i, "key") for i in range(200)]
    assert calls != [call(4, i, "key") for i in range(200)]


def test_the_grammar_has_every_method_and_every_fate() -> None:
    calls = [call(0, i, "key") for i in range(3000)]
    assert {f"/inference.GRPCInferenceService/{name}" for name in METHODS} <= {c.method for c in calls}
    assert {c.fate for c in calls} == set(Fate)
    assert any(c.method == LOAD and "sound" in c.kind for c in calls)


def test_a_stored_call_is_read_as_it_was() -> None:
    before = FuzzCall("/a/B", b"\x00\xff", Fate.EITHER, "x", (("k", "v"), ("k-bin", b"\xff")))
    assert from_json(as_json(before, "what")) == before


def test_faults_that_differ_in_names_and_numbers_are_of_one_kind() -> None:
    findings = Findings()
    assert findings.add("fails", "model 'a' has 3 rows")
    assert not findings.add("fails", "model 'b' has 4 rows")
    assert findings.add("fails", "another sentence")
    assert sum(findings.counts.values()) == 3


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "Unexpected <class 'google.protobuf.message.DecodeError'>: Error parsing message",
        "Exception deserializing request!",
        "KeyError: 'x'",
        "x" * 10_000,
    ],
)
def test_what_is_no_sentence_is_told(text: str | None) -> None:
    assert no_sentence(text)
    assert no_sentence("model 'm' takes the inputs 'x', got none") is None


def sound_request(model: str) -> pb.ModelInferRequest:
    rng = Random(0)
    while True:
        request, fate, _ = infer_request(rng)
        if fate is Fate.ANSWERED and request.model_name == model and not request.outputs:
            return request


def right_answer(request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    """Of the model of two outputs, from its own definition."""
    import torch

    from scripts.robustness.fuzz.server.oracle import read
    from scripts.robustness.fuzz.server.two_outputs import OUTPUTS, two_outputs

    given = {name: torch.from_numpy(np.array(values)) for name, values in read(request).items()}
    answer = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for name, values in two_outputs().run(given).items():
        assert name in OUTPUTS
        datatype = "FP32" if values.dtype == torch.float32 else "INT64"
        answer.outputs.add(name=name, datatype=datatype, shape=values.shape)
        answer.raw_output_contents.append(values.numpy().tobytes())
    return answer


def test_the_oracle_accepts_the_right_answer_and_no_other() -> None:
    oracle, request = AnswerOracle({}), sound_request("two_outputs")
    answer = right_answer(request)

    def verdict() -> str | None:
        return oracle.objection(request.SerializeToString(), answer.SerializeToString())

    assert verdict() is None
    right = answer.raw_output_contents[0]
    answer.raw_output_contents[0] = bytes([right[0] ^ 1]) + right[1:]
    assert "not" in (verdict() or "")
    answer.raw_output_contents[0] = right
    answer.id = "another"
    assert verdict()
    answer.id = request.id
    del answer.outputs[1:], answer.raw_output_contents[1:]
    assert "outputs" in (verdict() or "")


def test_the_oracle_objects_to_another_rows_embedding() -> None:
    request = sound_request(MINILM)
    values = np.frombuffer(request.raw_input_contents[0], np.int64) if request.raw_input_contents else None
    oracle = AnswerOracle({row: np.full(384, i, np.float32) for i, row in enumerate(TOKEN_ROWS)})
    assert values is None or len(values)
    rows = request.inputs[0].shape[0]
    answer = pb.ModelInferResponse(model_name=MINILM, id=request.id)
    answer.outputs.add(name="embedding", datatype="FP32", shape=[rows, 384])
    answer.raw_output_contents.append(np.full((rows, 384), -1, np.float32).tobytes())
    assert "off by" in (oracle.objection(request.SerializeToString(), answer.SerializeToString()) or "")


def test_an_answer_to_a_request_that_is_no_good_is_a_fault() -> None:
    request = sound_request("two_outputs")
    answer = right_answer(request)
    request.inputs[0].shape[0] += 1
    assert "although" in (
        AnswerOracle({}).objection(request.SerializeToString(), answer.SerializeToString()) or ""
    )


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (lambda data: {b"y": 1}[data], "raises KeyError"),
        (lambda data: int(data.decode()), "refused in Python's words"),
        (lambda data: b"\xff".decode(), "refused in Python's words"),
    ],
)
def test_a_reader_that_breaks_is_found(read: object, what: str) -> None:
    found = objection(Reader(read), b"x")  # type: ignore[arg-type]
    assert found is not None
    assert what in found.what
