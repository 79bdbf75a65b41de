"""A run of which the report tells."""

from __future__ import annotations

import pytest

from tests.support.runs import simulated_runs as runs


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return runs.tuned(tmp_path_factory.mktemp("good"))
