"""The live environment on a real Triton: what an interval costs it, and what is measured of a change."""

from typing import Any

import pytest

from envs.live import LiveServing
from rrl.interval import Watch

INTERVALS: dict[str, Any] = {"interval_s": 1.0, "settle_s": 0.2}
# The model is found with 8, below which nothing is tried once requests held several items, as in other tests.
SPACE = "instances=1:2,max_batch_size=8,16"


@pytest.fixture
def env(triton, serve, make_target):
    served = serve(triton, "sleep")
    found = served.config()
    yield LiveServing(make_target(served), SPACE, **INTERVALS)
    served.load(found)


def step(env, **configuration):
    return env.run(env.space.number(configuration), Watch(lambda progress: "")).measurement


def test_an_interval_without_a_change_costs_one_call_and_one_page(env, serve, triton, load):
    with load(serve(triton, "sleep")) as sending:
        env.reset(seed=0)
        step(env, instances=1, max_batch_size=16)
        before = env.target.calls.copy()
        measurement = step(env, instances=1, max_batch_size=16)
    assert env.target.calls - before == {"ModelStatistics": 1, "metrics page": 1, "ModelConfig": 1}
    assert measurement.gap == ""
    assert measurement.completions > 0
    assert sending.failed == {}


def test_a_change_is_measured_with_what_came_and_no_more(env, serve, triton, load):
    """Over new loads the page goes on and the statistics begin again: neither shows in the measurement."""
    with load(serve(triton, "sleep")) as sending:
        env.reset(seed=0)
        for configuration in (
            {"instances": 2, "max_batch_size": 16},
            {"instances": 2, "max_batch_size": 8},
            {"instances": 1, "max_batch_size": 8},
            {"instances": 2, "max_batch_size": 16},
        ):
            measurement = step(env, **configuration)
            assert env.target.configuration().items() >= configuration.items()
            assert measurement.gap == measurement.aborted == ""
            assert measurement.failures == 0
            assert measurement.arrivals == measurement.completions + measurement.backlog_growth
            assert measurement.latency.mean_ms >= 2  # the model's
            batches = sum(row.count for row in measurement.telemetry)
            late = 40  # a second's: counted after the statistics were read, before the page
            assert 0 < batches <= measurement.completions + late
    assert sending.failed == {}
