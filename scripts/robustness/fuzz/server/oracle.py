"""What the right answer to an inference request is, worked out from its bytes alone.

It reads a request as the protocol says, on its own: nothing of the server's reading is used. So what the
server lets pass although it is no good is found too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from scripts.robustness.fuzz.server import two_outputs
from serving_adapter.tensors import TensorSpec

MINILM = "minilm"
TOKEN_IDS = TensorSpec("token_ids", "INT64", (-1,), pad_value=0, max_size=512)
INPUTS = {MINILM: (TOKEN_IDS,), two_outputs.NAME: two_outputs.INPUTS}
OUTPUTS = {MINILM: ("embedding",), two_outputs.NAME: two_outputs.OUTPUTS}
EMBEDDING_TOLERANCE = 2e-4  # sums in another order
CONTENTS = {
    "FP32": "fp32_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "BOOL": "bool_contents",
}
# What says that an answer is not the deployed model's own.
_APPROXIMATE = ("reconstructed", "backup", "default")
_PARAMETERS_OF_REQUESTS = ("exact", "timeout")  # tensors have none

Tensors = dict[str, np.ndarray]


class NoAnswer(Exception):
    """The request is not one that can be answered; the text says why."""


class AnswerOracle:
    """Judges answers. `embeddings` are MiniLM's for some rows of tokens, without their padding."""

    def __init__(self, embeddings: Mapping[tuple[int, ...], np.ndarray]) -> None:
        self._embeddings = embeddings

    def objection(self, request_bytes: bytes, answer_bytes: bytes) -> str | None:
        """What is wrong with the answer that a request got; None if it is right."""
        request = pb.ModelInferRequest.FromString(request_bytes)
        answer = pb.ModelInferResponse.FromString(answer_bytes)
        try:
            given = read(request)
        except NoAnswer as reason:
            return f"answered although {reason}"
        if (answer.model_name, answer.id) != (request.model_name, request.id):
            return "the answer has another model or id"
        wanted = {output.name for output in request.outputs} or set(OUTPUTS[request.model_name])
        try:
            outputs = _outputs(answer)
        except (ValueError, KeyError) as error:
            return f"the answer cannot be read: {error}"
        if outputs.keys() != wanted:
            return f"the answer has the outputs {sorted(outputs)}, not {sorted(wanted)}"
        if any(name in answer.parameters for name in _APPROXIMATE):
            return "an exact answer was asked for" if _asks_for_exact(request) else None
        return self._wrong_values(request.model_name, given, outputs)

    def _wrong_values(self, model: str, given: Tensors, outputs: Tensors) -> str | None:
        if model == MINILM:
            return self._wrong_embedding(given["token_ids"], outputs["embedding"])
        for name, right in _two_outputs(given).items():
            if name in outputs and not np.array_equal(
                outputs[name], right, equal_nan=right.dtype.kind == "f"
            ):
                return f"output {name} is {outputs[name].tolist()}, not {right.tolist()}"
        return None

    def _wrong_embedding(self, rows: np.ndarray, answers: np.ndarray) -> str | None:
        if answers.shape != (len(rows), 384):
            return f"the embedding has the shape {answers.shape}"
        for row, answer in zip(rows, answers, strict=True):
            right = self._embeddings.get(tuple(row[row != 0].tolist()))
            if right is None:
                length = 1.0 if row.any() else 0.0
                if not math.isclose(float(np.linalg.norm(answer)), length, abs_tol=1e-3):
                    return "the embedding is no unit vector"
            elif np.abs(answer - right).max() > EMBEDDING_TOLERANCE:
                return f"the embedding is off by {np.abs(answer - right).max():.2g}"
        return None


def embeddings(rows: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], np.ndarray]:
    """MiniLM's answers, each worked out alone and in this process."""
    import torch

    from serving_adapter.models.loading import load_model

    model = load_model(MINILM, {})
    return {
        row: model.run({"token_ids": torch.tensor([row], dtype=torch.int64)})["embedding"][0].numpy().copy()
        for row in rows
    }


def read(request: pb.ModelInferRequest) -> Tensors:
    """The request's inputs by name; NoAnswer where the protocol or the model does not allow them."""
    specs = INPUTS.get(request.model_name)
    if specs is None or request.model_version not in ("", "1"):
        raise NoAnswer("there is no such model")
    if sorted(tensor.name for tensor in request.inputs) != sorted(spec.name for spec in specs):
        raise NoAnswer("the inputs are not the model's")
    if any(output.name not in OUTPUTS[request.model_name] for output in request.outputs):
        raise NoAnswer("an output is asked for that there is not")
    asked = {name for name, value in request.parameters.items() if _asks(value)}
    if asked - set(_PARAMETERS_OF_REQUESTS) or any(
        _asks(value) for t in (*request.inputs, *request.outputs) for value in t.parameters.values()
    ):
        raise NoAnswer("it asks for what this server does not have")
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise NoAnswer("there are not as many raw contents as inputs")
    by_name = {spec.name: spec for spec in specs}
    given = {
        tensor.name: _tensor(by_name[tensor.name], tensor, raw[i] if raw else None)
        for i, tensor in enumerate(request.inputs)
    }
    if len({len(tensor) for tensor in given.values()}) > 1:
        raise NoAnswer("the inputs have different numbers of rows")
    return given


def _tensor(spec: TensorSpec, tensor: Any, raw: bytes | None) -> np.ndarray:
    shape = tuple(tensor.shape)
    most = spec.max_size or math.inf
    fits = len(shape) == 1 + len(spec.shape) and all(
        wanted == given or (wanted == -1 and 1 <= given <= most)
        for wanted, given in zip(spec.shape, shape[1:], strict=True)
    )
    if tensor.datatype != spec.datatype or not fits or not 1 <= shape[0] <= 1024:
        raise NoAnswer(f"input {spec.name!r} has the type {tensor.datatype!r} and the shape {list(shape)}")
    if raw is None:
        values = np.array(getattr(tensor.contents, CONTENTS[spec.datatype]), spec.dtype)
    elif len(raw) % spec.dtype.itemsize:
        raise NoAnswer(f"input {spec.name!r} has {len(raw)} bytes")
    else:
        values = np.frombuffer(raw, spec.dtype if spec.dtype.kind != "b" else np.uint8)
    if values.size != math.prod(shape):
        raise NoAnswer(f"input {spec.name!r} of shape {list(shape)} has {values.size} values")
    return (values != 0 if spec.dtype.kind == "b" else values).reshape(shape)


def _outputs(answer: pb.ModelInferResponse) -> Tensors:
    dtypes: dict[str, np.dtype] = {"FP32": np.dtype("<f4"), "INT64": np.dtype("<i8")}
    return {
        output.name: np.frombuffer(raw, dtypes[output.datatype]).reshape(tuple(output.shape))
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def _two_outputs(given: Tensors) -> Tensors:
    x, n = given["x"], given["n"]
    with np.errstate(all="ignore"):
        total = n.sum(axis=1, dtype=np.int64, keepdims=True).astype(np.float32)
        shifted = np.where(given["double"], np.float32(2) * x, x) + total
    return {"shifted": shifted, "length": (n != 0).sum(axis=1, keepdims=True)}


def _asks(parameter: Any) -> bool:
    """False for a parameter that asks for nothing: 0, false, or no text."""
    chosen = parameter.WhichOneof("parameter_choice")
    return chosen is not None and bool(getattr(parameter, chosen))


def _asks_for_exact(request: pb.ModelInferRequest) -> bool:
    return "exact" in request.parameters and request.parameters["exact"].bool_param
