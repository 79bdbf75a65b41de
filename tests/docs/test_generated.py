"""The generated pages are those of the present code, and the schema says what `rrl-tune --config` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rrl.command_line.options.options import TuneOptions
from scripts.docs.__main__ import REFERENCE, generated
from scripts.docs.schema import tune_schema
from serving_adapter.flags.parsing import read_options_file
from tests.support.pages import blocks

EXAMPLE = REFERENCE / "rrl-tune.example.yaml"
JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "string": str,
    "boolean": bool,
    "null": type(None),
    "array": list,
}
GENERATED = generated()
VALUES: tuple[object, ...] = (0, 3, 1.5, True, "some text", None, [], ["a", "b"], [1])


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value fits a schema, by those keywords that this project's schema uses."""
    if "enum" in schema:
        return value in schema["enum"]
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if isinstance(value, bool):
        return "boolean" in names
    if not any(isinstance(value, JSON_TYPES[name]) for name in names):
        return False
    return not isinstance(value, list) or all(accepts(schema["items"], item) for item in value)


def refused_keys(document: dict[str, Any]) -> set[str]:
    properties = tune_schema()["properties"]
    return {
        key for key, value in document.items() if key not in properties or not accepts(properties[key], value)
    }


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_a_generated_file_is_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == GENERATED[path], "run `make docs`, or python -m scripts.docs"


def test_every_option_says_what_it_is() -> None:
    silent = {name for name, option in tune_schema()["properties"].items() if not option["description"]}
    assert not silent


def test_the_shipped_example_validates() -> None:
    assert not refused_keys(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")))


def test_rrl_tune_takes_the_shipped_example() -> None:
    options = TuneOptions(**read_options_file(EXAMPLE, TuneOptions))
    assert options.knobs == ("instances=1:4", "max_batch_size=1,2,4,8")


def test_the_page_shows_the_shipped_example() -> None:
    assert EXAMPLE.read_text(encoding="utf-8") in [block.text for block in blocks(REFERENCE / "yaml.md")]


def test_a_misspelt_key_does_not_validate() -> None:
    assert refused_keys({"target": "localhost:8500", "intervalls": 20}) == {"intervalls"}
    assert tune_schema()["additionalProperties"] is False


@pytest.mark.parametrize("key", sorted(set(tune_schema()["properties"]) - {"agent", "objective"}))
def test_the_schema_takes_what_the_file_reader_takes(key: str, tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    for value in VALUES:
        path.write_text(json.dumps({key: value}), encoding="utf-8")
        try:
            read_options_file(path, TuneOptions)
            taken = True
        except ValueError:
            taken = False
        assert accepts(tune_schema()["properties"][key], value) == taken, value
