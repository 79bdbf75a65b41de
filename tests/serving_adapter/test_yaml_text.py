"""YAML of strangers is read in a time that grows with its length, and refused with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from serving_adapter.yaml_text import DEEPEST, yaml_file, yaml_of


def nested(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


def test_it_says_what_python_reads() -> None:
    text = "model: minilm\nknobs: {instances: [1, 2]}\nrate: 1.5\nsince: 2026-01-02\nnone: ~\n"
    assert yaml_of(text) == yaml.safe_load(text)
    assert yaml_of("") is None


@pytest.mark.parametrize("text", ["1:8", "22:00", "1:30.5", "-1:8:2"])
def test_numbers_with_colons_are_text(text: str) -> None:
    assert yaml_of(f"value: {text}") == {"value": text}


@pytest.mark.parametrize("write", [nested, lambda depth: "- " * depth, lambda depth: "{a: " * depth])
def test_what_is_nested_too_deeply_is_refused(write: Callable[[int], str]) -> None:
    assert yaml_of(nested(DEEPEST))
    for depth in (DEEPEST + 1, 4_000, 100_000):
        with pytest.raises(ValueError, match="nest"):
            yaml_of(write(depth))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (None, "cannot read the table .*: No such file or directory"),
        (b"\xff\xfe\xff", "is not a YAML file: it is not UTF-8 text"),
        (b"a: [", "is not a YAML file: while parsing"),
        (b"a: !!bool maybe", "is not a YAML file: a value is not what its tag says"),
        (b"a: !!timestamp now", "is not a YAML file: a value is not what its tag says"),
        (b'a: !!int ""', "is not a YAML file: a value is not what its tag says"),
        (b"a: 2001-99-99", "is not a YAML file: month must be in 1..12"),
        (b"a: !!python/object:os.system {}", "is not a YAML file: could not determine a constructor"),
    ],
)
def test_a_file_that_is_none_is_refused_by_name(written: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    if written is not None:
        path.write_bytes(written)
    with pytest.raises(ValueError, match=said) as refused:
        yaml_file(path, "table")
    assert "\n" not in str(refused.value)
