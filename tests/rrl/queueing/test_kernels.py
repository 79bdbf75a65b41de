"""What the compiled parts of the simulator compute, beside numpy."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.queueing.kernels import Intervals, Rules, Service, interval_latencies_ms

APART_S = 100.0


@pytest.mark.parametrize("count", [1, 2, 3, 20, 21, 100])
@pytest.mark.parametrize("distinct", [1, 4, 1000])
def test_mean_and_p95_of_an_interval_are_numpys(count: int, distinct: int) -> None:
    latency_s = np.random.default_rng(count).integers(1, distinct + 1, count) / distinct
    arrival_s = APART_S * np.arange(count)
    rules = Rules(False, False, 0.0, 1.0, 1, 1)
    service = Service(np.ones((1, 1)), latency_s)
    intervals = Intervals(arrival_s, arrival_s + APART_S, np.empty(0), count, False)
    ((mean_ms, p95_ms),) = interval_latencies_ms(rules, service, intervals)
    assert mean_ms == pytest.approx(1e3 * latency_s.mean())
    assert p95_ms == pytest.approx(1e3 * np.percentile(latency_s, 95))
