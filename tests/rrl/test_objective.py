"""The costs of predicted intervals are those of measured ones."""

from __future__ import annotations

import numpy as np
import pytest

from rrl.measurement import LatencySummary, Measurement
from rrl.objective import LeastResources, MeanLatency, Objective, StrictSLO
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
