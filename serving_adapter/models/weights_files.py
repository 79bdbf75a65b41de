"""Models from weights files that say what they are: safetensors with the name of an architecture.

| entry of the header's metadata | meaning |
|---|---|
| `model` | a name of the catalogue, or a factory of one's own |
| `options` | the options of that model: a JSON object of texts |
| `digest` | that of the weights, checked when they are read |
| `parity` | for a parity model, see `parity_metadata` |

A factory of one's own is not imported because a file names it. Whoever loads the file must name it too.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from serving_adapter.models.classifiers import network
from serving_adapter.models.model import Model, ModelError
from serving_adapter.models.parity_metadata import (
    ParityMetadata,
    WeightsFileError,
    read_architecture,
    weights_digest,
)
from serving_adapter.whole_files import written_whole

SUFFIX = ".safetensors"


def read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read as safetensors: {error}") from None


def put_weights(model: Model, path: Path) -> None:
    """Puts a file's weights into a model of the architecture that the file names."""
    try:
        weights_digest(path)
    except WeightsFileError as error:
        raise ModelError(str(error)) from None
    net, weights = network(model.module), read_weights(path)
    expected = {name: tensor.shape for name, tensor in net.state_dict().items()}
    found = {name: tensor.shape for name, tensor in weights.items()}
    if found != expected:
        raise ModelError(f"{path} does not fit its architecture: {_difference(expected, found)}")
    net.load_state_dict(weights)


def architecture_of(path: Path) -> tuple[str, dict[str, str]]:
    try:
        return read_architecture(path)
    except WeightsFileError as error:
        raise ModelError(str(error)) from None


def save_weights(
    path: Path,
    net: nn.Module,
    model: str,
    options: Mapping[str, str],
    parity: ParityMetadata | None = None,
) -> None:
    """Writes a file that `load_model` builds; whole, or not at all."""
    metadata = {"model": model, "options": json.dumps(dict(options))}
    if parity is not None:
        metadata["parity"] = json.dumps(parity._asdict())
    # Tied tensors become tensors of their own, as safetensors wants them.
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in net.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "weights.safetensors"
        bare.write_bytes(save(state, metadata))
        metadata["digest"] = weights_digest(bare)
    write_whole(path, save(state, metadata))


def write_whole(path: Path, data: bytes) -> None:
    """Replaces a file at once, so that a reader or an interruption never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write(data)


def _difference(expected: Mapping[str, torch.Size], found: Mapping[str, torch.Size]) -> str:
    for name in (*expected, *found):
        if name not in found:
            return f"the tensor {name!r} is missing"
        if name not in expected:
            return f"it has a tensor {name!r} too many"
        if expected[name] != found[name]:
            return f"the tensor {name!r} should be {list(expected[name])}, it is {list(found[name])}"
    raise AssertionError("they are equal")
