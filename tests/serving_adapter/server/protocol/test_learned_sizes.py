"""Sizes of outputs are learned, and no configuration is refused because it was read before, or elsewhere."""

from __future__ import annotations

import pytest

from serving_adapter.model_configuration import as_json, edited
from serving_adapter.server.deployment import models_of
from serving_adapter.server.options import ServeOptions
from serving_adapter.server.protocol.overrides import model_config, override
from serving_adapter.server.served_model import ServedModel
from serving_adapter.tensors import TensorSpec


def model_with(output: TensorSpec) -> ServedModel:
    (model,) = models_of(ServeOptions(model=("noop",))).values()
    model.outputs[output.name] = output
    return model


TOLD = TensorSpec("y", "FP32", (7, 3))
LEARNED = TOLD.widened((9, 3))


@pytest.mark.parametrize(("read", "served"), [(TOLD, LEARNED), (LEARNED, TOLD), (LEARNED, LEARNED)])
def test_an_override_may_tell_a_size_that_was_learned_since_or_is_yet_to_be(
    read: TensorSpec, served: TensorSpec
) -> None:
    text = as_json(edited(model_config(model_with(read)), {"instances": 2}))
    model = model_with(served)
    knobs, _ = override(model, text, model.knobs, model.resilience)
    assert knobs.instances == 2


@pytest.mark.parametrize("asked", [(7, 4), (8, 3), (7,), (7, 3, 1), (8, -1)])
def test_another_size_is_refused(asked: tuple[int, ...]) -> None:
    text = as_json(model_config(model_with(TensorSpec("y", "FP32", asked))))
    model = model_with(TOLD)
    with pytest.raises(ValueError, match=r"^the override changes 'output\[0\]\.dims"):
        override(model, text, model.knobs, model.resilience)


def test_an_output_that_there_is_not_is_refused() -> None:
    text = as_json(model_config(model_with(TensorSpec("z", "FP32", (7, 3)))))
    model = model_with(TOLD)
    with pytest.raises(ValueError, match=r"^the override changes 'output\[0\]\.name'"):
        override(model, text, model.knobs, model.resilience)
