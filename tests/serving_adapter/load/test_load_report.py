from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from serving_adapter.load.report import LoadReport, Recorder, SecondRow


def printed(report: LoadReport) -> str:
    text = io.StringIO()
    Console(file=text, width=100).print(report.as_table())
    return text.getvalue()


def test_the_report_s_figures_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    latencies_s = rng.lognormal(np.log(0.02), 1.0, 5000)
    lags_s = rng.exponential(0.0005, 5000)
    recorder = Recorder(lambda row: None)
    for latency_s, lag_s in zip(latencies_s, lags_s, strict=True):
        recorder.sent(0.0, lag_s)
        recorder.completed(0.0, latency_s)
    report = recorder.report(10.0, 12.5)
    figures = report.latency_ms
    assert figures is not None
    assert figures.mean == pytest.approx(1e3 * latencies_s.mean())
    assert figures.max == 1e3 * latencies_s.max()
    for name, percentile in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("p99_9", 99.9)):
        ranks = [percentile - 0.02, percentile + 0.02]  # a request either way: which rank is a convention
        low_s, high_s = np.percentile(latencies_s, ranks, method="inverted_cdf")
        assert 0.999 * low_s <= getattr(figures, name) / 1e3 <= 1.001 * high_s, name
    assert report.send_lag_p99_ms == pytest.approx(1e3 * np.percentile(lags_s, 99), rel=1e-2)
    assert report.send_lag_max_ms == pytest.approx(1e3 * lags_s.max())
    assert (report.offered_rate_per_s, report.achieved_rate_per_s) == (500.0, 400.0)


def test_failures_are_counted_by_status_and_leave_the_latencies_alone() -> None:
    recorder = Recorder(lambda row: None)
    for code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "UNAVAILABLE"):
        recorder.sent(0.0, 0.0)
        recorder.failed(0.5, code)
    report = recorder.report(1.0, 1.0)
    assert report.failed == {"UNAVAILABLE": 2, "RESOURCE_EXHAUSTED": 1}
    assert (report.sent, report.completed, report.latency_ms) == (3, 0, None)
    assert "UNAVAILABLE: 2, RESOURCE_EXHAUSTED: 1" in printed(report)


def test_a_run_without_requests_reports_zeros() -> None:
    report = Recorder(lambda row: None).report(0.0, 0.0)
    assert (report.sent, report.offered_rate_per_s, report.send_lag_p99_ms) == (0, 0.0, 0.0)
    assert "sent" in printed(report)


def test_a_client_that_was_late_is_said_to_be() -> None:
    recorder = Recorder(lambda row: None)
    recorder.sent(0.0, 0.5)
    assert "could not keep up" in printed(recorder.report(1.0, 1.0))


def test_each_second_has_a_row_in_a_lull_too() -> None:
    rows: list[SecondRow] = []
    recorder = Recorder(rows.append)
    recorder.sent(0.1, 0.0)
    recorder.sent(0.2, 0.0)
    recorder.completed(0.9, 0.5)
    assert rows == []
    recorder.completed(1.1, 0.25)
    assert rows == [SecondRow(0, 2, 1, 0, 500.0, 500.0, 500.0, 500.0)]
    recorder.advance(3.5)
    recorder.failed(3.6, "UNAVAILABLE")
    recorder.finish(3.9)
    recorder.finish(4.0)
    assert [(row.second, row.sent, row.completed, row.failed) for row in rows[1:]] == [
        (1, 0, 1, 0),
        (2, 0, 0, 0),
        (3, 0, 0, 1),
    ]
    assert rows[0].as_csv() == "0,2,1,0,500.000,500.000,500.000,500.000"
    assert rows[2].as_csv() == "2,0,0,0,,,,"
    assert SecondRow.header() == "second,sent,completed,failed,mean_ms,p50_ms,p95_ms,p99_ms"
