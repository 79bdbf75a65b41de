"""The costs of predicted intervals are those of measured ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rrl.measurement import LatencySummary, Measurement
from rrl.objective import LeastResources, MeanLatency, Objective, StrictSLO, make_objective
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 4], intra_op_threads=[2, 3], max_batch_size=[1, 8])
LATENCIES_MS = [(20.0, 40.0), (50.0, 99.9), (50.0, 100.0), (60.0, 100.1), (400.0, 900.0), (9000.0, 50000.0)]


@pytest.mark.parametrize(
    "objective",
    [
        MeanLatency(),
        MeanLatency(100.0),
        StrictSLO(100.0),
        LeastResources(100.0),
        LeastResources(100.0, violation_threads=7.0),
    ],
)
def test_predicted_intervals_cost_what_the_same_measured_ones_do(objective: Objective) -> None:
    mean_ms, p95_ms = np.array(LATENCIES_MS).T
    predicted = objective.costs(mean_ms, p95_ms, SPACE.threads[:, None])
    measured = [
        [
            objective.cost(
                Measurement(10.0, 100, 100, 0, LatencySummary(mean, mean, p95, p95)),
                SPACE.configuration(number),
            )
            for mean, p95 in LATENCIES_MS
        ]
        for number in range(len(SPACE))
    ]
    assert predicted.shape == (len(SPACE), len(LATENCIES_MS))
    np.testing.assert_allclose(predicted, measured)


@pytest.mark.parametrize("objective", [MeanLatency(100.0), StrictSLO(100.0), LeastResources(100.0)])
def test_an_overloaded_configuration_costs_most(objective: Objective) -> None:
    slow, never = objective.costs(np.array([300.0, np.inf]), np.array([600.0, np.inf]), np.array([2, 2]))
    assert never > slow


def test_under_least_resources_nearer_to_the_limit_costs_less_whatever_the_threads() -> None:
    p95_ms = np.array([100.1, 101.0, 1100.0, 1200.0, 1e6])
    costs = LeastResources(100.0).costs(p95_ms, p95_ms, np.array([1000, 500, 100, 10, 1]))
    assert np.all(np.diff(costs) > 0)


def test_under_least_resources_to_break_the_limit_never_costs_less_than_to_keep_it() -> None:
    kept, broken = LeastResources(100.0).costs(
        np.array([50.0, 50.0]), np.array([100.0, 100.001]), np.array([1000, 1])
    )
    assert kept == 1000 < broken


def test_under_least_resources_few_threads_that_fail_requests_never_cost_less_than_many_that_do_not() -> None:
    latencies_ms, threads, fail = np.array([50.0, 50.0]), np.array([1, 1000]), np.array([0.06, 0.0])
    few, many = LeastResources(100.0).costs(latencies_ms, latencies_ms, threads, fail)
    assert few > many


@pytest.mark.parametrize("limit_ms", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_that_is_no_positive_number_is_refused(limit_ms: float) -> None:
    with pytest.raises(ValueError, match="must be a positive number of milliseconds"):
        make_objective("latency", limit_ms)
