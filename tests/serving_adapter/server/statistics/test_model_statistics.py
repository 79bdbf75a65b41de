"""Counters of a model stay small, whatever sizes its clients send."""

from __future__ import annotations

from serving_adapter.server.statistics.model_statistics import MAX_CELLS, ComputeTimes, ModelStatistics


def test_service_times_are_told_by_a_bounded_number_of_sizes_and_counted_for_all():
    statistics = ModelStatistics()
    for busy in range(1, 5):
        for rows in range(1, 1025):
            statistics.record_batch(rows, busy, float(busy), 1000, ComputeTimes(1, 2, 3))
    statistics.record_batch(1, 1, 1.0, 1000, ComputeTimes(1, 2, 3))
    assert len(statistics.telemetry) == MAX_CELLS
    assert statistics.telemetry[1, 1].count == 2
    assert statistics.execution_count == 4 * 1024 + 1
