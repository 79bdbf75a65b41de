"""A replay of arrivals tells what the simulator tells of them."""

from __future__ import annotations

import numpy as np
import pytest

from envs.scenarios.families import family_machine
from rrl.belief.replay import Replay
from rrl.belief.service_time_table import ServiceTimeTable
from rrl.queueing.inter_node import InterNodeCost, over_nodes
from rrl.queueing.simulator import Simulation
from rrl.queueing.windows import as_windows, shortened
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(
    instances=[1, 2, 4], intra_op_threads=[1, 3], max_batch_size=[1, 4], max_queue_delay_us=[0, 50_000]
)
MACHINE = family_machine(3)
NUMBERS = np.arange(len(SPACE))


def knowing_all(excluded: frozenset[int] = frozenset(), one_by_one: float = 1.0) -> Replay:
    """A replay that knows the service times, `one_by_one` times as long where the largest batch is one."""
    table = ServiceTimeTable(SPACE)
    replay = Replay(SPACE, table, np.random.default_rng(0), excluded)
    times_s = np.ones(table.shape)
    for a, intra in enumerate(table.intra):
        for k, c in enumerate(table.instances):
            of_machine = MACHINE.table({"intra_op_threads": intra, "instances": c, "max_batch_size": 4})
            times_s[:, 0, 0, a, k, :c] = of_machine[:, table.batch - 1]
    times_s[1] *= one_by_one
    replay.refresh(times_s.reshape(-1, *times_s.shape[-2:]))
    return replay


def stretches(rate_per_s: float, count: int, seed: int = 0) -> list[tuple[np.ndarray, float]]:
    rng = np.random.default_rng(seed)
    return [(np.sort(rng.uniform(0, 10.0, int(10 * rate_per_s))), 10.0) for _ in range(count)]


def simulated_ms(number: int, arrivals_s: np.ndarray, slowness: float = 1.0) -> tuple[float, float]:
    simulation = Simulation(MACHINE.slower(slowness))
    latency = simulation.run(arrivals_s, None, SPACE.configuration(number), np.inf).summaries()[0]
    return latency.mean_ms, latency.p95_ms


def test_it_equals_the_simulator_for_the_same_arrivals_and_service_times() -> None:
    arrivals = stretches(8.0, 1)
    found = knowing_all().replayed(NUMBERS, np.ones(len(SPACE)), as_windows(arrivals))
    for number in NUMBERS.tolist():
        mean_ms, p95_ms = simulated_ms(number, arrivals[0][0])
        assert found.mean_ms[number, 0] == pytest.approx(mean_ms)
        assert found.p95_ms[number, 0] == pytest.approx(p95_ms)
        assert found.completions[number, 0] == len(arrivals[0][0])


def test_where_the_largest_batch_is_one_service_times_are_others() -> None:
    usual, slower = knowing_all(), knowing_all(one_by_one=1.4)
    alone = usual.max_batch_size == 1
    ratio = usual.capacity_per_s / slower.capacity_per_s
    np.testing.assert_allclose(ratio, np.where(alone, 1.4, 1.0))
    arrivals, ones = as_windows(stretches(8.0, 1)), np.ones(len(SPACE))
    ratio = (
        slower.replayed(NUMBERS, ones, arrivals).mean_ms / usual.replayed(NUMBERS, ones, arrivals).mean_ms
    )[:, 0]
    assert (ratio[alone] > 1.3).all()
    np.testing.assert_allclose(ratio[~alone], 1.0)


def test_windows_alone_begin_with_an_empty_server() -> None:
    arrivals = stretches(8.0, 3)
    found = knowing_all().replayed(NUMBERS, np.ones(len(SPACE)), as_windows(arrivals))
    for w, (offsets_s, _) in enumerate(arrivals):
        expected_ms = [simulated_ms(number, offsets_s)[0] for number in NUMBERS.tolist()]
        np.testing.assert_allclose(found.mean_ms[:, w], expected_ms)


