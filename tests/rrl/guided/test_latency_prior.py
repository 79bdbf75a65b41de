"""The prior: predicted service times in, latencies out; against the simulator and formulas worked by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.scenario import Scenario
from rrl.guided.latency_prior import INTERVALS, Circumstances, LatencyPrior
from rrl.guided.service_times import ServiceTimeModel
from rrl.objective import MeanLatency
from rrl.queueing import interference
from rrl.queueing.kernels import Candidates, Intervals, candidate_latencies_ms
from rrl.queueing.machine import Machine
from rrl.queueing.outcome import Outcome
from rrl.queueing.simulator import Simulation
from rrl.space import Configuration, ConfigurationSpace

Time = Callable[..., np.ndarray]  # (i, a, c, n, b) -> seconds


class Known(ServiceTimeModel):
    """Service times that need not be learned."""

    def __init__(self, space: ConfigurationSpace, time_s: Time) -> None:
        super().__init__(space)
        axes = (self.inter, self.intra, self.instances, np.arange(1, self.instances[-1] + 1), self.batch)
        self._times_s = time_s(*np.meshgrid(*axes, indexing="ij"))

    def service_time_s(self) -> np.ndarray:
        return self._times_s.reshape(-1, *self.shape[3:])


def usual_s(i: np.ndarray, a: np.ndarray, c: np.ndarray, n: np.ndarray, b: np.ndarray) -> np.ndarray:
    return 0.05 * i**-0.4 * a**-0.6 * n**0.3 * b**0.7


def made(space: ConfigurationSpace, time_s: Time = usual_s, seed: int = 0) -> LatencyPrior:
    prior = LatencyPrior(space, Known(space, time_s), np.random.default_rng(seed))
    prior.refresh()
    return prior


def everything(space: ConfigurationSpace) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(len(space)), np.ones(len(space))


def machine_of(time_s: Time, instances: int, batch: list[int]) -> Machine:
    axes = (np.array([1, 2]), np.array([1, 2, 4]), np.arange(1, instances + 1), np.array(batch))
    i, a, n, b = np.meshgrid(*axes, indexing="ij")
    return Machine(*axes, time_s(i, a, n, n, b))


def simulated_ms(
    machine: Machine,
    configuration: Configuration,
    scale: float,
    gaps_s: np.ndarray,  # (intervals, requests)
    factors: np.ndarray,
    carries: bool,
) -> np.ndarray:
    """(intervals, 2) mean and p95 latency by `Simulation`."""
    simulation = Simulation(machine.slower(scale), service_factors=factors)
    ends_s = np.cumsum(gaps_s).reshape(gaps_s.shape)
    result = []
    for begins_s, until_s in zip(ends_s - gaps_s, ends_s[:, -1], strict=True):
        outcomes = [simulation.run(begins_s, None, configuration, until_s)]
        if not carries:
            outcomes.append(simulation.drain(configuration))
        latency_s = (outcome := Outcome.joined(outcomes)).finish_s - outcome.arrival_s
        answered = len(latency_s) > 0
        result.append([latency_s.mean(), np.percentile(latency_s, 95)] if answered else [np.nan] * 2)
    return 1e3 * np.array(result)


CANDIDATES = [
    {"instances": 1, "intra_op_threads": 4, "max_batch_size": 1, "max_queue_delay_us": 0},
    {"instances": 3, "intra_op_threads": 1, "max_batch_size": 8, "max_queue_delay_us": 40_000},
    {"instances": 4, "intra_op_threads": 2, "max_batch_size": 3, "max_queue_delay_us": 0},
]


@pytest.mark.parametrize("carries", [False, True])
@pytest.mark.parametrize("factors", [[1.0], [0.5, 2.0, 1.0, 0.7, 0.8]])
@pytest.mark.parametrize("rate_per_s", [15.0, 60.0])  # 60: more than the first can serve
def test_candidates_fare_as_in_the_simulator(carries: bool, factors: list[float], rate_per_s: float) -> None:
    machine = machine_of(usual_s, 4, list(range(1, 9)))
    rng = np.random.default_rng(4)
    gaps_s = rng.exponential(1 / rate_per_s, (6, 40))
    tables_s = np.zeros((3, 4, 8))
    for k, candidate in enumerate(CANDIDATES):
        table_s = machine.table(candidate)
        tables_s[k, : table_s.shape[0], : table_s.shape[1]] = table_s
    scale = np.array([1.0, 0.8, 1.3])
    ends_s = np.cumsum(gaps_s)
    found = candidate_latencies_ms(
        Candidates(
            np.array([c["instances"] for c in CANDIDATES]),
            np.array([c["max_batch_size"] for c in CANDIDATES]),
            np.array([1e-6 * c["max_queue_delay_us"] for c in CANDIDATES]),
            np.arange(3),
            scale,
        ),
        tables_s,
        np.array(factors),
        Intervals(ends_s - gaps_s.ravel(), ends_s, np.empty(0), 40, carries),
    )
    expected = [
        simulated_ms(machine, candidate, s, gaps_s, np.array(factors), carries)
        for candidate, s in zip(CANDIDATES, scale.tolist(), strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_interval_without_an_answer_has_infinite_latency() -> None:
    prior = made(ConfigurationSpace.of(instances=[1, 2]), lambda i, a, c, n, b: 0.0 * n + 1e3)
    for latencies_ms in prior.simulated(np.arange(2), np.ones(2), Circumstances(100.0)):
        assert np.isinf(latencies_ms[:, 0]).all()
        assert not np.isnan(latencies_ms).any()


def test_the_capacity_is_that_of_the_best_batch_with_all_instances_busy() -> None:
    space = ConfigurationSpace.of(instances=[1, 3], max_batch_size=[1, 2, 4])

    def best_at_two(i: np.ndarray, a: np.ndarray, c: np.ndarray, n: np.ndarray, b: np.ndarray) -> np.ndarray:
        return 0.1 * np.array([0, 1, 1.5, 3.5, 6])[b] * (1 + 0.5 * (n - 1))

    by_hand = [1 / 0.1, 2 / 0.15, 2 / 0.15, 3 / 0.2, 6 / 0.3, 6 / 0.3]  # with 3 busy twice as slow
    np.testing.assert_allclose(made(space, best_at_two).capacity_per_s, by_hand)


def test_instances_need_not_be_a_gapless_grid() -> None:
    space = ConfigurationSpace.of(instances=[2, 5, 8], intra_op_threads=[1, 2])
    prior = made(space)
    c, a = space.values.T
    np.testing.assert_allclose(prior.capacity_per_s, c / (0.05 * a**-0.6 * c**0.3))
    times_s = 0.05 * a[:, None] ** -0.6 * np.arange(1, 9) ** 0.3
    expected = interference.predict(times_s, c, 30.0)
    np.testing.assert_allclose(
        prior.screened(*everything(space), 30.0).mean_ms[:, 0], 1e3 * expected.mean_latency_s
    )


def test_without_batches_the_queueing_model_screens() -> None:
    space = ConfigurationSpace.of(instances=[1, 2, 3], inter_op_threads=[1, 2], intra_op_threads=[1, 2, 4])
    c, i, a = space.values.T
    times_s = 0.05 * i[:, None] ** -0.4 * a[:, None] ** -0.6 * np.arange(1, 4) ** 0.3
    scale = np.linspace(0.7, 1.4, len(space))
    expected = interference.predict(scale[:, None] * times_s, c, 30.0)
    screened = made(space).screened(np.arange(len(space)), scale, 30.0)
    assert np.isinf(screened.mean_ms).any()  # some are unstable
    np.testing.assert_allclose(screened.mean_ms[:, 0], 1e3 * expected.mean_latency_s)
    np.testing.assert_allclose(screened.p95_ms[:, 0], 1e3 * expected.p95_latency_s)


@pytest.mark.parametrize("carries", [False, True])
def test_simulation_agrees_with_the_costs_that_long_simulation_expects(carries: bool) -> None:
    space = ConfigurationSpace.of(
        instances=[1, 2, 4], intra_op_threads=[1, 4], max_batch_size=[1, 3, 7], max_queue_delay_us=[0, 30_000]
    )
    machine = machine_of(usual_s, 4, [1, 2, 3, 4, 6, 8])
    scenario = Scenario(machine, "known", carry_backlog=carries)
    expected_ms = ExpectedCosts(scenario, space, MeanLatency()).mean_latency_ms(14.0)
    found_ms = made(space).simulated(*everything(space), Circumstances(14.0, carries=carries)).mean_ms
    assert found_ms.shape == (len(space), INTERVALS)
    stable = made(space).capacity_per_s > 20.0
    assert stable.sum() > 20
    np.testing.assert_allclose(found_ms.mean(axis=1)[stable], expected_ms[stable], rtol=0.15)


def test_batches_between_the_sizes_of_the_table_take_times_between_theirs() -> None:
    space = ConfigurationSpace.of(max_batch_size=[9, 16])  # the table has 8, 9 | 8, 12, 16 of these
    times_s = made(space).capacity_per_s
    np.testing.assert_allclose(times_s, [9 / (0.05 * 9**0.7), 16 / (0.05 * 16**0.7)])
    only_ten = made(
        ConfigurationSpace.of(max_batch_size=[10, 16]),
        lambda i, a, c, n, b: np.where(b <= 8, 0.1 * b, 0.1 * b + 0.05 * (b > 12)),
    )
    # ln S is linear in ln b from 8 to 12, where it is that of 0.1 s a request: 10 take 1 s
    np.testing.assert_allclose(only_ten.capacity_per_s, 10.0)


def test_screening_of_batches_ranks_as_simulation_does() -> None:
    space = ConfigurationSpace.of(
        instances=[1, 2, 4], intra_op_threads=[1, 4], max_batch_size=[1, 4, 8], max_queue_delay_us=[0, 50_000]
    )
    prior = made(space)
    screened = prior.screened(*everything(space), 14.0)
    assert screened.mean_ms.shape == screened.p95_ms.shape == (len(space), 1)
    simulated = prior.simulated(*everything(space), Circumstances(14.0, carries=False)).mean_ms.mean(axis=1)
    ranks = np.argsort(np.argsort(screened.mean_ms[:, 0])), np.argsort(np.argsort(simulated))
    assert np.corrcoef(*ranks)[0, 1] > 0.95


@pytest.mark.parametrize(
    "worse",
    [
        Circumstances(14.0, log_sd=0.3, carries=False),
        Circumstances(14.0, variation=0.6, carries=False),
        Circumstances(17.0, carries=False),
    ],
)
def test_an_uncertain_load_variation_and_more_load_lengthen_queues(worse: Circumstances) -> None:
    prior = made(ConfigurationSpace.of(instances=[1]))
    one = np.array([0]), np.ones(1)
    usual = prior.simulated(*one, Circumstances(14.0, carries=False))
    assert prior.simulated(*one, worse).mean_ms.mean() > 1.03 * usual.mean_ms.mean()


def test_optimism_shortens_latency() -> None:
    prior = made(ConfigurationSpace.of(instances=[1, 2]))
    twice = np.array([1, 1]), np.array([0.8, 1.0])
    for latencies in (prior.screened(*twice, 14.0), prior.simulated(*twice, Circumstances(14.0))):
        assert latencies.mean_ms[0].mean() < 0.85 * latencies.mean_ms[1].mean()


def test_all_see_the_same_arrivals_and_the_seed_fixes_them() -> None:
    space = ConfigurationSpace.of(instances=[1, 2], max_queue_delay_us=[0, 1000])
    given = Circumstances(14.0, log_sd=0.1, variation=0.3)
    both = np.array([0, 0]), np.ones(2)
    first, second = made(space).simulated(*both, given).mean_ms
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(made(space).simulated(*both, given).mean_ms[0], first)
    assert (made(space, seed=1).simulated(*both, given).mean_ms[0] != first).any()


def test_the_service_time_that_matters_is_the_one_at_the_load() -> None:
    space = ConfigurationSpace.of(instances=[1, 4], max_batch_size=[1, 4])
    prior = made(space, lambda i, a, c, n, b: 0.0 * b + 0.1)
    known = ServiceTimeModel(space)

    def entry(instances: int, busy: int, batch: int) -> int:
        at = [
            np.array([k])
            for k in (0, 0, [1, 4].index(instances), busy - 1, known.batch.tolist().index(batch))
        ]
        return int(known.entries(*at)[0])

    idle = prior.typical_entries(np.array([0, 2]), 1.0)
    assert idle.tolist() == [entry(1, 1, 1), entry(4, 1, 1)]
    loaded = prior.typical_entries(np.arange(4), 28.0)
    assert loaded.tolist() == [entry(1, 1, 1), entry(1, 1, 3), entry(4, 3, 1), entry(4, 3, 1)]
    flooded = prior.typical_entries(np.arange(4), 1000.0)
    assert flooded.tolist() == [entry(1, 1, 1), entry(1, 1, 4), entry(4, 4, 1), entry(4, 4, 4)]
    estimated = prior.typical_entries(np.arange(4), 15.0, as_estimated=True)  # 1.5 in service: 1 + 1.5 - 0.04
    assert estimated.tolist()[2:] == [entry(4, 2, 1), entry(4, 2, 1)]
    assert prior.typical_entries(np.array([2]), 12.0).tolist() == [entry(4, 1, 1)]
    assert prior.typical_entries(np.array([2]), 12.0, as_estimated=True).tolist() == [entry(4, 2, 1)]
