"""Which models an ensemble is made of, and which ensembles a model is a step of."""

from __future__ import annotations

import json

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter.model_configuration import parse
from serving_adapter.target import TargetError
from serving_adapter.target.open_inference.composition import ensembles_of, steps_of
from tests.support.servers.fake_triton import CONFIG


def ensemble(name: str, *steps: str, max_batch_size: int = 4) -> ModelConfig:
    scheduling = {"step": [{"model_name": step} for step in steps]}
    return parse(
        json.dumps({"name": name, "max_batch_size": max_batch_size, "ensemble_scheduling": scheduling})
    )


def model(name: str) -> ModelConfig:
    return parse(json.dumps({**json.loads(CONFIG), "name": name}))


class Models(dict[str, ModelConfig]):
    """The loaded ones."""

    def __init__(self, *configs: ModelConfig) -> None:
        super().__init__((config.name, config) for config in configs)

    def of(self, name: str) -> ModelConfig:
        if name not in self:
            raise TargetError(f"unknown model {name!r}")
        return self[name]


def test_each_step_is_named_once_in_the_order_of_the_work() -> None:
    models = Models(ensemble("e", "b", "a", "b"), model("a"), model("b"))
    assert steps_of(models["e"], models.of, "box:1") == ["b", "a"]
    assert steps_of(models["a"], models.of, "box:1") == []


def test_the_steps_of_a_step_are_steps_and_their_ensembles_are_both() -> None:
    inner, outer = ensemble("inner", "a", "b", max_batch_size=8), ensemble("outer", "inner", "c")
    models = Models(outer, inner, model("a"), model("b"), model("c"))
    assert steps_of(outer, models.of, "box:1") == ["a", "b", "c"]
    assert ensembles_of("a", models.values()) == {"inner": 8, "outer": 4}
    assert ensembles_of("c", models.values()) == {"outer": 4}
    assert ensembles_of("outer", models.values()) == {}


@pytest.mark.parametrize(
    ("models", "says"),
    [
        (Models(ensemble("e", "a")), "'a', a step of the ensemble 'e' at box:1, is not loaded"),
        (Models(ensemble("e", "f"), ensemble("f", "e")), "'e' at box:1 is made of itself: e > f > e"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(models: Models, says: str) -> None:
    with pytest.raises(TargetError, match=says):
        steps_of(models["e"], models.of, "box:1")


def test_a_circle_of_others_ends() -> None:
    models = Models(ensemble("e", "f", "a"), ensemble("f", "e"), model("a"))
    assert set(ensembles_of("a", models.values())) == {"e", "f"}
