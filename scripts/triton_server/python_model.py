"""The `model.py` of our models in Triton's Python backend: one forward pass for the requests of a batch.

The light models need no torch, whose import takes seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

Arrays = dict[str, np.ndarray]


class Input(NamedTuple):
    """An input of the model; requests of different shapes are padded with `pad_value`."""

    name: str
    pad_value: float = 0
    max_size: int | None = None  # of a dimension that varies


class Runnable(NamedTuple):
    inputs: tuple[Input, ...]
    run: Callable[[Arrays], Arrays]


class TritonPythonModel:
    def initialize(self, args: Mapping[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        texts = {name: value["string_value"] for name, value in parameters.items()}
        threads = {name: int(texts.get(f"{name}_OP_THREAD_COUNT", 1)) for name in ("INTRA", "INTER")}
        if min(threads.values()) < 1:
            raise ValueError(f"the thread counts must be at least 1, got {threads}")
        kind, options = texts["MODEL"], json.loads(texts.get("MODEL_OPTIONS", "{}"))
        make = _light if kind in LIGHT else _torch
        self.model = make(kind, options, threads["INTRA"], threads["INTER"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        inputs = [self._arrays(request) for request in requests]
        errors = [self._complaint(arrays) for arrays in inputs]
        good = [arrays for arrays, error in zip(inputs, errors, strict=True) if error is None]
        try:
            answers = iter(self._answers(good) if good else [])
        except Exception as error:
            failure = pb_utils.TritonError(f"the model raised {type(error).__name__}: {error}")
            errors = [each or failure for each in errors]
        return [_refusal(error) if error else _response(next(answers)) for error in errors]

    def _arrays(self, request: Any) -> Arrays:
        return {
            spec.name: pb_utils.get_input_tensor_by_name(request, spec.name).as_numpy()
            for spec in self.model.inputs
        }

    def _complaint(self, arrays: Arrays) -> Any:
        for spec in self.model.inputs:
            size = max(arrays[spec.name].shape[1:], default=0)
            if spec.max_size is not None and size > spec.max_size:
                text = f"input {spec.name!r} may be {spec.max_size} long, got {size}"
                return pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG)
        return None

    def _answers(self, requests: list[Arrays]) -> list[Arrays]:
        batch = {spec.name: _stacked([r[spec.name] for r in requests], spec) for spec in self.model.inputs}
        outputs = self.model.run(batch)
        rows = [len(request[self.model.inputs[0].name]) for request in requests]
        ends = np.cumsum(rows).tolist()
        return [
            {name: output[end - count : end] for name, output in outputs.items()}
            for count, end in zip(rows, ends, strict=True)
        ]


def _response(outputs: Arrays) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])


def _refusal(error: Any) -> Any:
    return pb_utils.InferenceResponse(error=error)


def _stacked(arrays: list[np.ndarray], spec: Input) -> np.ndarray:
    """The rows of all requests, padded at the end of every dimension where their shapes differ."""
    if len(arrays) == 1:
        return arrays[0]
    if len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    largest = np.max([array.shape[1:] for array in arrays], axis=0).tolist()
    padded = np.full((sum(map(len, arrays)), *largest), spec.pad_value, arrays[0].dtype)
    first_row = 0
    for array in arrays:
        place = (slice(first_row, first_row + len(array)), *(slice(0, size) for size in array.shape[1:]))
        padded[place] = array
        first_row += len(array)
    return padded


def _torch(kind: str, options: Mapping[str, Any], intra_op_threads: int, inter_op_threads: int) -> Runnable:
    """A model of `serving_adapter.models`, run as a worker of `rrl-serve` does.

    The backend's interpreter ignores PYTHONPATH, where our packages are; behind its own NumPy they must stay.
    """
    sys.path += [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
    import torch

    from serving_adapter.models.loading import load_model

    torch.set_num_interop_threads(inter_op_threads)
    torch.set_num_threads(intra_op_threads)
    model = load_model(kind, {name: str(value) for name, value in options.items()})
    model.run(model.example())

    def run(batch: Arrays) -> Arrays:
        outputs = model.run({name: torch.from_numpy(array) for name, array in batch.items()})
        return {name: output.numpy() for name, output in outputs.items()}

    return Runnable(tuple(Input(s.name, s.pad_value or 0, s.max_size) for s in model.inputs), run)


def _light(kind: str, options: Mapping[str, Any], *threads: int) -> Runnable:
    names = ("INPUT__0", "INPUT__1") if kind == "add_sub" else ("x",)
    return Runnable(tuple(map(Input, names)), LIGHT[kind](**options))


def noop() -> Callable[[Arrays], Arrays]:
    return lambda batch: {"y": batch["x"]}


def sleep(ms: float = 10.0, per_item_ms: float = 0.0) -> Callable[[Arrays], Arrays]:
    def run(batch: Arrays) -> Arrays:
        time.sleep(1e-3 * (ms + per_item_ms * len(batch["x"])))
        return {"y": batch["x"]}

    return run


def burn(size: int = 256, rounds: int = 20, rounds_per_item: int = 0) -> Callable[[Arrays], Arrays]:
    reflection = (np.eye(size) - 2.0 / size).astype(np.float32)

    def run(batch: Arrays) -> Arrays:
        state = reflection
        for _ in range(rounds + rounds_per_item * len(batch["x"])):
            state = reflection @ state
        return {"y": batch["x"] + 0.0 * state[0, 0]}

    return run


def add_sub() -> Callable[[Arrays], Arrays]:
    def run(batch: Arrays) -> Arrays:
        first, second = batch["INPUT__0"], batch["INPUT__1"]
        return {"OUTPUT__0": first + second, "OUTPUT__1": first - second}

    return run


LIGHT: dict[str, Callable[..., Callable[[Arrays], Arrays]]] = {
    "noop": noop,
    "sleep": sleep,
    "burn": burn,
    "add_sub": add_sub,
}
"""The models of these names in `serving_adapter.models.synthetic`, and Model Analyzer's, without torch."""
