"""The costs of predicted intervals are those of measured ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rrl.measurement import LatencySummary, Measurement
from rrl.objective import (
    OBJECTIVES,
    Capacity,
    Goodput,
    LeastResources,
    MeanLatency,
    Objective,
    PredictedIntervals,
    StrictSLO,
    Throughput,
    in_unit,
    make_objective,
    unit_of,
)
from rrl.objective.rates import share_within
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
        Throughput(),
        Throughput(100.0),
        Goodput(100.0),
        Capacity(100.0),
    ],
)
def test_predicted_intervals_cost_what_the_same_measured_ones_do(objective: Objective) -> None:
    mean_ms, p95_ms = np.array(LATENCIES_MS).T
    predicted = objective.costs(
        PredictedIntervals(mean_ms, p95_ms, SPACE.threads[:, None], answered_per_s=np.array(10.0))
    )
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


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_overloaded_configuration_costs_most(name: str) -> None:
    mean_ms, p95_ms, threads = np.array([300.0, np.inf]), np.array([600.0, np.inf]), np.array([2, 2])
    slow, never = make_objective(name, 100.0).costs(
        PredictedIntervals(mean_ms, p95_ms, threads, answered_per_s=np.array(9.0))
    )
    assert never > slow


@pytest.mark.parametrize("name", ["throughput", "goodput", "capacity"])
def test_twice_as_many_answers_cost_half(name: str) -> None:
    ms, threads = np.array([50.0, 50.0]), np.array([1, 4])
    one, two = make_objective(name, 100.0).costs(
        PredictedIntervals(ms, ms, threads, answered_per_s=np.array([40.0, 80.0]))
    )
    assert one == pytest.approx(2 * two)
    assert unit_of(name) == "ms an answer"


def test_costs_of_rates_are_told_as_rates() -> None:
    ms = np.array([20.0])
    (cost,) = Throughput().costs(PredictedIntervals(ms, ms, ms, answered_per_s=np.array([143.0])))
    assert in_unit(cost, unit_of("throughput")) == "143 answers/s"


def test_the_share_within_a_limit_is_that_of_lognormal_latencies() -> None:
    latencies_ms = np.random.default_rng(0).lognormal(3.0, 0.7, 200_000)
    mean_ms, p95_ms = np.array(latencies_ms.mean()), np.array(np.percentile(latencies_ms, 95))
    for limit_ms in (10.0, 20.0, 40.0, float(p95_ms), 150.0):
        assert share_within(limit_ms, mean_ms, p95_ms) == pytest.approx(
            np.mean(latencies_ms <= limit_ms), abs=0.01
        )
    assert share_within(50.0, np.array(np.nan), np.array(np.nan)) == 0.0


def test_goodput_prefers_answers_in_time_to_more_of_them() -> None:
    mean_ms, p95_ms = np.array([60.0, 150.0]), np.array([90.0, 400.0])
    few, many = Goodput(100.0).costs(
        PredictedIntervals(mean_ms, p95_ms, np.ones(2), answered_per_s=np.array([70.0, 100.0]))
    )
    assert few < many


def test_an_interval_whose_p95_is_the_limit_shows_the_capacity() -> None:
    measured = Measurement(10.0, 500, 500, 0, LatencySummary(30.0, 28.0, 100.0, 120.0))
    assert Capacity(100.0).cost(measured, {}) == pytest.approx(1e3 / 50.0)
    assert Capacity(200.0).cost(measured, {}) < 1e3 / 50.0 < Capacity(50.0).cost(measured, {})


@pytest.mark.parametrize("name", ["throughput", "goodput", "capacity"])
def test_an_interval_without_answers_costs_most_and_one_without_requests_nothing(name: str) -> None:
    objective = make_objective(name, 100.0)
    served = objective.cost(Measurement(10.0, 100, 100, 0, LatencySummary(20.0, 20.0, 50.0, 60.0)), {})
    stuck = objective.cost(Measurement(10.0, 100, 0, 0, backlog=100, backlog_growth=100), {})
    assert stuck > 10 * served
    assert math.isnan(objective.cost(Measurement(10.0, 0, 0, 0), {}))


@pytest.mark.parametrize("name", ["strict-slo", "least-resources", "goodput", "capacity"])
def test_answers_without_a_p95_have_no_cost_by_it(name: str) -> None:
    """As those that the tap did not see, of which the server tells the mean alone."""
    answered = Measurement(5.0, 1, 1, 0, LatencySummary(20.0))
    assert math.isnan(make_objective(name, 50.0).cost(answered, SPACE.configuration(0)))


def test_under_least_resources_nearer_to_the_limit_costs_less_whatever_the_threads() -> None:
    p95_ms = np.array([100.1, 101.0, 1100.0, 1200.0, 1e6])
    costs = LeastResources(100.0).costs(PredictedIntervals(p95_ms, p95_ms, np.array([1000, 500, 100, 10, 1])))
    assert np.all(np.diff(costs) > 0)


def test_under_least_resources_to_break_the_limit_never_costs_less_than_to_keep_it() -> None:
    kept, broken = LeastResources(100.0).costs(
        PredictedIntervals(np.array([50.0, 50.0]), np.array([100.0, 100.001]), np.array([1000, 1]))
    )
    assert kept == 1000 < broken


def test_under_least_resources_few_threads_that_fail_requests_never_cost_less_than_many_that_do_not() -> None:
    latencies_ms, threads, fail = np.array([50.0, 50.0]), np.array([1, 1000]), np.array([0.06, 0.0])
    few, many = LeastResources(100.0).costs(PredictedIntervals(latencies_ms, latencies_ms, threads, fail))
    assert few > many


@pytest.mark.parametrize("objective", [MeanLatency(100.0), StrictSLO(100.0), LeastResources(100.0)])
def test_an_unsure_p95_costs_what_intervals_cost_on_average(objective: Objective) -> None:
    log_sd, p95_ms = 0.3, np.array([50.0, 95.0, 120.0])
    drawn_ms = p95_ms[:, None] * np.exp(log_sd * np.random.default_rng(0).standard_normal(200_000))
    threads, mean_ms = np.full(3, 8), np.full(3, 40.0)
    sure = PredictedIntervals(mean_ms[:, None], drawn_ms, threads[:, None])
    unsure = PredictedIntervals(mean_ms, p95_ms, threads, log_p95_sd=np.full(3, log_sd))
    costs, expected = objective.costs(unsure), objective.costs(sure).mean(axis=1)
    if isinstance(objective, StrictSLO):  # Its other part is the p95 itself, not its mean.
        expected = expected + p95_ms - drawn_ms.mean(axis=1)
    np.testing.assert_allclose(costs, expected, rtol=0.01)
    np.testing.assert_allclose(unsure.over(100.0)[0], (drawn_ms > 100.0).mean(axis=1), atol=0.005)


@pytest.mark.parametrize("limit_ms", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_that_is_no_positive_number_is_refused(limit_ms: float) -> None:
    with pytest.raises(ValueError, match="must be a positive number of milliseconds"):
        make_objective("latency", limit_ms)
    for objective in (MeanLatency, StrictSLO, LeastResources, Throughput, Goodput, Capacity):
        with pytest.raises(ValueError, match="must be a positive number of milliseconds"):
            objective(limit_ms)


@pytest.mark.parametrize(
    ("cost", "unit", "words"),
    [
        (4.0, "threads", "4.0 threads"),
        (999.0, "threads", "999 threads"),
        (1000.0, "threads", "a broken limit"),
        (2693.0, "threads", "a broken limit"),
        (2693.0, "ms", "2693 ms"),
    ],
)
def test_a_broken_limit_is_told_as_no_number_of_threads(cost: float, unit: str, words: str) -> None:
    assert in_unit(cost, unit) == words


@pytest.mark.parametrize(("cost_ms", "words"), [(0.4, "2,500"), (7.0, "143"), (300.0, "3.33")])
def test_thousands_of_answers_are_told_without_an_exponent(cost_ms: float, words: str) -> None:
    assert in_unit(cost_ms, unit_of("throughput")) == f"{words} answers/s"
