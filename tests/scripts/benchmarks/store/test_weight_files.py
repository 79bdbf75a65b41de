"""Files out of the page cache: a benchmark that reads from the disk tells when there is none to read from."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.benchmarks.store.weight_files import MIB, cached_share, forget, warm


def file_below(folder: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = Path(own) / "weights"
        path.write_bytes(bytes(MIB))
        yield path


@pytest.fixture
def file_in_memory() -> Iterator[Path]:
    """A file of a file system that has no disk."""
    yield from file_below("/dev/shm")


@pytest.fixture
def file_on_disk() -> Iterator[Path]:
    yield from file_below("/var/tmp")


def test_a_file_without_a_disk_behind_it_is_refused(file_in_memory: Path) -> None:
    assert cached_share(file_in_memory) == 1.0
    with pytest.raises(RuntimeError, match=r"stays in memory \(100% of it\).*TMPDIR"):
        forget(file_in_memory)


def test_a_file_is_forgotten_and_read_into_the_cache_again(file_on_disk: Path) -> None:
    forget(file_on_disk)
    assert cached_share(file_on_disk) == 0.0
    warm(file_on_disk)
    assert cached_share(file_on_disk) == 1.0


def test_what_another_process_maps_stays_where_that_is_expected(file_on_disk: Path) -> None:
    with file_on_disk.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[: MIB : mmap.PAGESIZE] == bytes(MIB // mmap.PAGESIZE)
        forget(file_on_disk, others_map_it=True)
        with pytest.raises(RuntimeError, match="stays in memory"):
            forget(file_on_disk)


def test_an_empty_file_is_not_cached(file_on_disk: Path) -> None:
    os.truncate(file_on_disk, 0)
    assert cached_share(file_on_disk) == 0.0