def test_windows_together_are_one_run() -> None:
    """What waits at the end of one waits at the beginning of the next."""
    arrivals = stretches(8.0, 2)
    replay, ones = knowing_all(), np.ones(len(SPACE))
    together = replay.replayed(NUMBERS, ones, as_windows(arrivals, together=2))
    whole = np.concatenate([arrivals[0][0], 10.0 + arrivals[1][0]])
    joined = (together.mean_ms * together.completions).sum(axis=1) / together.completions.sum(axis=1)
    np.testing.assert_allclose(joined, [simulated_ms(number, whole)[0] for number in NUMBERS.tolist()])
    alone = replay.replayed(NUMBERS, ones, as_windows(arrivals))
    slowest = int(alone.mean_ms.mean(axis=1).argmax())
    assert together.mean_ms[slowest, 1] > 1.2 * alone.mean_ms[slowest, 1]


def test_slowness_and_scale_make_service_times_longer() -> None:
    arrivals = stretches(5.0, 1)
    replay, ones = knowing_all(), np.ones(len(SPACE))
    slow = replay.replayed(NUMBERS, ones, as_windows(arrivals, slowness=np.array([1.4])))
    scaled = replay.replayed(NUMBERS, 1.4 * ones, as_windows(arrivals))
    np.testing.assert_allclose(slow.mean_ms, scaled.mean_ms)
    np.testing.assert_allclose(
        slow.mean_ms[:, 0], [simulated_ms(number, arrivals[0][0], 1.4)[0] for number in NUMBERS.tolist()]
    )


def test_a_capacity_is_the_rate_from_which_a_configuration_is_overloaded() -> None:
    found = knowing_all(frozenset({3}))
    expected = [MACHINE.capacity_per_s(SPACE.configuration(number)) for number in NUMBERS.tolist()]
    expected[3] = 0.0
    np.testing.assert_allclose(found.capacity_per_s, expected)


def test_what_was_disallowed_bears_nothing() -> None:
    replay = knowing_all()
    replay.disallow(np.array([5]))
    replay.refresh(replay._times_s[..., [0, 1, 2, 3]])
    assert replay.capacity_per_s[5] == 0.0
    assert (np.delete(replay.capacity_per_s, 5) > 0).all()


def test_screening_by_the_queueing_model_is_near_the_replay_of_poisson_arrivals() -> None:
    space = ConfigurationSpace.of(instances=[1, 2, 4], intra_op_threads=[1, 3])
    table = ServiceTimeTable(space)
    replay = Replay(space, table, np.random.default_rng(0))
    replay.refresh(np.full((6, 4, 1), 0.1))
    numbers, ones = np.arange(6), np.ones(6)
    rng = np.random.default_rng(1)
    windows = as_windows([(np.cumsum(rng.exponential(1 / 6.0, 4000)), 4000 / 6.0)])
    screened = replay.screened(numbers, ones, windows, 6.0, poisson=True)
    found = replay.replayed(numbers, ones, windows)
    np.testing.assert_allclose(screened.mean_ms, found.mean_ms, rtol=0.1)
    np.testing.assert_allclose(screened.p95_ms, found.p95_ms, rtol=0.15)
    overloaded = replay.screened(numbers, ones, windows, 60.0, poisson=True).mean_ms[:, 0]
    assert (overloaded > 1e6).all()
    assert overloaded[0] > overloaded[-1]  # which bears more


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
@pytest.mark.parametrize("together", [1, 2])
def test_screening_sees_the_bursts_whether_they_or_lulls_came_last(order: slice, together: int) -> None:
    """Most requests come in the bursts, so what suits those comes first."""
    replay, ones = knowing_all(), np.ones(len(SPACE))
    windows = as_windows([*stretches(2.0, 4), *stretches(30.0, 4, seed=1)][order], together)
    screened = replay.screened(NUMBERS, ones, windows, 16.0, poisson=False).mean_ms[:, 0]
    found = replay.replayed(NUMBERS, ones, windows)
    all_ms = (found.mean_ms * found.completions).sum(axis=1) / found.completions.sum(axis=1)
    assert all_ms[np.argsort(screened)[:3]].min() < 1.2 * all_ms.min()
    assert np.corrcoef(np.argsort(np.argsort(screened)), np.argsort(np.argsort(all_ms)))[0, 1] > 0.8


