"""The models that stand beside a deployed one: its parity models, its backup, its default answer.

The operator says which there are when the server starts. A client that may configure the server chooses
among them by mode, k and r, and names no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from serving_adapter.models.parity_metadata import (
    ParityMetadata,
    identity,
    read_architecture,
    read_parity_metadata,
    weights_digest,
)
from serving_adapter.parity.coding import ENCODERS, Encoder
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.requests import Specs
from serving_adapter.server.workers.messages import ModelReference
from serving_adapter.tensors import TensorSpec


class ParityModel(NamedTuple):
    """A parity model; without metadata (not made by `rrl-parity train`) it serves any k."""

    model: ModelReference
    metadata: ParityMetadata | None = None


@dataclass(frozen=True)
class RedundantModels:
    """What the operator offers for the resilience modes of one model."""

    parities: tuple[ParityModel, ...] = ()
    encoder: Literal["sum", "concat"] = "sum"
    """The encoder of parity models whose files do not say."""
    backup: ModelReference | None = None
    default: Mapping[str, np.ndarray] | None = None
    """One row of some outputs; the others are zeros, or empty strings. None if none may be given."""

    def __post_init__(self) -> None:
        seen: dict[tuple[int, int], ParityModel] = {}
        for parity in self.parities:
            if parity.metadata is None:
                continue
            key = (parity.metadata.k, parity.metadata.row)
            if key in seen:
                raise ValueError(
                    f"there are two parity models for k={key[0]}, row {key[1]}: {seen[key].model.reference} "
                    f"and {parity.model.reference}; give one"
                )
            seen[key] = parity

    def parities_for(self, settings: ResilienceSettings) -> tuple[list[ModelReference], Encoder]:
        """The parity models of rows 0 to r-1 and their encoder; ValueError where one is not there."""
        chosen = [self._parity(settings, row) for row in range(settings.r)]
        encoders = {self.encoder_of(parity) for parity in chosen}
        if len(encoders) > 1:
            raise ValueError(
                f"the parity models for k={settings.k}, r={settings.r} were made for different encoders "
                f"({', '.join(sorted(encoders))}); serve those of one encoder only"
            )
        return [parity.model for parity in chosen], ENCODERS[encoders.pop()]

    def shared_for(self, settings: ResilienceSettings) -> list[ModelReference]:
        """What the mode of these settings will share with the deployed model, if there can be one."""
        if settings.mode != "parity" or not settings.overflow:
            return []
        try:
            return self.parities_for(settings)[0]
        except ValueError:  # it is told once the deployed model is described
            return []

    def encoder_of(self, parity: ParityModel) -> str:
        return self.encoder if parity.metadata is None else parity.metadata.encoder

    def _parity(self, settings: ResilienceSettings, row: int) -> ParityModel:
        wanted = (settings.k, row)
        for parity in self.parities:
            if parity.metadata is not None and (parity.metadata.k, parity.metadata.row) == wanted:
                return parity
        general = [parity for parity in self.parities if parity.metadata is None]
        if row < len(general):
            return general[row]
        there = ", ".join(self._described(parity) for parity in self.parities) or "none"
        raise ValueError(
            f"the mode parity with k={settings.k}, r={settings.r} needs a parity model of k={settings.k}, "
            f"row {row}; the server was started with {there}; train it with rrl-parity train and start the "
            "server with another --parity-model"
        )

    def _described(self, parity: ParityModel) -> str:
        name = Path(parity.model.reference).name
        if parity.metadata is None:
            return name
        return f"{name} (k={parity.metadata.k}, row {parity.metadata.row}, {parity.metadata.encoder})"


def parity_model(model: ModelReference, deployed: ModelReference) -> ParityModel:
    """A parity model with what its file says of it; ValueError if that cannot be read, or does not fit.

    A file may name code of the user. It may run, because the deployed model names it too.
    """
    path = Path(model.reference)
    if path.suffix != ".safetensors":
        return ParityModel(model)
    weights_digest(path)  # refuses corrupted ones
    metadata = read_parity_metadata(path)
    if metadata is not None and metadata.of != identity(deployed.reference, dict(deployed.options)):
        raise ValueError(
            f"the parity model {path} was trained for another model than {deployed.reference} with these "
            "options; train one for it with rrl-parity train"
        )
    if metadata is not None and metadata.encoder not in ENCODERS:
        raise ValueError(
            f"{path} was made with the unknown encoder {metadata.encoder!r}; known: {', '.join(ENCODERS)}"
        )
    if read_architecture(path).model == deployed.reference:
        model = model._replace(options=(*model.options, ("architecture", deployed.reference)))
    return ParityModel(model, metadata)


def check_coding(encoder: Encoder, k: int, inputs: Specs, outputs: Specs) -> None:
    """ValueError, in one sentence, if the model's tensors cannot be encoded and decoded."""
    for spec in inputs.values():
        encoder.check(spec, k)
    for spec in outputs.values():
        if spec.dtype.kind != "f" or -1 in spec.shape:
            raise ValueError(
                f"the mode parity needs outputs of floating point and one size, to subtract them, but "
                f"{spec.name!r} is {spec.datatype} {list(spec.shape)}"
            )


def default_answer(given: Mapping[str, np.ndarray] | None, outputs: Specs) -> dict[str, np.ndarray]:
    """One row of every output: the given one, else zeros or empty strings.

    ValueError, in one sentence, where a given one does not fit.

    It is wrong for every request. So nobody who may only configure the server can have it given.
    """
    if given is None:
        raise ValueError(
            "the mode default-answer is not offered here; start the server with --default-answer FILE, or "
            "with --resilience default-answer for zeros"
        )
    unknown = sorted(set(given) - set(outputs))
    if unknown:
        raise ValueError(f"the default answer has {unknown[0]!r}, but the outputs are {', '.join(outputs)}")
    rows = {}
    for name, spec in outputs.items():
        shape = tuple(1 if size == -1 else size for size in spec.shape)
        row = spec.codec.zeros(shape) if name not in given else _given_row(spec, shape, given[name])
        rows[name] = row[np.newaxis]
    return rows


def _given_row(spec: TensorSpec, shape: tuple[int, ...], values: np.ndarray) -> np.ndarray:
    """What a file says, as arrays of the output's type have it."""
    if values.shape != shape:
        raise ValueError(
            f"the default answer of {spec.name!r} must have the shape {list(shape)}, got {list(values.shape)}"
        )
    try:
        return spec.codec.array(spec.codec.packed(values), shape)
    except ValueError as error:
        raise ValueError(f"the default answer of {spec.name!r} does not fit: {error}") from None
