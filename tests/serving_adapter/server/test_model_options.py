"""Whose `--model-option` is: of every factory, of one model, or of a parity or backup model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving_adapter.server import deployment
from serving_adapter.server.deployment import models_of
from serving_adapter.server.options import ServeOptions


@pytest.fixture(autouse=True)
def unmade(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a served model would be made of stands in its place."""
    monkeypatch.setattr(deployment, "ServedModel", SimpleNamespace)


def of_one(**given: Any) -> Any:
    (model,) = models_of(ServeOptions(**given)).values()
    return model


@pytest.fixture(params=["small.pt", "small.pt2", "small.ts", "small.safetensors"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / request.param
    path.touch()
    return str(path)


def test_a_general_option_is_for_every_factory_and_another_for_its_model() -> None:
    models = models_of(ServeOptions(model=("sleep", "my.net:burn"), model_option=("ms=5", "burn.rounds=1")))
    assert models["sleep"].model.options == (("ms", "5"),)
    assert models["burn"].model.options == (("ms", "5"), ("rounds", "1"))


@pytest.mark.parametrize(
    ("owner", "deployed", "backup"),
    [
        ("my.net:burn", (("ms", "5"),), ()),
        ("burn", (("ms", "5"),), ()),
        ("sleep", (), (("ms", "5"),)),
        ("backup", (), (("ms", "5"),)),
    ],
)
def test_an_option_names_its_model_by_its_name_its_reference_or_its_role(
    owner: str, deployed: object, backup: object
) -> None:
    model = of_one(model=("my.net:burn",), backup_model="sleep", model_option=(f"{owner}.ms=5",))
    assert (model.model.options, model.redundant_models.backup.options) == (deployed, backup)


@pytest.mark.parametrize("text", ["slep.ms=5", "parity.ms=5", "backup.ms=5"])
def test_an_option_of_a_model_that_there_is_not_is_refused_with_those_that_there_are(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        models_of(ServeOptions(model=("sleep", "noop"), model_option=(text,)))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"--model-option '{text}' is for no model here: give it to one of sleep, noop (")


def test_a_general_option_is_not_for_the_file_of_a_backup_model(file: str) -> None:
    model = of_one(model=("sleep",), backup_model=file, model_option=("ms=5",))
    assert (model.model.options, model.redundant_models.backup.options) == ((("ms", "5"),), ())


@pytest.mark.parametrize("file", ["small.pt2"], indirect=True)
def test_a_general_option_is_not_for_the_exported_file_of_a_parity_model(file: str) -> None:
    model = of_one(model=("sleep",), parity_model=(file,), model_option=("ms=5",))
    assert [parity.model.options for parity in model.redundant_models.parities] == [()]
