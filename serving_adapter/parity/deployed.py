"""The deployed model that a parity model is for: what it is an instance of, and whether it can have one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from serving_adapter.models.exported import SUFFIXES as EXPORTED
from serving_adapter.models.loading import load_model
from serving_adapter.models.model import Model
from serving_adapter.models.parity_metadata import read_architecture, read_parity_metadata
from serving_adapter.parity.coding import ENCODERS
from serving_adapter.parity.datasets import Dataset
from serving_adapter.parity.evaluation import Coding


def architecture(model: str, texts: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """What a deployed model is an instance of: its factory's reference and options."""
    options = options_of(texts)
    suffix = Path(model).suffix
    if suffix in EXPORTED:
        raise ValueError(f"{model} is an exported file, which cannot be trained: give its factory instead")
    if suffix != ".safetensors":
        return model, options
    if read_parity_metadata(Path(model)) is not None:
        raise ValueError(f"{model} is a parity model itself: give the deployed model")
    if options:
        raise ValueError(f"the weights file {model} takes no --model-option: it has its own")
    name, own = read_architecture(Path(model))
    return name, dict(own)


def options_of(texts: Iterable[str], flag: str = "--model-option") -> dict[str, str]:
    """What KEY=VALUE texts say; ValueError where one is none."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"cannot read {flag} {text!r}; expected KEY=VALUE")
        options[key] = value
    return options


def load(model: str, options: dict[str, str]) -> Model:
    """The model itself; a weights file has its options in it."""
    return load_model(model, {} if Path(model).suffix == ".safetensors" else options)


def check_fit(deployed: Model, dataset: Dataset, coding: Coding) -> int:
    """How many numbers the model answers.

    ValueError unless it takes such data, groups can be encoded, and answers be summed.
    """
    outputs = outputs_for(deployed, dataset)
    ENCODERS[coding.encoder].check(deployed.inputs[0], coding.k)
    return outputs


def outputs_for(model: Model, dataset: Dataset) -> int:
    """How many numbers the model answers; ValueError unless it takes such data and answers numbers."""
    if len(model.inputs) != 1:
        raise ValueError("parity models are trained for models with one input")
    spec = model.inputs[0]
    if spec.shape != dataset.training.x.shape[1:]:
        raise ValueError(
            f"the model takes items of {spec.shape}, those of {dataset.name} are "
            f"{dataset.training.x.shape[1:]}"
        )
    if spec.datatype != "FP32":
        raise ValueError(f"parity models are trained for inputs of FP32, the model takes {spec.datatype}")
    with torch.inference_mode():
        answer = model.module(torch.from_numpy(dataset.training.x[:2].copy()))
    if not isinstance(answer, torch.Tensor) or answer.ndim != 2 or not answer.is_floating_point():
        raise ValueError(
            "parity models are trained for models that answer (N, d) numbers, as one for each class"
        )
    return answer.shape[-1]
