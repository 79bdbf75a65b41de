"""Calls over HTTP by a grammar: inference requests as REST has them, damaged bodies, odd paths and heads."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from random import Random
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson

from scripts.robustness.fuzz.calls import INFER, Fate, Headers, RestCall
from scripts.robustness.fuzz.mutation import mutated
from scripts.robustness.fuzz.odd_values import ODD_NAMES
from scripts.robustness.fuzz.server.infer_grammar import infer_request
from scripts.robustness.fuzz.server.oracle import MINILM, NoAnswer, read

DOCUMENT_BYTES = "Inference-Header-Content-Length"
MODEST = 1e6  # outputs of smaller inputs are numbers that JSON has
OF_REST_ALONE = ("binary_data", "binary_data_size", "binary_data_output")
ODD_PATHS = (
    *("/", "/v2", "/v2/", "/v2/health/ready", "/v2/health/live", "/v2/models/stats", "/v2/logging", "/v3"),
    *("/v2/models/minilm", "/v2/models/minilm/config", "/v2/models/minilm/versions/1/stats", "/v2/models//x"),
    *("/v2/models/minilm/infer", "/v2/models/%00/infer", "/v2/models/" + "a" * 3000, "/v2/../etc", "/%ff"),
    *("/v2/systemsharedmemory/status", "/v2/repository/index", "/v2/models/minilm/versions/9/infer"),
)
CONTROL_PATHS = (
    "/v2/repository/models/minilm/load",
    "/v2/repository/models/two_outputs/load",
    "/v2/repository/models/two_outputs/unload",
)
VERBS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
ODD_HEADERS = (
    ("Content-Encoding", "gzip"),
    ("Content-Encoding", "br"),
    ("Accept-Encoding", "gzip;q=0, deflate"),
    ("X", "y" * 3000),
    ("Content-Type", "text/plain; charset=utf-16"),
    (DOCUMENT_BYTES, "-1"),
    (DOCUMENT_BYTES, "9" * 40),
    (DOCUMENT_BYTES, "0"),
)
HEAD = (
    b"POST /v2/models/minilm/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2\r\nTransfer-Encoding: identity\r\n\r\n{}GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
)


def rest_call(rng: Random) -> RestCall:
    """One call; those of control do not know the key."""
    draw = rng.random()
    if draw < 0.8:
        made = _inference(rng)
        return _damaged(made, rng) if draw > 0.5 else _hasty(made, rng)
    if draw < 0.9:
        return _call(
            "odd path", rng.choice(VERBS), rng.choice(ODD_PATHS), _some_headers(rng), rng.randbytes(9)
        )
    if draw < 0.95:
        body = orjson.dumps({"parameters": {"config": rng.choice(ODD_NAMES)}})
        return _call("control over HTTP", "POST", rng.choice(CONTROL_PATHS), (), body, Fate.REFUSED)
    return _call("damaged head", "", "", (), mutated(HEAD, rng))


def _call(
    kind: str, verb: str, path: str, headers: Headers, body: bytes, fate: Fate = Fate.EITHER
) -> RestCall:
    return RestCall(f"HTTP {kind}", b"", fate, kind, verb=verb, path=path, headers=headers, body=body)


def _inference(rng: Random) -> RestCall:
    """One of the grammar's requests that REST can say."""
    while True:
        request, fate, kind = infer_request(rng)
        said = written(request, fate, rng)
        if said is not None:
            path, headers, body = said
            return RestCall(
                INFER, request.SerializeToString(), fate, f"{kind} over HTTP",
                path=path, headers=headers, body=body,
            )  # fmt: skip


def _hasty(made: RestCall, rng: Random) -> RestCall:
    """Some have a body that is packed, little time, or a client that gives up."""
    draw = rng.random()
    if draw < 0.05:
        packed = gzip.compress(made.body, 1, mtime=0)
        return replace(made, body=packed, headers=(*made.headers, ("Content-Encoding", "gzip")))
    if draw < 0.055:
        return replace(made, deadline_s=rng.choice((0.0001, 0.001, 0.01)), fate=Fate.EITHER)
    if draw < 0.06:
        return replace(made, cancelled_after_s=rng.choice((0.0, 0.001, 0.01)), fate=Fate.EITHER)
    return made


def _damaged(made: RestCall, rng: Random) -> RestCall:
    """The document, the bytes behind it, or the head are not what they were."""
    headers, body = made.headers, made.body
    if rng.random() < 0.8:
        body = mutated(body, rng)
    if rng.random() < 0.3:
        headers = (*headers, *_some_headers(rng))
    return _call("damaged infer over HTTP", "POST", made.path, headers, body)


def _some_headers(rng: Random) -> Headers:
    return tuple(rng.choices(ODD_HEADERS, k=rng.choice((0, 1, 2))))


def written(request: Any, fate: Fate, rng: Random) -> tuple[str, Headers, bytes] | None:
    """Path, headers and body of a request; None where REST cannot say the same."""
    raw = request.raw_input_contents
    as_json = not raw
    if (as_json and fate is not Fate.ANSWERED) or (raw and len(raw) != len(request.inputs)):
        return None
    asked = [request.parameters, *(each.parameters for each in (*request.inputs, *request.outputs))]
    if not all(_can_be_said(name, value) for each in asked for name, value in each.items()):
        return None
    inputs: list[dict[str, Any]] = []
    for i, tensor in enumerate(request.inputs):
        told = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        of_tensor = _said(tensor.parameters)
        if as_json:
            told["data"] = [value for _, values in tensor.contents.ListFields() for value in values]
            if not all(map(isfinite, told["data"])):
                return None
        else:
            of_tensor["binary_data_size"] = len(raw[i])
        inputs.append(told | ({"parameters": of_tensor} if of_tensor else {}))
    document: dict[str, Any] = {"inputs": inputs, "parameters": _said(request.parameters)}
    if request.id:
        document["id"] = request.id
    if request.outputs:
        document["outputs"] = [
            {"name": each.name, "parameters": _said(each.parameters)} for each in request.outputs
        ]
    if rng.random() < 0.5 or not _has_modest_outputs(request):
        document["parameters"]["binary_data_output"] = True
    text = orjson.dumps(document)
    version = f"/versions/{quote(request.model_version, safe='')}" if request.model_version else ""
    path = f"/v2/models/{quote(request.model_name, safe='')}{version}/infer"
    return path, ((DOCUMENT_BYTES, str(len(text))),) if raw else (), b"".join((text, *raw))


def _can_be_said(name: str, value: Any) -> bool:
    if name in OF_REST_ALONE:
        return False
    chosen = value.WhichOneof("parameter_choice")
    return chosen is not None and (chosen != "double_param" or isfinite(value.double_param))


def _said(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()}


def _has_modest_outputs(request: Any) -> bool:
    """Whether JSON has all numbers of the answer: it has neither NaN nor infinity."""
    if request.model_name == MINILM:
        return True
    try:
        x = read(request)["x"]
    except NoAnswer:
        return False
    return bool(np.all(np.abs(x) < MODEST))
