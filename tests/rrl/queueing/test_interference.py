"""SERF's queueing model against hand-computed values, a chain solved otherwise, and the simulator."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrl.queueing.interference import Prediction, Queue, capacity_per_s, f, g, predict
from rrl.queueing.machine import Machine
from rrl.queueing.simulator import Simulation


def one(
    times_s: list[float], rate_per_s: float, queue: Queue = Queue.MD_INTERF_C, c: int | None = None
) -> Prediction:
    """The prediction for one configuration, its figures as (1,) arrays."""
    return predict(np.array([times_s]), np.array([c or len(times_s)]), rate_per_s, queue)


def test_a_single_instance_is_the_m_d_1_queue_of_pollaczek_and_khinchine() -> None:
    prediction = one([0.5], 1.0)  # ρ = 0.5: W_q = ρ·s / 2(1-ρ) = 0.25
    assert prediction.utilisation == pytest.approx(0.5)
    assert prediction.wait_probability == pytest.approx(0.5)
    assert prediction.mean_wait_s == pytest.approx(0.25)
    assert prediction.mean_service_s == pytest.approx(0.5)
    assert prediction.mean_latency_s == pytest.approx(0.75)


def test_a_single_instance_with_exponential_service_is_the_m_m_1_queue() -> None:
    assert one([0.5], 1.5, Queue.MM_INTERF_C).mean_latency_s == pytest.approx(1 / (2.0 - 1.5))


@pytest.mark.parametrize(
    ("instances", "offered", "wait_probability"),
    [(2, 1.0, 1 / 3), (3, 2.0, 4 / 9), (5, 4.0, 0.554113)],  # Erlang's C(c, a)
)
def test_m_m_c_waits_with_erlangs_probability(
    instances: int, offered: float, wait_probability: float
) -> None:
    prediction = one([1.0] * instances, offered, Queue.MM_C)
    assert prediction.wait_probability == pytest.approx(wait_probability, rel=1e-5)
    assert prediction.mean_wait_s == pytest.approx(wait_probability / (instances - offered), rel=1e-5)


def test_cosmetatos_correction_by_hand() -> None:
    assert f(np.array([1])) == pytest.approx(0.0)
    assert f(np.array([4])) == pytest.approx(3 * (math.sqrt(24) - 2) / 64)
    assert g(np.array([0.8])) == pytest.approx(0.25)
    # c = 2, ρ = 0.5: W_q of M/M/2 is 1/6 of its service time of 0.5 s times 2; f = (√14 - 2)/32, g = 1.
    expected_s = 0.5 * (1 + (math.sqrt(14) - 2) / 32) / 6
    assert one([0.5, 0.5], 2.0, Queue.MD_C).mean_wait_s == pytest.approx(expected_s)


def test_two_instances_with_interference_by_hand() -> None:
    # 1/μ_1 = 0.2, 1/μ_2 = 0.3, λ = 4: ρ_1 = 0.8, ρ_2 = 1.2, ρ = 0.6; p_0 : p_1 : p_2 = 1 : 0.8 : 0.48
    # and H = 1 + 0.8 + 0.48/0.4 = 3, so p_0 = 1/3, p_1 = 0.8/3, P(wait) = 0.4.
    prediction = one([0.2, 0.3], 4.0, Queue.MM_INTERF_C)
    assert prediction.utilisation == pytest.approx(0.6)
    assert prediction.wait_probability == pytest.approx(0.4)
    assert prediction.mean_wait_s == pytest.approx(0.16 * 0.6 / 0.4**2 / 4.0)  # L_q / λ
    assert prediction.mean_service_s == pytest.approx(0.2 / 3 + 0.3 * 0.8 / 3 + 0.3 * 0.4)
    corrected = 0.5 * (1 + (math.sqrt(14) - 2) / 32 * 0.4 / 0.6)
    assert one([0.2, 0.3], 4.0).mean_wait_s == pytest.approx(corrected * 0.15)


def solved_chain(times_s: list[float], rate_per_s: float, states: int = 400) -> tuple[float, float]:
    """(mean wait, probability of waiting) of M/M_interf/c from the generator matrix of its chain."""
    c = len(times_s)
    generator = np.zeros((states, states))
    for n in range(states):
        if n + 1 < states:
            generator[n, n + 1] = rate_per_s
        if n > 0:
            busy = min(n, c)
            generator[n, n - 1] = busy / times_s[busy - 1]
        generator[n, n] = -generator[n].sum()
    equations = generator.T.copy()
    equations[0] = 1.0  # one of the balance equations is redundant; the probabilities sum to 1
    p = np.linalg.solve(equations, np.eye(states)[0])
    waiting = np.maximum(np.arange(states) - c, 0)
    return float(p @ waiting) / rate_per_s, float(p[c:].sum())


@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
@pytest.mark.parametrize("times_s", [[0.2, 0.3], [0.2, 0.2, 0.35, 0.6], [0.1, 0.4, 0.3, 0.5, 0.5]])
def test_the_exponential_model_is_the_birth_death_chain(times_s: list[float], share: float) -> None:
    rate_per_s = share * len(times_s) / times_s[-1]
    mean_wait_s, wait_probability = solved_chain(times_s, rate_per_s)
    prediction = one(times_s, rate_per_s, Queue.MM_INTERF_C)
    assert prediction.mean_wait_s == pytest.approx(mean_wait_s, rel=1e-6)
    assert prediction.wait_probability == pytest.approx(wait_probability, rel=1e-6)


def simulated_latency_s(machine: Machine, configuration: dict[str, int], rate_per_s: float) -> np.ndarray:
    """(requests,) after a warm-up."""
    gaps_s = np.random.default_rng(0).exponential(1 / rate_per_s, 200_000)
    outcome = Simulation(machine).run(np.cumsum(gaps_s), None, configuration, math.inf)
    return (outcome.finish_s - outcome.arrival_s)[1000:]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("instances", [1, 2, 4, 8])
def test_the_model_agrees_with_the_simulator(instances: int, share: float, seed: int) -> None:
    """Mean within 8%, approximate p95 within 20%: the paper states 2-4% on average over configurations."""
    machine = Machine.invent(seed, batch_size=(1,))
    configuration = {"instances": instances, "intra_op_threads": 10 // instances}
    times_s = machine.table(configuration)[:, 0]
    rate_per_s = share * instances / times_s[-1]
    latency_s = simulated_latency_s(machine, configuration, rate_per_s)
    prediction = one(times_s.tolist(), rate_per_s)
    assert prediction.mean_latency_s == pytest.approx(latency_s.mean(), rel=0.08)
    assert prediction.p95_latency_s == pytest.approx(np.percentile(latency_s, 95), rel=0.20)


def test_models_blind_to_interference_see_one_request_at_a_time() -> None:
    times_s = [0.2, 0.5, 0.9]
    for queue in (Queue.MM_C, Queue.MD_C):
        assert one(times_s, 2.0, queue) == one([0.2, 0.2, 0.2], 2.0, queue)
    assert one(times_s, 2.0, Queue.MD_C).mean_latency_s < one(times_s, 2.0).mean_latency_s


def test_many_configurations_at_once_are_each_as_alone() -> None:
    rng = np.random.default_rng(3)
    times_s = np.cumsum(rng.uniform(0.01, 0.05, (40, 6)), axis=1)
    instances = rng.integers(1, 7, 40)
    rates_per_s = rng.uniform(1.0, 40.0, 40)
    together = predict(times_s, instances, rates_per_s)
    for k in range(40):
        alone = one(times_s[k, : instances[k]].tolist(), float(rates_per_s[k]))
        for figure, figure_alone in zip(together, alone, strict=True):
            assert figure[k] == pytest.approx(figure_alone[0], rel=1e-12)


def test_very_many_instances_leave_no_numbers_out_of_range() -> None:
    c = 500
    prediction = one([1.0] * c, 0.9 * c, Queue.MM_C)
    assert 0 < prediction.mean_wait_s[0] < 1.0
    assert prediction.mean_service_s == pytest.approx(1.0)


def test_without_load_a_request_takes_the_time_of_one_alone() -> None:
    prediction = one([0.2, 0.3, 0.4], 0.0)
    assert prediction.mean_latency_s == pytest.approx(0.2)
    assert prediction.p95_latency_s == pytest.approx(0.2)


ascending_s = st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=8).map(sorted)
shares = st.floats(0.01, 0.99)


@given(ascending_s, shares, shares, st.sampled_from(Queue))
def test_latency_rises_with_the_rate(times_s: list[float], a: float, b: float, queue: Queue) -> None:
    capacity = float(capacity_per_s(np.array([times_s]), np.array([len(times_s)]))[0])
    low, high = (one(times_s, share * capacity, queue) for share in sorted((a, b)))
    for name in ("mean_wait_s", "mean_latency_s", "wait_probability"):
        assert getattr(low, name)[0] <= getattr(high, name)[0] * (1 + 1e-9)


@given(ascending_s, shares, st.integers(0, 7), st.floats(1.0, 1.2))
def test_latency_rises_with_every_service_time(
    times_s: list[float], share: float, from_n: int, factor: float
) -> None:
    slower_s = [s * factor if n >= from_n else s for n, s in enumerate(times_s)]
    rate_per_s = share * len(times_s) / times_s[-1]
    before, after = one(times_s, rate_per_s), one(slower_s, rate_per_s)
    for name in ("mean_wait_s", "mean_latency_s"):
        assert getattr(before, name)[0] <= getattr(after, name)[0] * (1 + 1e-9)


@given(ascending_s, st.floats(0.05, 2.0).filter(lambda share: abs(share - 1) > 1e-9))
def test_latency_is_infinite_exactly_where_the_queue_is_unstable(times_s: list[float], share: float) -> None:
    prediction = one(times_s, share * len(times_s) / times_s[-1])
    for name in ("mean_wait_s", "mean_latency_s", "p95_latency_s"):
        assert np.isinf(getattr(prediction, name)[0]) == (share > 1)
    assert np.isfinite(prediction.mean_service_s[0])


def test_the_95th_percentile_rises_with_the_rate() -> None:
    p95_s = [one([0.2, 0.3, 0.45], rate).p95_latency_s[0] for rate in np.linspace(0.1, 6.5, 60)]
    assert all(a <= b + 1e-12 for a, b in pairwise(p95_s))


@pytest.mark.parametrize(
    ("times_s", "instances", "rate", "message"),
    [
        (np.ones(3), np.array([1]), 1.0, "must have shape"),
        (np.ones((2, 3)), np.array([1]), 1.0, "must be 2 integers"),
        (np.ones((1, 3)), np.array([4]), 1.0, "must lie in 1 .. 3"),
        (np.array([[1.0, np.nan]]), np.array([2]), 1.0, "positive, finite"),
        (np.ones((1, 3)), np.array([3]), -1.0, "not negative"),
        (np.ones((1, 3)), np.array([3]), np.ones(2), "one rate or 1"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    times_s: np.ndarray, instances: np.ndarray, rate: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        predict(times_s, instances, rate)
