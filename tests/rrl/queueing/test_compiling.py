"""What cannot be kept is compiled all the same, as in a container whose folders are all read-only."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from numba.core import caching

from rrl.queueing import compiling

SAYS = "set NUMBA_CACHE_DIR to a folder"


def double(x: int) -> int:
    return 2 * x


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where what is compiled is kept."""
    monkeypatch.setattr(caching.config, "CACHE_DIR", str(tmp_path))
    compiling._note_that_nothing_is_kept.cache_clear()
    yield tmp_path
    compiling._note_that_nothing_is_kept.cache_clear()


def hits() -> int:
    """How often it was found when a new process' function is called for the first time."""
    function = compiling.compiled(double)
    assert function(21) == 42
    return sum(function.stats.cache_hits.values())


def test_what_was_compiled_is_found_by_the_next_process(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert [hits(), hits()] == [0, 1]
    assert not caplog.messages


@pytest.mark.parametrize("options", [{}, {"inline": "always"}])
def test_where_there_is_no_folder_a_function_is_compiled_and_that_is_said_once(
    options: dict[str, str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    for _ in range(2):
        assert compiling.compiled(double, **options)(21) == 42
    assert [SAYS in message for message in caplog.messages] == [True]


def test_a_full_disk_keeps_no_function_from_being_run(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        assert hits() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert SAYS in caplog.text
    assert [hits(), hits()] == [0, 1]


@pytest.mark.parametrize("name", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize("left", [0, 20])
def test_a_file_that_is_torn_is_written_anew(name: str, left: int, folder: Path) -> None:
    hits()
    (file,) = folder.rglob(name)
    file.write_bytes(file.read_bytes()[:left])
    assert [hits(), hits()] == [0, 1]


def test_what_two_processes_compiled_at_once_under_one_name_is_not_mistaken(folder: Path) -> None:
    function = compiling.compiled(double)
    assert (function(21), function(2.25)) == (42, 4.5)
    first, second = sorted(folder.rglob("*.nbc"))  # one a type of argument
    second.write_bytes(first.read_bytes())  # as where both were the first to name a file
    function = compiling.compiled(double)
    assert (function(21), function(2.25)) == (42, 4.5)
    function = compiling.compiled(double)
    assert (function(21), function(2.25)) == (42, 4.5)
    assert len(function.stats.cache_hits) == 2
