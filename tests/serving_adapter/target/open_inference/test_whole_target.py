"""A model and its parts as one target, on a small server that answers as Triton does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from serving_adapter.model_configuration import parse
from serving_adapter.target import OpenInferenceTarget, TargetError
from serving_adapter.target.open_inference.whole_target import WholeTarget, connected_with_parts
from tests.support.servers.fake_triton import CONFIG, Triton

STEPS = [{"model_name": "n"}, {"model_name": "m"}]
ENSEMBLE = {"name": "e", "max_batch_size": 4, "ensemble_scheduling": {"step": STEPS}}


@pytest.fixture
def ensemble(triton: Triton) -> Triton:
    triton.configs["n"] = parse(json.dumps({**json.loads(CONFIG), "name": "n"}))
    triton.configs["e"] = parse(json.dumps(ENSEMBLE))
    return triton


@pytest.fixture
def found() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connected(
    server: Triton, model: str, stack: ExitStack, *called: str, control: bool = True
) -> OpenInferenceTarget:
    def make(whole: str, parts: list[str]) -> WholeTarget:
        return WholeTarget(server.address, whole, parts)

    target = connected_with_parts(OpenInferenceTarget(server.address, model), called, control, make)
    stack.callback(target.close)
    return target


@pytest.mark.parametrize("control", [True, False])
def test_an_ensemble_is_tuned_by_its_steps(ensemble: Triton, found: ExitStack, control: bool) -> None:
    target = connected(ensemble, "e", found, control=control)
    assert target.model == "e"
    assert isinstance(target, WholeTarget)
    assert list(target.members) == ["n", "m"]
    assert {name.partition(".")[0] for name in target.knobs()} == {"n", "m"}
    assert target.knobs()["n.max_batch_size"].low == 4  # the ensemble's
    target.apply({"n.max_batch_size": 8, "m.instances": 2})
    assert [config.name for config in ensemble.loaded] == ["n", "m"]
    files = target.config_files({"n.max_batch_size": 8})
    assert {"config/n/config.pbtxt", "config/m/config.pbtxt"} <= files.keys()
    reading = target.read()
    assert reading.is_whole
    assert set(reading.models) == {"n", "m"}
    assert reading.success == 10  # its own requests, and not those of both steps


def test_a_model_that_calls_others_is_tuned_with_them(ensemble: Triton, found: ExitStack) -> None:
    target = connected(ensemble, "m", found, "n")
    assert isinstance(target, WholeTarget)
    assert list(target.members) == ["m", "n"]
    assert target.whole_is_a_part
    assert target.glance().success == 10


def test_a_model_without_parts_is_a_target_as_any(ensemble: Triton, found: ExitStack) -> None:
    assert type(connected(ensemble, "m", found)) is OpenInferenceTarget


def test_a_step_that_is_not_loaded_is_told(ensemble: Triton, found: ExitStack) -> None:
    ensemble.unload("n")
    with pytest.raises(TargetError, match=r"'n', a step of the ensemble 'e' at .*, is not loaded"):
        connected(ensemble, "e", found)


def test_an_ensemble_that_is_not_loaded_anew_by_itself_is_loaded(
    ensemble: Triton, found: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = connected(ensemble, "e", found)
    monkeypatch.setattr("serving_adapter.target.open_inference.change.ENSEMBLE_S", 0.0)
    ensemble.goes_with_a_load = "e"
    target.apply({"n.instances": 2})
    assert "e" in ensemble.configs


def test_an_ensemble_that_somebody_unloads_stays_so(ensemble: Triton, found: ExitStack) -> None:
    target = connected(ensemble, "n", found)
    assert target.ensembles == {"e": 4}
    ensemble.unload("e")
    target.apply({"instances": 2})
    assert "e" not in ensemble.configs
