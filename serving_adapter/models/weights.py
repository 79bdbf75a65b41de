"""Where the weights and the papers' networks come from: packages that are found, not always imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from serving_adapter.models.model import ModelError


def package_folder(package: str, model: str, install: str) -> Path:
    """The folder of an installed package, without importing it; `install` is the command that adds it."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModelError(f"the model {model!r} needs the package {package}; install it with: {install}")
    return Path(found.submodule_search_locations[0])
