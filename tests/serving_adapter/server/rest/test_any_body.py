"""Whatever is sent over HTTP, an answer comes: what it should be, or a refusal in a sentence."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from random import Random
from urllib.parse import urlsplit

import numpy as np
import pytest

from scripts.robustness.fuzz.mutation import mutated
from tests.support.servers.running_server import RunningServer, start

REFUSALS = {400, 404, 405, 413, 415, 429, 501}
BODIES = 1500


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    server = start("--model", "noop", "--max-message-bytes", 1 << 16, "--intra-op-threads", 1)
    yield server
    server.stop()
    assert server.process.stdout is not None
    server.process.stdout.close()


def as_json(rng: Random) -> tuple[bytes, dict[str, str]]:
    data: list[object] = [rng.choice((1, 1.5, -2e9, True, "a", None, [1], {})) for _ in range(16)]
    values = data if rng.random() < 0.3 else [float(k) for k in range(16)]
    tensor = {
        "name": "x",
        "shape": [1, 16],
        "datatype": rng.choice(("FP32", "FP32", "INT8", "BYTES", "BF16")),
    }
    return json.dumps({"inputs": [tensor | {"data": values}]}).encode(), {}


def as_bytes(rng: Random) -> tuple[bytes, dict[str, str]]:
    row = np.ones(16, np.float32).tobytes()
    tensor = {"name": "x", "shape": [1, 16], "datatype": "FP32", "parameters": {"binary_data_size": len(row)}}
    document = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    length = len(document) + rng.choice((0, 0, 0, 1, -1, 10**9))
    return document + row, {"inference-header-content-length": str(length)}


def test_damaged_requests_are_answered_or_refused_in_a_sentence(server: RunningServer) -> None:
    rng = Random(7)
    place = urlsplit(server.rest_url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    statuses = set()
    for _ in range(BODIES):
        body, headers = rng.choice((as_json, as_bytes))(rng)
        if rng.random() < 0.7:
            body = mutated(body, rng)[: 1 << 15]
        if rng.random() < 0.05:
            headers["content-encoding"] = rng.choice(("gzip", "deflate", "br"))
        connection.request("POST", f"{place.path}/models/noop/infer", body, headers)
        answer = connection.getresponse()
        told = answer.read()
        statuses.add(answer.status)
        if answer.status == 200:
            assert b'"model_name":"noop"' in told
        else:
            assert answer.status in REFUSALS, (answer.status, told, body)
            assert json.loads(told)["error"]
    connection.close()
    assert {200, 400} <= statuses
    assert server.process.poll() is None
