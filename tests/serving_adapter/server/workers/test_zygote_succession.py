"""A zygote that follows another may be told other sizes of outputs by its examples: it is one model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.server.workers.messages import ModelDescription, ModelReference
from serving_adapter.server.workers.zygote_succession import ZygoteSuccession
from serving_adapter.tensors import TensorSpec

INPUTS = (TensorSpec("x", "FP32", (4,)),)


def described(*outputs: TensorSpec, inputs: tuple[TensorSpec, ...] = INPUTS) -> ModelDescription:
    return ModelDescription(inputs, outputs, has_parallel_branches=False)


class DescribedZygote:
    """Says how its examples describe the model, and is closed."""

    def __init__(self, description: ModelDescription) -> None:
        self._description = description

    async def start(self) -> ModelDescription:
        return self._description

    async def close(self) -> None: ...


def succeeded(first: ModelDescription, second: ModelDescription) -> None:
    """A zygote follows another one; ModelFailed where it is of another model."""
    descriptions = iter((first, second))

    def new(models: Sequence[ModelReference]) -> Any:
        return DescribedZygote(next(descriptions))

    async def scenario() -> None:
        zygotes = ZygoteSuccession([ModelReference("drawn")], new)
        await zygotes.start()
        await zygotes.succeed(())
        await zygotes.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("before", "after"), [((-1, 2), (7, 2)), ((7, 2), (-1, 2)), ((-1, 7), (7, -1))])
def test_a_size_that_varies_may_be_the_same_in_all_examples(
    before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    succeeded(described(TensorSpec("y", "FP32", before)), described(TensorSpec("y", "FP32", after)))


@pytest.mark.parametrize(
    "other",
    [
        described(TensorSpec("y", "FP32", (8, -1))),
        described(TensorSpec("y", "FP32", (7,))),
        described(TensorSpec("y", "FP64", (7, -1))),
        described(TensorSpec("z", "FP32", (7, -1))),
        described(),
        described(TensorSpec("y", "FP32", (7, -1)), inputs=(TensorSpec("x", "FP32", (-1,)),)),
    ],
)
def test_another_model_is_not_served(other: ModelDescription) -> None:
    with pytest.raises(ModelFailed, match="it has other inputs or outputs than when the server started"):
        succeeded(described(TensorSpec("y", "FP32", (7, -1))), other)
