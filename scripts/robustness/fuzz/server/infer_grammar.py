"""Inference requests by a grammar: well-formed ones, and the same with faults put in by name."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from scripts.robustness.fuzz.calls import Fate
from scripts.robustness.fuzz.odd_values import NUMBERS
from scripts.robustness.fuzz.server import two_outputs
from scripts.robustness.fuzz.server.infer_faults import FAULTS, long_contents
from scripts.robustness.fuzz.server.oracle import CONTENTS, MINILM, NoAnswer, read

SHARE_OF_MINILM = 0.15  # a row of it takes milliseconds, of the other model microseconds
SHARE_OF_SOUND = 0.4
SHARE_OF_LONG = 0.0005  # contents of megabytes
KNOWN_ROWS = 48  # rows of tokens whose embedding the oracle knows

Request = Any  # pb.ModelInferRequest, whose module is generated and untyped


def token_rows() -> list[tuple[int, ...]]:
    """Rows of tokens, up to 16 long, that every run uses."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 17, KNOWN_ROWS)
    return [tuple(rng.integers(1000, 20000, length).tolist()) for length in lengths]


TOKEN_ROWS = token_rows()


def infer_request(rng: Random) -> tuple[Request, Fate, str]:
    """A request, what must become of it, and what was done to it."""
    request = _minilm(rng) if rng.random() < SHARE_OF_MINILM else _two_outputs(rng)
    _decorate(request, rng)
    if rng.random() < SHARE_OF_SOUND:
        return request, Fate.ANSWERED, f"sound {request.model_name}"
    long = rng.random() < SHARE_OF_LONG / (1 - SHARE_OF_SOUND)
    name, fault = ("long contents", long_contents) if long else rng.choice(FAULTS)
    fault(request, rng)
    try:
        read(request)
    except NoAnswer:
        return request, Fate.REFUSED, name
    return request, Fate.EITHER, name


def _minilm(rng: Random) -> Request:
    rows = rng.choices(TOKEN_ROWS, k=rng.choice((1, 1, 1, 2, 4)))
    longest = max(map(len, rows)) + rng.choice((0, 0, 3))
    values = np.zeros((len(rows), longest), np.int64)
    for i, row in enumerate(rows):
        values[i, : len(row)] = row
    return _request(MINILM, [("token_ids", "INT64", values)], rng)


def _two_outputs(rng: Random) -> Request:
    rows = rng.choice((1, 1, 1, 2, 7))
    x = np.array([rng.choice(NUMBERS) if rng.random() < 0.1 else rng.uniform(-9, 9) for _ in range(4 * rows)])
    n = np.array([rng.randint(-1000, 1000) for _ in range(rows * rng.choice((1, 2, 5, 64)))], np.int32)
    double = np.array([rng.random() < 0.5 for _ in range(rows)])
    tensors = [
        ("x", "FP32", x.astype(np.float32).reshape(rows, 4)),
        ("n", "INT32", n.reshape(rows, -1)),
        ("double", "BOOL", double.reshape(rows, 1)),
    ]
    rng.shuffle(tensors)
    return _request(two_outputs.NAME, tensors, rng)


def _request(model: str, tensors: Sequence[tuple[str, str, np.ndarray]], rng: Random) -> Request:
    request = pb.ModelInferRequest(model_name=model)
    typed = rng.random() < 0.3
    for name, datatype, values in tensors:
        tensor = request.inputs.add(name=name, datatype=datatype, shape=values.shape)
        if typed:
            getattr(tensor.contents, CONTENTS[datatype]).extend(values.ravel().tolist())
        else:
            request.raw_input_contents.append(values.tobytes())
    return request


def _decorate(request: Request, rng: Random) -> None:
    """What a request may have and need not."""
    if rng.random() < 0.3:
        request.id = rng.choice(("1", "a" * 300, "é", "id with spaces"))
    if rng.random() < 0.2:
        request.model_version = "1"
    if rng.random() < 0.3:
        request.parameters["exact"].bool_param = True
    if rng.random() < 0.2:
        names = ("embedding",) if request.model_name == MINILM else two_outputs.OUTPUTS
        for name in names[: rng.randint(1, len(names))]:
            request.outputs.add(name=name)
