"""What an interval tells of service times, and what is made of it where the target tells less."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrl.belief import telemetry
from rrl.measurement import LatencySummary, Measurement, ServiceTimes
from rrl.queueing.machine import Machine
from rrl.queueing.simulator import Simulation


def slower_beside_others(instances: int) -> Callable[[int], np.ndarray]:
    """Half as long again beside one other, twice as long beside two."""
    return lambda batch_size: 0.1 * batch_size * (1 + np.arange(instances) / 2)


def interval(*rows: ServiceTimes, **fields: object) -> Measurement:
    """Ten seconds in which 100 requests were answered."""
    return Measurement(10.0, 100, 100, 0, telemetry=rows, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("instances", "in_service", "expected"),
    [(1, 0.3, 0.3), (2, 1.0, 1 / 3), (3, 2.0, 4 / 9), (2, 2.5, 1.0), (4, 0.0, 0.0)],
)
def test_erlangs_probability_of_waiting(instances: int, in_service: float, expected: float) -> None:
    found = telemetry.probability_of_waiting(np.array([in_service]), np.array([instances]))
    assert found == pytest.approx(expected)


def test_erlangs_formula_takes_many_queues_at_once() -> None:
    in_service, instances = np.array([0.3, 1.0, 2.0, 2.5]), np.array([1, 2, 3, 2])
    found = telemetry.probability_of_waiting(in_service, instances)
    assert found == pytest.approx([0.3, 1 / 3, 4 / 9, 1.0])
    busy = telemetry.busy_instances(in_service, instances)
    assert busy == pytest.approx([1.0, 2 - 1 / 3, 3 - 4 / 9, 2.0])


@pytest.mark.parametrize("instances", [1, 2, 4, 8])
@pytest.mark.parametrize("utilisation", [0.2, 0.6, 0.9])
def test_the_busy_instances_estimated_are_those_of_a_simulated_queue(
    instances: int, utilisation: float
) -> None:
    one = np.array([1])
    busy = np.arange(1, instances + 1)
    machine = Machine(one, one, busy, one, np.full((1, 1, instances, 1), 0.1))
    arrivals_s = np.cumsum(np.random.default_rng(3).exponential(0.1 / (utilisation * instances), 40_000))
    outcome = Simulation(machine).run(arrivals_s, None, {"instances": instances}, math.inf)
    in_service = utilisation * instances
    estimated = telemetry.busy_instances(np.array(in_service), np.array(instances))
    assert estimated == pytest.approx(outcome.batch_busy.mean(), abs=0.15)
    shares = telemetry.busy_shares(in_service, instances)
    assert shares.sum() == pytest.approx(1.0)
    assert telemetry.mean_busy(shares) == pytest.approx(float(estimated), abs=0.3)  # without the rare
    seen = [np.mean(outcome.batch_busy == n) for n in busy]
    assert shares == pytest.approx(seen, abs=0.1)


def test_beyond_what_all_instances_serve_all_are_busy() -> None:
    assert telemetry.busy_shares(3.5, 3) == pytest.approx([0.0, 0.0, 1.0])


def test_what_a_target_tells_in_full_is_taken_as_it_is() -> None:
    rows = [ServiceTimes(1, 1, 40, 2.0), ServiceTimes(3, 2, 30, 2.4)]
    seen = interval(*rows, ServiceTimes(2, 1, 0, 0.0))
    assert telemetry.service_times(seen) == rows
    assert telemetry.batches_in_service(seen) == pytest.approx(0.44)
    assert telemetry.told_apart(rows[1], np.ones(3) / 3, slower_beside_others(3)) == [rows[1]]
    assert telemetry.tells_busy_instances(interval(*rows))


def test_a_mean_over_several_busy_instances_is_told_apart_as_expected() -> None:
    """20 instance-seconds in 10 s: two are in service; 1, 2, 6 of 9 batches start with 1, 2, 3 busy."""
    row = ServiceTimes(0, 1, 90, 20.0)
    shares = telemetry.busy_shares(telemetry.batches_in_service(interval(row)), 3)
    told = telemetry.told_apart(row, shares, slower_beside_others(3))
    assert [(part.busy_instances, part.count) for part in told] == [(1, 10), (2, 20), (3, 60)]
    alone_s, beside_one_s, beside_two_s = (part.total_s / part.count for part in told)
    assert (beside_one_s, beside_two_s) == (pytest.approx(1.5 * alone_s), pytest.approx(2 * alone_s))
    assert not telemetry.tells_busy_instances(interval(row))


@given(
    st.integers(1, 500),
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=100),
    st.floats(1e-3, 10.0),
)
def test_no_batch_and_no_time_is_lost_when_a_mean_is_told_apart(
    count: int, weights: list[float], mean_s: float
) -> None:
    shares = np.array(weights) / sum(weights)
    row = ServiceTimes(0, 2, count, count * mean_s)
    told = telemetry.told_apart(row, shares, slower_beside_others(len(shares)))
    assert sum(part.count for part in told) == count
    assert sum(part.total_s for part in told) == pytest.approx(row.total_s)
    assert all(part.count > 0 and 1 <= part.busy_instances <= len(shares) for part in told)


def test_what_few_batches_meet_is_not_told_apart() -> None:
    """0.02 are in service: 2 % of the batches start beside another."""
    row = ServiceTimes(0, 2, 100, 0.2)
    shares = telemetry.busy_shares(telemetry.batches_in_service(interval(row)), 3)
    (told,) = telemetry.told_apart(row, shares, slower_beside_others(3))
    assert told == ServiceTimes(1, 2, 100, told.total_s)
    assert told.total_s == pytest.approx(0.2)


def test_the_mean_service_time_is_one_row_of_the_mean_batch_size() -> None:
    means = interval(service=LatencySummary(mean_ms=80.0), mean_batch_size=2.1)
    told = telemetry.service_times(means)
    assert [row[:4] for row in told] == [(0, 2, 48, pytest.approx(48 * 0.08))]
    assert not telemetry.tells_batch_sizes(means)
    assert telemetry.tells_batch_sizes(interval(service=LatencySummary(80.0), mean_batch_size=1.0))
    assert telemetry.tells_batch_sizes(interval(ServiceTimes(0, 2, 50, 4.0), mean_batch_size=2.0))


def test_a_target_that_tells_no_service_times_tells_nothing() -> None:
    assert telemetry.service_times(interval()) == []
    assert telemetry.batches_in_service(interval()) == 0


def test_the_variation_is_that_of_the_95th_percentile() -> None:
    rows = [ServiceTimes(1, 1, 100, 5.0)]
    p95_s = 0.05 * math.exp(1.645 * 0.3 - 0.3**2 / 2)
    varies = interval(service=LatencySummary(50.0, 48.0, 1e3 * p95_s, 100.0))
    assert telemetry.variation(varies, rows) == pytest.approx(0.3)
    constant = interval(service=LatencySummary(50.0, 50.0, 50.0, 50.0))
    assert telemetry.variation(constant, rows) == 0.0
    assert telemetry.variation(interval(), rows) is None
    assert telemetry.variation(varies, []) is None
