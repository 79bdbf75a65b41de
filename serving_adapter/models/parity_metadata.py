"""What the header of a weights file says of it: its architecture, and whether it is a parity model.

Reads headers only, with neither torch nor numpy: the server's front asks at configuration time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from blake3 import blake3

from serving_adapter.json_text import parsed
from serving_adapter.model_store.weights_file import read_safetensors_header

CHUNK_BYTES = 1 << 20


class WeightsFileError(ValueError):
    """A weights file cannot be used; the message is one sentence for the user."""


class ParityMetadata(NamedTuple):
    """Which parity a parity model is for: `row` of `r`, of groups of `k`, of which deployed model."""

    k: int
    row: int
    r: int
    encoder: str
    of: str  # `identity` of the deployed model


class Architecture(NamedTuple):
    """Which model the weights are for: one of the catalogue, or the user's own `package.module:factory`."""

    model: str
    options: dict[str, str]


def read_parity_metadata(path: Path) -> ParityMetadata | None:
    """None where the file is of an ordinary model; WeightsFileError where it is corrupted."""
    text = _metadata(path).get("parity")
    if text is None:
        return None
    try:
        entries = parsed(text)
        numbers = {name: entries[name] for name in ("k", "row", "r")}
        names = {name: entries[name] for name in ("encoder", "of")}
        if not all(type(number) is int for number in numbers.values()):
            raise ValueError("k, row and r must be whole numbers")
        if not all(type(name) is str for name in names.values()):
            raise ValueError("encoder and of must be text")
    except (ValueError, TypeError, KeyError) as error:
        raise WeightsFileError(
            f"{path}: the header's entry 'parity' cannot be read ({error}); make the file anew with "
            "rrl-parity train"
        ) from None
    metadata = ParityMetadata(**numbers, **names)
    if metadata.k < 2 or not 0 <= metadata.row < metadata.r:
        raise WeightsFileError(
            f"{path}: a parity model has k of at least 2 and a row below r, "
            f"got k={metadata.k}, row={metadata.row}, r={metadata.r}"
        )
    return metadata


def read_architecture(path: Path) -> Architecture:
    """WeightsFileError where the file names no architecture, or is no safetensors file."""
    metadata = _metadata(path)
    if "model" not in metadata:
        raise WeightsFileError(
            f"{path} does not say which architecture its weights are for (the header's metadata has no "
            "'model'); make it with rrl-parity train-base, or serve it through a factory of your own"
        )
    try:
        options = parsed(metadata.get("options", "{}"))
        if not isinstance(options, dict) or not all(type(value) is str for value in options.values()):
            raise ValueError("it is no object of texts")
    except ValueError as error:
        raise WeightsFileError(f"{path}: the header's entry 'options' cannot be read: {error}") from None
    return Architecture(metadata["model"], options)


def identity(reference: str, options: Mapping[str, str]) -> str:
    """What tells a parity model's deployed model from others: its weights, or else reference and options."""
    path = Path(reference)
    if path.suffix == ".safetensors":
        return weights_digest(path)
    return " ".join(["model", reference, *(f"{key}={value}" for key, value in sorted(options.items()))])


def weights_digest(path: Path) -> str:
    """Of the names, shapes and bytes of a file's tensors, whatever else its header says.

    WeightsFileError if the header has the entry `digest` and it is another: the weights are not those saved.
    """
    with _opened(path) as file:
        metadata, tensors = _read(path, file)
        digest = blake3("\n".join(map(repr, tensors)).encode())
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    found = digest.hexdigest()
    if isinstance(metadata, dict) and metadata.get("digest", found) != found:
        raise WeightsFileError(
            f"{path} is corrupted: its weights are not those that were saved; copy it anew"
        )
    return found


def _metadata(path: Path) -> dict[str, str]:
    with _opened(path) as file:
        metadata = _read(path, file)[0]
    if not isinstance(metadata, dict) or not all(type(value) is str for value in metadata.values()):
        raise WeightsFileError(f"{path}: the header's metadata is no object of texts")
    return metadata


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise WeightsFileError(f"cannot read the weights file {path}: {error.strerror}") from None


def _read(path: Path, file: BinaryIO) -> tuple[object, tuple]:
    """The metadata and the tensors of a file that is as long as its header says; leaves it at the tensors."""
    try:
        header = read_safetensors_header(file)
    except ValueError as error:
        raise WeightsFileError(f"{path} cannot be used: {error}") from None
    expected, found = len(header.raw) + header.data_bytes, path.stat().st_size
    if found != expected:
        raise WeightsFileError(f"{path} is not whole: it has {found:,} bytes, its header says {expected:,}")
    return json.loads(header.raw[8:]).get("__metadata__", {}), header.tensors
