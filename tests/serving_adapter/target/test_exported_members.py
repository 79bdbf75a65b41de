"""The package's public names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from serving_adapter import target


@pytest.mark.parametrize("name", target.__all__)
def test_every_public_name_is_there(name):
    assert getattr(target, name).__name__ == name


def test_the_names_are_sorted_and_listed_once():
    assert target.__all__ == sorted(set(target.__all__))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Server'"):
        _ = target.Server


@pytest.mark.parametrize("module", ["", ".target", ".target.reading"])
def test_a_reading_does_without_grpc(module):
    text = f"import sys, serving_adapter{module}; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0
