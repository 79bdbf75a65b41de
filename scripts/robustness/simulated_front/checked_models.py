"""Models every answer of which tells whose it is: outputs from which the row that was asked can be read.

A row is (number of the request, what it does to a worker, its place, a random number). The output is a
product with a matrix that has an inverse. So no two rows have one answer. It is linear, too, and a parity
model of it answers a sum of rows with the sum of their answers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from serving_adapter.server.requests import BACKUP, DEFAULT, RECONSTRUCTED
from serving_adapter.tensors import TensorSpec

DEPLOYED, PARITY, BACKUP_MODEL = "deployed", "parity", "backup"  # references of models
FINE, RAISES, CRASHES, HANGS, ANSWERS_NONSENSE, ANSWERS_TWICE = range(6)
"""What a row does to the worker that runs it: the second number of the row."""
HARMLESS = (FINE, ANSWERS_TWICE)  # to the answer of the row itself
RAISED = "this row is refused by the model"

MIXING = np.array([[1, 0, 0, 0], [3, 1, 0, 0], [5, 7, 1, 0], [2, 4, 6, 1]], float)
BACKUP_FACTOR = 2.0  # a backup's answers are recognised by it
WIDTH = 4
LONGEST = 6
MAX_NONCE = 1 << 20

Arrays = Mapping[str, np.ndarray]


class CheckedModel(NamedTuple):
    """The tensors of a model, and whether its rows differ in length."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    is_ragged: bool


LINEAR = CheckedModel(
    "linear",
    (TensorSpec("x", "FP64", (WIDTH,)),),
    (TensorSpec("y", "FP64", (WIDTH,)), TensorSpec("sum", "FP64", (1,))),
    False,
)
PADDED = CheckedModel(
    "padded",
    (TensorSpec("x", "INT64", (-1,), pad_value=0), TensorSpec("twin", "INT64", (-1,), pad_value=0)),
    (TensorSpec("y", "INT64", (WIDTH,)), TensorSpec("sum", "INT64", (1,))),
    True,
)
UNPADDED = CheckedModel(
    "unpadded",
    (TensorSpec("x", "INT64", (-1,)),),
    (TensorSpec("y", "INT64", (WIDTH,)), TensorSpec("sum", "INT64", (1,))),
    True,
)
CHECKED_MODELS = (LINEAR, PADDED, UNPADDED)


def draw_rows(draw: random.Random, model: CheckedModel, number: int, rows: int, deed: int) -> np.ndarray:
    """(rows, length): what a request asks; one of its rows does the deed, the others are fine."""
    length = draw.randint(WIDTH, LONGEST) if model.is_ragged else WIDTH
    asked = np.array([[draw.randrange(MAX_NONCE) for _ in range(length)] for _ in range(rows)], float)
    asked[:, 0], asked[:, 1], asked[:, 2] = number, FINE, np.arange(rows)
    asked[draw.randrange(rows), 1] = deed
    return asked.astype(model.inputs[0].dtype)


def inputs_of(model: CheckedModel, asked: np.ndarray) -> list[np.ndarray]:
    """What is sent, in the order of the model's inputs."""
    return [asked if spec.name == "x" else asked + 1 for spec in model.inputs]


def are_twins(x: np.ndarray, twin: np.ndarray) -> bool:
    """Whether two inputs of a batch belong together, row by row."""
    return np.array_equal(twin[:, :WIDTH], x[:, :WIDTH] + 1)


def numbers_of(x: np.ndarray) -> list[int]:
    """The requests whose rows a batch holds, in order."""
    return list(dict.fromkeys(int(number) for number in x[:, 0]))


def answer(reference: str, x: np.ndarray) -> dict[str, np.ndarray]:
    """What a model answers a batch; a longer row counts with what it has beyond `WIDTH` in its sum only."""
    factor = BACKUP_FACTOR if reference == BACKUP_MODEL else 1.0
    y = (x[:, :WIDTH] @ MIXING * factor).astype(x.dtype)
    total = x.sum(axis=1, keepdims=True) * x.dtype.type(factor)
    return {"y": y, "sum": total}


def wrong_with(answered: Arrays, asked: np.ndarray, origin: str) -> str:
    """What is wrong with an answer, in a sentence; empty where it is that of its rows."""
    if origin == DEFAULT:
        expected = {name: np.zeros_like(array) for name, array in answer(DEPLOYED, asked).items()}
    else:
        expected = answer(BACKUP_MODEL if origin == BACKUP else DEPLOYED, asked)
    if answered.keys() != expected.keys():
        return f"it has the outputs {sorted(answered)} instead of {sorted(expected)}"
    for name, right in expected.items():
        given = answered[name]
        if given.shape != right.shape or given.dtype != right.dtype:
            return f"{name} is {given.dtype}{list(given.shape)} instead of {right.dtype}{list(right.shape)}"
        # Several parities are solved for by division, so what is reconstructed may be off by a rounding.
        same = np.allclose if origin == RECONSTRUCTED else np.array_equal
        if not same(given, right):
            return f"{name} is {given.tolist()} instead of {right.tolist()} (origin: {origin})"
    return ""
