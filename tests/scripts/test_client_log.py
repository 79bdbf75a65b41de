"""What clients wrote of their requests, and what is counted of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from scripts.serving.client_log import Requests
from tests.support.client_requests import requests


def test_a_client_log_is_read_in_the_order_of_its_moments(tmp_path: Path) -> None:
    rows = "at,latency_ms,status\n12.5,30.000,OK\n11.0,5000.000,UNAVAILABLE\n14.0,10.000,OK\n"
    (tmp_path / "requests.csv").write_text(rows)
    seen = Requests.read(tmp_path)
    assert seen.at.tolist() == [11.0, 12.5, 14.0]
    assert (seen.failures, seen.mean_ms, seen.sum_s) == (1, 20.0, 5.04)
    assert len(seen.between(11.0, 14.0)) == 2
    assert len(seen.first(1.5)) == 1
    assert len(seen.after(1.5)) == 2


def test_a_failed_request_is_over_any_limit() -> None:
    seen = requests([10.0, 20.0, 30.0], failed=[0])
    assert seen.over(25.0) == 2
    assert seen.p95_ms == pytest.approx(29.5)


def test_no_requests_have_no_mean() -> None:
    none = Requests.joined([])
    assert math.isnan(none.mean_ms)
    assert math.isnan(none.p95_ms)
    assert (len(none.first(1.0)), none.sum_s, none.over(1.0)) == (0, 0.0, 0)
