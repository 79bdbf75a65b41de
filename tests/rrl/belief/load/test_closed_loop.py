"""A belief under a closed loop expects what so many requests under way bring, whatever was in force."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from rrl.arrival_summary import summarised
from rrl.belief.belief import Belief
from rrl.measurement import LatencySummary, Measurement, ServiceTimes
from rrl.objective import Capacity, Throughput
from rrl.queueing.closed_loop import closed_loop_ms
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 8])
ONE, BATCHES, TWO, BOTH = range(4)
ALL = np.arange(4)


def loop(
    instances: int, batch: int, clients: int, delay_s: float = 0.0, think_s: float = 0.0
) -> tuple[float, float, float]:
    """Mean and p95 in ms, and answers/s, where a batch takes 20 ms, and 1 ms more for each request in it."""
    sizes = np.arange(1, 9)
    times_s = np.tile(20e-3 + 1e-3 * sizes, (1, 2, 1))
    found = closed_loop_ms(
        *(np.array([each]) for each in (instances, batch)),
        np.array([delay_s]),
        np.zeros(1, dtype=int),
        np.ones(1),
        times_s,
        np.ones(1),
        np.ones(1),
        clients,
        400,
        think_s,
        np.array([0.5, 1.5, 0.75, 1.25]),
    )
    return tuple(found[0, 0].tolist())


@pytest.mark.parametrize(
    ("instances", "batch", "clients", "per_s"),
    [
        (1, 1, 1, 1 / 21e-3),
        (1, 1, 4, 1 / 21e-3),
        (2, 1, 4, 2 / 21e-3),
        (2, 1, 1, 1 / 21e-3),
        (1, 8, 16, 8 / 28e-3),
    ],
)
def test_a_saturated_server_answers_by_its_service_times(
    instances: int, batch: int, clients: int, per_s: float
) -> None:
    mean_ms, p95_ms, answered_per_s = loop(instances, batch, clients)
    assert answered_per_s == pytest.approx(per_s, rel=0.03)
    assert mean_ms * answered_per_s / 1e3 == pytest.approx(clients, rel=0.03)  # Little's law
    assert p95_ms >= mean_ms * 0.99


def test_too_few_clients_for_a_batch_wait_for_its_delay() -> None:
    mean_ms, _, _ = loop(1, 8, 2, delay_s=0.1)
    assert mean_ms == pytest.approx(100 + 22, rel=0.02)


@pytest.mark.parametrize("think_s", [0.01, 0.1, 1.0])
@pytest.mark.parametrize(("instances", "batch", "clients"), [(1, 1, 1), (2, 1, 4), (1, 8, 16)])
def test_clients_that_take_their_time_are_elsewhere_for_it(
    instances: int, batch: int, clients: int, think_s: float
) -> None:
    mean_ms, _, answered_per_s = loop(instances, batch, clients, think_s=think_s)
    assert clients / answered_per_s == pytest.approx(1e-3 * mean_ms + think_s, rel=0.06)
    assert mean_ms < loop(instances, batch, clients)[0] * 1.01


def test_requests_that_come_one_by_one_wait_for_no_batch_without_a_delay() -> None:
    mean_ms, _, _ = loop(1, 8, 4, think_s=10.0)
    assert mean_ms == pytest.approx(21, rel=0.05)
    mean_ms, _, _ = loop(1, 8, 4, delay_s=0.05, think_s=10.0)
    assert mean_ms == pytest.approx(71, rel=0.05)


def interval(number: int, clients: int, duration_s: float = 10.0, think_s: float = 0.0) -> Measurement:
    """Of a server whose batches take 20 ms however many requests they hold, and no longer beside another.

    With a think time the server is supposed to be saturated all the same.
    """
    configuration = SPACE.configuration(number)
    batch = min(configuration["max_batch_size"], -(-clients // configuration["instances"]))
    busy = min(configuration["instances"], clients)
    per_s = busy * batch / 20e-3
    answers = round(per_s * duration_s)
    latency = LatencySummary(*[1e3 * (clients / per_s - think_s)] * 4)
    telemetry = (ServiceTimes(busy, batch, answers // batch, answers // batch * 20e-3),)
    offsets = np.arange(answers) / per_s
    return Measurement(
        duration_s,
        answers,
        answers,
        0,
        latency,
        telemetry=telemetry,
        backlog=clients,
        arrival_summary=partial(summarised, offsets),
        dispersion=1.0,
    )


def test_more_is_expected_of_what_serves_more_at_once_though_no_more_requests_came() -> None:
    belief = Belief(SPACE, Throughput(), cores=2, concurrency=8)
    for number in (ONE, TWO, BATCHES, BOTH, ONE):
        belief.learn(number, interval(number, 8))
    costs = np.exp(belief.log_costs_ahead(ALL)[0])
    measured = [Throughput().cost(interval(number, 8), {}) for number in ALL.tolist()]
    np.testing.assert_allclose(costs, measured, rtol=0.15)
    assert belief.bears(ALL).all(), "a closed loop waits for its answers"


def test_no_more_is_expected_than_the_clients_ask_for() -> None:
    """16 clients who take 150 ms each: two instances serve all that they send, and batches add little."""
    think_s = 0.15
    belief = Belief(SPACE, Throughput(), cores=2, concurrency=16)
    for number in (ONE, TWO, ONE, TWO):
        belief.learn(number, interval(number, 16, think_s=think_s))
    one, batches, two, both = np.exp(-belief.log_costs_ahead(ALL)[0])
    assert (one, two) == (pytest.approx(50 / 1e3, rel=0.1), pytest.approx(100 / 1e3, rel=0.1))
    assert max(batches, both) < 1.02 * 16 / (think_s + 20e-3) / 1e3


def test_capacity_is_expected_by_faster_arrivals() -> None:
    belief = Belief(SPACE, Capacity(200.0), cores=2)
    for number in (ONE, TWO, ONE, TWO):
        measured = interval(number, 1)
        offsets = np.cumsum(np.random.default_rng(number).exponential(1 / 20.0, 200))
        told = ServiceTimes(1, 1, 200, 200 * 20e-3)
        belief.learn(
            number,
            Measurement(
                float(offsets[-1]) + 0.01,
                200,
                200,
                0,
                measured.latency,
                telemetry=(told,),
                arrival_summary=partial(summarised, offsets),
                dispersion=1.0,
            ),
        )
    one, two = 1e3 / np.exp(belief.log_costs_ahead(np.array([ONE, TWO]))[0])
    assert 25 < one <= 50, "M/D/1 of 20 ms bears 0.9 of 50/s or so within 200 ms"
    assert two > 1.5 * one
