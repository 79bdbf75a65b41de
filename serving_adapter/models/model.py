"""A model as a worker runs it: a torch module, what goes in, what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from serving_adapter.codecs import BYTES, CODECS
from serving_adapter.models.tensor_parallelism import TensorParallelism
from serving_adapter.tensors import TensorSpec

DATATYPE_OF_TORCH = {codec.ones([1]).dtype: name for name, codec in CODECS.items() if name != BYTES}
Values = Any
"""What goes into a model and comes out: a tensor, or for BYTES an array of Python bytes (dtype object)."""

MAX_COMPLAINT_BYTES = 1000  # a gRPC status has 8 KiB for its text, where a byte may take three


class ModelError(ValueError):
    """A model cannot be built or did not answer as it must; the message is one sentence for the user."""


def complaint(error: BaseException) -> str:
    """What an exception says, in one line of bounded length: its beginning and its end."""
    try:
        text = str(error)
    except Exception:  # a class of the user's, which need not have tried this
        text = ""
    if not isinstance(error, ModelError):
        text = f"{type(error).__name__}: {text}"
    encoded = " ".join(text.split()).encode("utf-8", "replace")
    if len(encoded) > MAX_COMPLAINT_BYTES:
        half = MAX_COMPLAINT_BYTES // 2
        encoded = encoded[:half] + b" ... " + encoded[-half:]
    return encoded.decode("utf-8", "ignore").removesuffix(":")


@dataclass(frozen=True)
class Model:
    """A module in evaluation mode that takes its inputs by position, each with a leading batch dimension.

    The module answers a tensor, a tuple of tensors or a dict of tensors; `output_names` names the first
    two (None: `output0`, `output1`, ...). An input of BYTES is an array of bytes. An output of BYTES is such
    an array, or a list with a string a row. `has_parallel_branches` says that the module gives work to
    torch's inter-op pool (`torch.jit.fork`), so that `inter_op_threads` is a knob of this model. `max_rows`
    bounds its batches. With a plan for `tensor_parallelism` several nodes can run a batch together.
    """

    module: nn.Module
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...] | None = None
    has_parallel_branches: bool = False
    max_rows: int | None = None
    tensor_parallelism: TensorParallelism | None = None

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.inputs]
        if not names or len(set(names)) != len(names):
            raise ModelError(f"a model needs one or more inputs, each with its own name, got {names}")
        for spec in self.inputs:
            if any(dimension == 0 or dimension < -1 for dimension in spec.shape):
                raise ModelError(
                    f"input {spec.name!r} has the shape {list(spec.shape)}, which no request could have; "
                    "give each dimension a length of 1 or more, or -1 where it varies"
                )
        if self.tensor_parallelism is not None and self.tensor_parallelism.parts < 2:
            raise ModelError(
                f"a plan for tensor parallelism needs 2 or more parts, got {self.tensor_parallelism.parts}; "
                "give what the number of nodes must divide"
            )
        if self.module.training:
            self.module.eval()
        for parameter in self.module.parameters():  # scripted modules lack `requires_grad_`
            parameter.requires_grad_(False)

    @property
    def parts(self) -> int:
        """What the number of nodes that run a batch together must divide; 1 without a plan for such."""
        return 1 if self.tensor_parallelism is None else self.tensor_parallelism.parts

    def example(self, rows: int = 1, size: int = 8) -> dict[str, Values]:
        """A batch of ones to warm up with; every dimension that varies is `size` long, or its limit."""
        return {spec.name: _ones(spec, rows, size) for spec in self.inputs}

    def run(self, inputs: Mapping[str, Values]) -> dict[str, Values]:
        """Runs one batch; the outputs may share memory with the inputs."""
        ordered = [inputs[spec.name] for spec in self.inputs]
        with torch.inference_mode():
            answer = self.module(*ordered)
        outputs = {name: _values(name, output) for name, output in self._named(answer).items()}
        rows = ordered[0].shape[0]
        for name, output in outputs.items():
            if output.ndim == 0 or output.shape[0] != rows:
                raise ModelError(
                    f"output {name!r} has shape {list(output.shape)} for a batch of {rows}; "
                    f"the first dimension of every output must be the batch"
                )
        return outputs

    def _named(self, answer: object) -> dict[str, object]:
        if isinstance(answer, Mapping) and answer:
            if not all(isinstance(name, str) for name in answer):
                raise ModelError(f"the names of outputs must be text, got {', '.join(map(repr, answer))}")
            return dict(answer)
        if isinstance(answer, Tensor | np.ndarray) or _is_strings(answer):
            answer = (answer,)
        if not isinstance(answer, (tuple, list)) or not answer:
            raise ModelError(
                f"a model must answer a tensor, or a tuple or dict of tensors, got {type(answer).__name__}"
            )
        names = self.output_names or tuple(f"output{i}" for i in range(len(answer)))
        if len(names) != len(answer):
            raise ModelError(f"the model answered {len(answer)} outputs but names {', '.join(names)}")
        return dict(zip(names, answer, strict=True))


def _is_strings(answer: object) -> bool:
    return isinstance(answer, list) and bool(answer) and isinstance(answer[0], str | bytes)


def _values(name: str, output: object) -> Values:
    """An output as it is served; ModelError where it cannot be."""
    if isinstance(output, Tensor):
        return output
    if _is_strings(output) or (isinstance(output, np.ndarray) and output.dtype.kind in "OSU"):
        return _bytes_array(name, np.asarray(output, object))
    raise ModelError(f"output {name!r} must be a tensor or strings, got {type(output).__name__}")


def _bytes_array(name: str, strings: np.ndarray) -> np.ndarray:
    array = np.empty(strings.size, object)
    for i, string in enumerate(strings.ravel().tolist()):
        if not isinstance(string, str | bytes):
            raise ModelError(f"output {name!r} must be of strings alone, got {type(string).__name__}")
        array[i] = string.encode() if isinstance(string, str) else string
    return array.reshape(strings.shape)


def datatype_of(name: str, output: Values) -> str:
    """The protocol's word for an output's type; ModelError if it has none."""
    if isinstance(output, np.ndarray):
        return BYTES
    if output.dtype not in DATATYPE_OF_TORCH:
        raise ModelError(
            f"output {name!r} is of type {str(output.dtype).removeprefix('torch.')}, which is not served; "
            f"convert it to one of {', '.join(DATATYPE_OF_TORCH.values())}, with .float() for instance"
        )
    return DATATYPE_OF_TORCH[output.dtype]


def as_described(outputs: Mapping[str, Values], specs: Iterable[TensorSpec]) -> dict[str, Values]:
    """A batch's outputs in the order of their description; ModelError where they do not fit it.

    The description comes from example inputs, so sizes may differ from it. Answers tell their own.
    """
    described = {spec.name: spec for spec in specs}
    if outputs.keys() != described.keys():
        raise ModelError(
            f"the model answered {_names(outputs)} for this batch and {_names(described)} for its example "
            "input; every batch must have the same outputs"
        )
    for name, spec in described.items():
        datatype, dimensions = datatype_of(name, outputs[name]), outputs[name].ndim - 1
        if datatype != spec.datatype:
            raise ModelError(
                f"output {name!r} is {datatype} for this batch and {spec.datatype} for the example input; "
                "every batch must have the same types"
            )
        if dimensions != len(spec.shape):
            raise ModelError(
                f"an item of output {name!r} has {dimensions} dimensions in this batch and "
                f"{len(spec.shape)} for the example input; every batch must have as many"
            )
    return {name: outputs[name] for name in described}


def _names(outputs: Iterable[str]) -> str:
    return "the outputs " + ", ".join(map(repr, outputs))


def _ones(spec: TensorSpec, rows: int, size: int) -> Values:
    varying = size if spec.max_size is None else min(size, spec.max_size)
    shape = [rows, *(varying if dimension < 0 else dimension for dimension in spec.shape)]
    return spec.codec.ones(shape)
