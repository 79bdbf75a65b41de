"""M/D_interf/c with a start-up after rest: limits that are known exactly, the chain, and a simulation."""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np
import pytest

from rrl.queueing.interference import Queue, predict
from rrl.queueing.start_up import predict_with_start_up

WARM_S = np.array([0.010, 0.012, 0.017])
RESTED_S = np.array([0.013, 0.015, 0.019])


def simulated(warm_s: np.ndarray, rested_s: np.ndarray, rate_per_s: float) -> tuple[float, float]:
    """(mean wait, mean service) of many requests. A time is fixed at the start by how many are in service."""
    arrivals_s = np.cumsum(np.random.default_rng(1).exponential(1 / rate_per_s, 150_000)).tolist()
    ends_s: list[float] = []  # of what is in service
    waits_s = services_s = 0.0
    for arrival_s in arrivals_s:
        while ends_s and ends_s[0] <= arrival_s:
            heapq.heappop(ends_s)
        if len(ends_s) < len(warm_s):
            start_s, times_s = arrival_s, rested_s
        else:
            start_s, times_s = heapq.heappop(ends_s), warm_s
        # The heap holds when each busy instance ends what it was last given.
        busy = 1 + sum(end_s > start_s for end_s in ends_s)
        service_s = float(times_s[busy - 1])
        heapq.heappush(ends_s, start_s + service_s)
        waits_s += start_s - arrival_s
        services_s += service_s
    return waits_s / len(arrivals_s), services_s / len(arrivals_s)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("c", [1, 2, 3])
def test_without_a_start_up_it_is_serfs_model(c: int, share: float) -> None:
    rate_per_s = share * c / WARM_S[c - 1]
    ours = predict_with_start_up(WARM_S[:c], WARM_S[:c], rate_per_s)
    serf = predict(WARM_S[None, :c], np.array([c]), rate_per_s)
    for name in ours._fields:
        assert getattr(ours, name) == pytest.approx(float(getattr(serf, name)[0]), rel=1e-9)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_one_instance_is_welchs_queue_with_an_exceptional_first_service(share: float) -> None:
    warm_s, rested_s = 0.010, 0.014
    rate_per_s = share / warm_s
    idle = (1 - share) / (1 - share + rate_per_s * rested_s)
    second_moment = idle * rested_s**2 + (1 - idle) * warm_s**2
    found = predict_with_start_up(np.array([warm_s]), np.array([rested_s]), rate_per_s)
    assert found.wait_probability == pytest.approx(1 - idle)
    assert found.mean_wait_s == pytest.approx(rate_per_s * second_moment / (2 * (1 - share)))
    assert found.mean_service_s == pytest.approx(idle * rested_s + (1 - idle) * warm_s)


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_it_is_the_chain_of_requests_and_of_those_that_started_from_rest(share: float) -> None:
    c, levels = 3, 150
    rate_per_s = share * c / WARM_S[-1]
    states = [(n, k) for n in range(levels) for k in range(min(n, c) + 1)]
    place = {state: i for i, state in enumerate(states)}
    generator = np.zeros((len(states), len(states)))

    def flow(source: tuple[int, int], target: tuple[int, int], per_s: float) -> None:
        if per_s and target in place:
            generator[place[source], place[target]] += per_s
            generator[place[source], place[source]] -= per_s

    for n, k in states:
        busy = min(n, c)
        flow((n, k), (n + 1, k + (n < c)), rate_per_s)
        if busy:
            flow((n, k), (n - 1, k - 1), k / RESTED_S[busy - 1])
            flow((n, k), (n - 1, k), (busy - k) / WARM_S[busy - 1])
    equations = generator.T.copy()
    equations[0] = 1.0
    p = np.linalg.solve(equations, np.eye(len(states))[0])
    in_system = np.array([n for n, _ in states])
    waits = float(p[in_system >= c].sum())
    queued = float(p @ np.maximum(in_system - c, 0))
    service_s = sum(float(p[in_system == n].sum()) * RESTED_S[n] for n in range(c)) + waits * WARM_S[-1]

    found = predict_with_start_up(WARM_S, RESTED_S, rate_per_s)
    alike = predict(WARM_S[None], np.array([c]), rate_per_s)
    exponential = predict(WARM_S[None], np.array([c]), rate_per_s, Queue.MM_INTERF_C)
    correction = float((alike.mean_wait_s / exponential.mean_wait_s)[0])  # Cosmetatos' for this load
    assert found.wait_probability == pytest.approx(waits, rel=1e-6)
    assert found.mean_wait_s == pytest.approx(correction * queued / rate_per_s, rel=1e-6)
    assert found.mean_service_s == pytest.approx(service_s, rel=1e-6)


@pytest.mark.parametrize("share", [0.15, 0.45, 0.75])
@pytest.mark.parametrize("c", [1, 2, 3])
def test_it_agrees_with_a_simulation_and_serfs_model_does_not(c: int, share: float) -> None:
    warm_s, rested_s = WARM_S[:c], RESTED_S[:c]
    rate_per_s = share * c / warm_s[-1]
    wait_s, service_s = simulated(warm_s, rested_s, rate_per_s)
    found = predict_with_start_up(warm_s, rested_s, rate_per_s)
    assert found.mean_latency_s == pytest.approx(wait_s + service_s, rel=0.035)
    assert found.mean_service_s == pytest.approx(service_s, rel=0.035)
    if share < 0.5:
        serf = predict(warm_s[None], np.array([c]), rate_per_s)
        assert float(serf.mean_latency_s[0]) < 0.93 * (wait_s + service_s)


def test_latency_rises_with_the_rate_and_with_the_start_up() -> None:
    rates_per_s = np.linspace(1, 170, 40)
    latencies_s = [predict_with_start_up(WARM_S, RESTED_S, rate).mean_latency_s for rate in rates_per_s]
    assert all(low < high for low, high in pairwise(latencies_s))
    for rate_per_s in rates_per_s:
        longer = predict_with_start_up(WARM_S, 1.1 * RESTED_S, rate_per_s)
        assert longer.mean_latency_s > predict_with_start_up(WARM_S, RESTED_S, rate_per_s).mean_latency_s


def test_an_overloaded_configuration_waits_for_ever() -> None:
    found = predict_with_start_up(WARM_S, RESTED_S, 3 / 0.017)
    assert found.utilisation == pytest.approx(1.0)
    assert np.isinf(found.mean_wait_s)
    assert np.isinf(found.mean_latency_s)
    assert found.mean_service_s == WARM_S[-1]


@pytest.mark.parametrize(
    ("warm_s", "rested_s", "rate", "message"),
    [
        (np.ones(2), np.ones(3), 1.0, "must be alike"),
        (np.ones((1, 2)), np.ones(2), 1.0, "a row of positive"),
        (np.array([1.0, 0.0]), np.ones(2), 1.0, "a row of positive"),
        (np.ones(2), np.array([1.0, np.nan]), 1.0, "a row of positive"),
        (np.ones(2), np.ones(2), 0.0, "above 0 and finite"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    warm_s: np.ndarray, rested_s: np.ndarray, rate: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        predict_with_start_up(warm_s, rested_s, rate)
