"""The totals that a load shares with whoever measures the server meanwhile."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from serving_adapter.answered_totals import FILE_NAME, NO_ANSWERS, SharedTotals, read_totals
from serving_adapter.latency_histogram import BUCKETS, BucketHistogram

LATENCIES_S = (0.25, 0.5, 0.0, 0.25, 1e6)


def test_totals_are_read_while_they_grow_and_go_with_the_load(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    totals, counted = SharedTotals(path), BucketHistogram()
    assert read_totals(path) == NO_ANSWERS
    for answered, latency_s in enumerate(LATENCIES_S, start=1):
        totals.add(latency_s)
        counted.observe(latency_s)
        told = read_totals(path)
        assert told is not None
        assert told.cumulative[-1] == answered
        assert told.bounds_s == NO_ANSWERS.bounds_s
        assert told.cumulative == tuple(accumulate(counted.counts))
        assert told.sum_s == pytest.approx(counted.sum_s)
    bounds_s = [float(bound) for bound, _ in counted.cumulative()]
    assert NO_ANSWERS.bounds_s == tuple(bounds_s)
    totals.close()
    assert read_totals(path) is None


@pytest.mark.parametrize("length", [0, 8 * BUCKETS, 8 * BUCKETS + 7, 8 * BUCKETS + 9])
def test_what_is_no_such_file_tells_nothing(tmp_path: Path, length: int) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"x" * length)
    assert read_totals(tmp_path / FILE_NAME) is None
