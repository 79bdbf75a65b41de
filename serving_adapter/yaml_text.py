"""YAML that others may have written: options, tables, faults, Model Analyzer's configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEEPEST = 100  # lists and mappings within each other
# libyaml's scanner takes a time that grows with the text, Python's own with its square.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def yaml_of(text: str) -> Any:
    """What it says; ValueError with a clause where it is no YAML, or nested too deeply."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ValueError(f"it is nested too deeply, more than {DEEPEST} times")
        return yaml.load(text, Loader=LOADER)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None


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