@pytest.mark.parametrize("nodes_per_unit", [1, 2, 4])
def test_on_a_cluster_a_unit_gets_the_arrivals_of_its_nodes(nodes_per_unit: int) -> None:
    """They come so many times as fast: λ = λ_all/(N/C_inter)."""
    space = ConfigurationSpace.of(
        instances=[2], max_batch_size=[4], max_queue_delay_us=[0, 50_000], nodes_per_unit=[1, 2, 4]
    )
    machine = over_nodes(MACHINE, [1, 2, 4], InterNodeCost(0.02))
    table = ServiceTimeTable(space)
    replay = Replay(space, table, np.random.default_rng(0), nodes=8)
    unit = {"instances": 2, "max_batch_size": 4}
    times_s = [machine.table(unit | {"nodes_per_unit": u})[:, table.batch - 1] for u in (1, 2, 4)]
    replay.refresh(np.array(times_s))
    ((offsets_s, duration_s),) = stretches(3.0, 1)
    for delay_us in (0, 50_000):
        configuration = unit | {"max_queue_delay_us": delay_us, "nodes_per_unit": nodes_per_unit}
        number = np.array([space.number(configuration)])
        found = replay.replayed(number, np.ones(1), as_windows([(offsets_s, duration_s)]))
        outcome = Simulation(machine).run(offsets_s / nodes_per_unit, None, configuration, np.inf)
        latency = outcome.summaries()[0]
        assert found.mean_ms[0, 0] == pytest.approx(latency.mean_ms)
        assert found.p95_ms[0, 0] == pytest.approx(latency.p95_ms)
        assert replay.capacity_per_s[number] == pytest.approx(
            machine.capacity_per_s(configuration) / nodes_per_unit
        )


def test_a_unit_of_more_nodes_than_there_are_is_not_allowed() -> None:
    space = ConfigurationSpace.of(instances=[1, 2], nodes_per_unit=[1, 2, 4])
    replay = Replay(space, ServiceTimeTable(space), np.random.default_rng(0), nodes=3)
    assert replay.allowed.tolist() == [True, True, False] * 2


def of_many(burst_ratio: float, bursts: int) -> tuple[np.ndarray, float]:
    """40,000 requests; in each of so many bursts, a tenth of the time, they come so many times as fast."""
    rng, turn_s = np.random.default_rng(0), 10_000.0 / bursts
    in_bursts = 0.1 * burst_ratio / (0.1 * burst_ratio + 0.9)
    share = rng.random(40_000)
    bursts_s, calm_s = rng.uniform(0, 0.1 * turn_s, 40_000), rng.uniform(0.1 * turn_s, turn_s, 40_000)
    offsets_s = turn_s * rng.integers(0, bursts, 40_000) + np.where(share < in_bursts, bursts_s, calm_s)
    return np.sort(offsets_s), bursts * turn_s


@pytest.mark.parametrize(("burst_ratio", "bursts"), [(1.0, 1), (3.0, 40), (3.0, 8)])
def test_a_shorter_stretch_costs_about_what_all_of_it_costs(burst_ratio: float, bursts: int) -> None:
    """Where a configuration bears Poisson arrivals and bursts. Others stay the worse ones."""
    offsets_s, duration_s = of_many(burst_ratio, bursts)
    replay, scale = knowing_all(), np.full(len(SPACE), 0.6)
    whole, shorter = (
        replay.replayed(NUMBERS, scale, as_windows([each]))
        for each in ((offsets_s, duration_s), shortened(offsets_s, duration_s, 10_000))
    )
    highest_per_s = burst_ratio * 4.0 / (0.1 * burst_ratio + 0.9)
    bears = replay.capacity_per_s / scale > 1.4 * highest_per_s
    assert bears.sum() >= 6
    off, p95_off = (
        np.log(a[bears, 0] / b[bears, 0])
        for a, b in ((shorter.mean_ms, whole.mean_ms), (shorter.p95_ms, whole.p95_ms))
    )
    assert np.abs(off).max() < 0.1
    assert np.median(np.abs(p95_off)) < 0.06
    assert np.argmin(shorter.mean_ms) == np.argmin(whole.mean_ms)
    assert np.corrcoef(np.log(shorter.mean_ms[:, 0]), np.log(whole.mean_ms[:, 0]))[0, 1] > 0.95
