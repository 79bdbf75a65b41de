"""A file is there whole or not at all, and nobody else's link is written through."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from serving_adapter import whole_files
from serving_adapter.whole_files import UNFINISHED, check_place, written_whole


def test_a_file_appears_once_it_is_whole_with_the_users_own_mode(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")
    before = os.umask(0o027)
    try:
        with written_whole(path) as file:
            file.write(b"new")
            assert path.read_bytes() == b"old"
            (beside,) = {*tmp_path.iterdir()} - {path}
            assert UNFINISHED.fullmatch(beside.name)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_one_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "w"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with written_whole(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("dangling", [True, False])
def test_a_link_that_somebody_laid_is_not_written_through(tmp_path, monkeypatch, dangling):
    """Even if they guessed the name."""
    victim = tmp_path / "victim"
    if not dangling:
        victim.write_bytes(b"precious")
    monkeypatch.setattr(whole_files.secrets, "token_hex", lambda count: "0" * 2 * count)
    (tmp_path / f".w.{'0' * 16}.part").symlink_to(victim)
    with pytest.raises(FileExistsError), written_whole(tmp_path / "w"):
        pass
    assert dangling or victim.read_bytes() == b"precious"
    assert victim.exists() != dangling


def test_the_place_itself_may_be_a_link_which_is_replaced(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "w").symlink_to(tmp_path / "victim")
    with written_whole(tmp_path / "w") as file:
        file.write(b"new")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / "w").read_bytes() == b"new"


def test_a_name_of_the_greatest_length_is_written(tmp_path):
    for name in ("x" * 255, "\u00e4" * 127):
        with written_whole(tmp_path / name) as file:
            file.write(b"new")
        assert (tmp_path / name).read_bytes() == b"new"


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with written_whole(pipe) as file:
            file.write(b"new")
        assert os.read(reading, 10) == b"new"
    finally:
        os.close(reading)
    assert pipe.is_fifo()


def test_a_place_where_nothing_can_be_written_is_known_before_and_none_is_left_there(tmp_path):
    check_place(tmp_path / "file")
    assert not list(tmp_path.iterdir())
    for place in (tmp_path, tmp_path / "no" / "file", Path("/proc/file")):
        with pytest.raises(OSError, match=re.escape(str(place))) as refused:
            check_place(place)
        assert refused.value.filename == str(place)
