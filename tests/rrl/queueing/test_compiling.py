"""What cannot be kept is compiled all the same, as in a container whose folders are all read-only."""

from __future__ import annotations

import pytest
from numba.core import caching

from rrl.queueing import compiling


def double(x: int) -> int:
    return 2 * x


def test_where_nothing_can_be_written_a_function_is_compiled_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    monkeypatch.setattr(caching.config, "CACHE_LOCATOR_CLASSES", "", raising=False)
    compiling._note_that_nothing_is_kept.cache_clear()
    for options in ({}, {"inline": "always"}):
        assert compiling.compiled(double, **options)(21) == 42
    (said,) = caplog.messages
    assert "set NUMBA_CACHE_DIR to a folder" in said
