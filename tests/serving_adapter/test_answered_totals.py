"""The totals that a load shares with whoever measures the server meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving_adapter.answered_totals import FILE_NAME, SharedTotals, read_totals


def test_totals_are_read_while_they_grow_and_go_with_the_load(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    totals = SharedTotals(path)
    assert read_totals(path) == (0, 0.0)
    totals.add(0.25)
    totals.add(0.5)
    assert read_totals(path) == (2, pytest.approx(0.75))
    totals.close()
    assert read_totals(path) is None


@pytest.mark.parametrize("content", [b"", b"x" * 15, b"x" * 17])
def test_what_is_no_such_file_tells_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert read_totals(tmp_path / FILE_NAME) is None
