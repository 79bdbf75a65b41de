"""YAML that others may have written: options, tables, faults, Model Analyzer's configurations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

DEEPEST = 100  # lists and mappings within each other
# libyaml's scanner takes a time that grows with the text, Python's own with its square.
_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SAFE):
    """Numbers without colons only: YAML 1.1 reads `1:8` as 68, to the base of 60, and YAML 1.2 as text."""


def _number(tag: str) -> Callable[[Any, yaml.ScalarNode], Any]:
    construct = _SAFE.yaml_constructors[tag]
    return lambda loader, node: node.value if ":" in str(node.value) else construct(loader, node)


for _tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    _Loader.add_constructor(_tag, _number(_tag))


def yaml_of(text: str) -> Any:
    """What it says; ValueError with a clause where it is no YAML, or nested too deeply."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ValueError(f"it is nested too deeply, more than {DEEPEST} times")
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None
    except (AttributeError, LookupError):  # of a constructor: its tag says what the value is not
        raise ValueError("a value is not what its tag says") from None


def yaml_file(path: Path, what: str) -> Any:
    """What a file says; ValueError with one sentence that names `what` it should be."""
    try:
        return yaml_of(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the {what} {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a YAML file: it is not UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"{path} is not a YAML file: {error}") from None
