"""The package's public names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from serving_adapter import model_store


@pytest.mark.parametrize("name", model_store.__all__)
def test_every_public_name_is_there(name):
    assert getattr(model_store, name).__name__ == name


def test_the_names_are_sorted_and_listed_once():
    assert model_store.__all__ == sorted(set(model_store.__all__))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'manager'"):
        _ = model_store.manager


@pytest.mark.parametrize("module", ["", ".daemon", ".command_line", ".opening.store", ".clients.client"])
def test_the_store_itself_does_without_torch(module):
    text = f"import sys, serving_adapter.model_store{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0
