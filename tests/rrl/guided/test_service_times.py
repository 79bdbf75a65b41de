"""What service times seen under some configurations say of all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from envs.scenarios.families import family_machine
from rrl.guided.service_time_process import PROCESS_WEIGHTS, WEIGHTS
from rrl.guided.service_times import ServiceTimeModel
from rrl.measurement import ServiceTimes
from rrl.queueing.machine import Machine
from rrl.space import Configuration, ConfigurationSpace

SPACE = ConfigurationSpace.of(
    instances=range(1, 6), inter_op_threads=range(1, 6), intra_op_threads=range(1, 6)
)
BATCHING = ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 32])
RATE_PER_S = 14.0
Time = Callable[[int, int], float]  # (busy instances, batch size) -> seconds


def rows(
    time_s: Time,
    busy: Iterable[int],
    sizes: Iterable[int] = (1,),
    count: int = 50,
) -> list[ServiceTimes]:
    return [ServiceTimes(n, b, count, count * time_s(n, b)) for n in busy for b in sizes]


def singly(told: list[ServiceTimes]) -> list[list[ServiceTimes]]:
    """As rows that tell of busy instances are: none is a part of a mean."""
    return [[row] for row in told]


def of_machine(machine: Machine, configuration: Configuration) -> list[ServiceTimes]:
    table_s = machine.table(configuration)
    return rows(lambda n, b: float(table_s[n - 1, b - 1]), range(1, configuration["instances"] + 1))


def at(model: ServiceTimeModel, configuration: Configuration, busy: int, size: int) -> list[int]:
    """The position of an entry along the axes; its values must be on the grid."""
    names = ("inter_op_threads", "intra_op_threads", "instances")
    axes = (model.inter, model.intra, model.instances)
    knobs = [axis.tolist().index(configuration.get(name, 1)) for axis, name in zip(axes, names, strict=True)]
    return [*knobs, busy - 1, model.batch.tolist().index(size)]


def predicted_s(model: ServiceTimeModel, configuration: Configuration, busy: int, size: int = 1) -> float:
    """Of a batch of `size`, whatever the configuration's largest."""
    return float(model.service_time_s().reshape(model.shape)[tuple(at(model, configuration, busy, size))])


def sd(model: ServiceTimeModel, configuration: Configuration, busy: int) -> float:
    inter, intra, instances, others, batch = np.array(at(model, configuration, busy, 1))[:, None]
    return float(model.standard_deviations(model.entries(inter, intra, instances, others, batch))[0])


def taught(machine: Machine, numbers: np.ndarray, cores: int | None = None) -> ServiceTimeModel:
    model = ServiceTimeModel(SPACE, cores)
    for number in numbers.tolist():
        configuration = SPACE.configuration(number)
        model.add(configuration, of_machine(machine, configuration), RATE_PER_S)
    model.fit()
    return model


def plain(n: int, a: int, cores: int) -> float:
    """Seconds that a batch takes where nothing but threads and cores matter."""
    return 0.1 * a**-0.7 * max(1.0, n * a / cores) ** 1.1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("seen", [3, 12, 30])
def test_unseen_service_times_lie_within_the_standard_deviations(seed: int, seen: int) -> None:
    machine = family_machine(seed)
    chosen = np.random.default_rng(seed).permutation(len(SPACE))
    model = taught(machine, chosen[:seen])
    errors, sds = [], []
    for number in chosen[seen:].tolist():
        configuration = SPACE.configuration(number)
        true_s = machine.table(configuration)[:, 0]
        for n in range(1, configuration["instances"] + 1):
            errors.append(math.log(predicted_s(model, configuration, n) / true_s[n - 1]))
            sds.append(sd(model, configuration, n))
    z = np.array(errors) / np.array(sds)
    assert 0.02 < np.mean(z**2) < 3.0
    assert np.mean(np.abs(z) < 2) > 0.9
    assert np.std(errors) < {3: 0.4, 12: 0.2, 30: 0.12}[seen]


def test_what_was_seen_is_reproduced_and_known_best() -> None:
    machine = family_machine(5)
    numbers = np.array([0, 31, 62, 93, 124])
    model = taught(machine, numbers)
    unseen = sd(model, SPACE.configuration(24), 1)
    for number in numbers.tolist():
        configuration = SPACE.configuration(number)
        for row in of_machine(machine, configuration):
            known_s = predicted_s(model, configuration, row.busy_instances)
            assert known_s == pytest.approx(row.total_s / row.count, rel=0.01)
            assert sd(model, configuration, row.busy_instances) < min(0.02, unseen)


@pytest.mark.parametrize("cores", [3, 5, 12])
def test_the_number_of_cores_is_found_where_it_is_plain(cores: int) -> None:
    space = ConfigurationSpace.of(instances=range(1, 9), intra_op_threads=range(1, 9))
    model = ServiceTimeModel(space)
    for instances, a in [(8, 1), (8, 2), (4, 4), (2, 8), (6, 6), (8, 8)]:
        configuration = {"instances": instances, "intra_op_threads": a}
        busy = range(1, instances + 1)
        model.add(configuration, rows(lambda n, b, a=a: plain(n, a, cores), busy), RATE_PER_S)  # type: ignore[misc]
    model.fit()
    assert cores / 1.3 < model.cores < cores * 1.3


def test_cores_that_are_told_are_believed() -> None:
    assert taught(family_machine(0), np.arange(0, 125, 6), cores=7).cores == 7.0


def test_less_is_expected_of_threads_where_instances_are_processes() -> None:
    """One thread after two were seen: slower by any account, but on a stock server perhaps hardly."""
    space = ConfigurationSpace.of(instances=[1, 2], intra_op_threads=[1, 2])
    one, two = ({"instances": 1, "intra_op_threads": a} for a in (1, 2))

    def slower_with_one(weights: np.ndarray) -> tuple[float, float]:
        """By how much, and by how much if service times are one standard deviation shorter."""
        model = ServiceTimeModel(space, cores=2, weights=weights)
        model.add(two, rows(lambda n, b: 0.05, [1]), RATE_PER_S)
        model.fit()
        ratio = predicted_s(model, one, 1) / 0.05
        return ratio, ratio * math.exp(-sd(model, one, 1))

    expected, hoped = slower_with_one(PROCESS_WEIGHTS)
    assert 1.0 < expected < slower_with_one(WEIGHTS)[0] - 0.2
    assert hoped < 1.0 < slower_with_one(WEIGHTS)[1]


def test_a_slow_down_shifts_all_and_is_less_certain() -> None:
    model = taught(family_machine(1), np.arange(0, 125, 9))
    before_s, seen = model.service_time_s(), sd(model, SPACE.configuration(9), 1)
    model.changed(math.log(1.4))
    model.fit()
    used = before_s != 1.0  # more busy than instances: not a service time
    np.testing.assert_allclose(model.service_time_s()[used] / before_s[used], 1.4, rtol=0.15)
    assert np.median(model.service_time_s()[used] / before_s[used]) == pytest.approx(1.4, rel=0.03)
    assert sd(model, SPACE.configuration(9), 1) > seen


def test_what_slows_all_alike_for_a_while_is_no_news_of_any() -> None:
    machine, configuration = family_machine(1), SPACE.configuration(9)
    model = taught(machine, np.arange(0, 125, 9))
    before_s, seen = model.service_time_s(), sd(model, configuration, 1)
    model.slowed(math.log(1.4))
    slower = of_machine(machine.slower(1.4), configuration)
    assert model.surprise(configuration, singly(slower), RATE_PER_S, 0.0)[0] == pytest.approx(0.0)
    model.add(configuration, slower, RATE_PER_S)
    model.fit()
    used = before_s != 1.0
    np.testing.assert_allclose(model.service_time_s()[used] / before_s[used], 1.4, rtol=1e-3)
    assert sd(model, configuration, 1) == pytest.approx(seen, rel=0.01)
    model.slowed(math.log(1 / 1.4))
    np.testing.assert_allclose(model.service_time_s()[used] / before_s[used], 1.0, rtol=1e-3)


def test_parts_told_apart_from_a_mean_count_for_less_the_further_they_are_from_it() -> None:
    four = SPACE.configuration(SPACE.number({"instances": 4, "inter_op_threads": 1, "intra_op_threads": 1}))

    def deviations(mean_busy: float | None) -> list[float]:
        model = ServiceTimeModel(SPACE, cores=2)
        model.add(four, rows(lambda n, b: 0.1 * n, (1, 2, 3)), RATE_PER_S, 0.2, mean_busy)
        model.fit(0.2)
        return [sd(model, four, busy) for busy in (1, 2, 3)]

    alone, middle, beside_two = deviations(mean_busy=2.0)
    assert alone > 2 * middle
    assert beside_two > middle
    assert max(deviations(mean_busy=None)) < min(alone, beside_two)


def test_what_a_heavier_load_told_of_busy_instances_outlasts_what_a_lighter_one_tells() -> None:
    two = SPACE.configuration(SPACE.number({"instances": 2, "inter_op_threads": 1, "intra_op_threads": 1}))
    model = ServiceTimeModel(SPACE, cores=2)
    model.add(two, rows(lambda n, b: 0.1, (2,), count=400), 30.0, 0.2, mean_busy=2.0)
    for _ in range(5):
        light = [ServiceTimes(1, 1, 400, 400 * 0.08), ServiceTimes(2, 1, 100, 100 * 0.11)]
        model.add(two, light, 10.0, 0.2, mean_busy=1.2)
    model.fit(0.2)
    assert predicted_s(model, two, 2) == pytest.approx(0.1, rel=0.01)


def test_one_batch_that_was_told_does_not_make_many_told_apart_sure() -> None:
    two = SPACE.configuration(SPACE.number({"instances": 2, "inter_op_threads": 1, "intra_op_threads": 1}))
    model = ServiceTimeModel(SPACE, cores=2)
    model.add(two, rows(lambda n, b: 0.12, (2,), count=400), RATE_PER_S, 0.2, mean_busy=1.0)
    model.add(two, rows(lambda n, b: 0.1, (2,), count=1), RATE_PER_S, 0.2)
    model.fit(0.2)
    only_told = ServiceTimeModel(SPACE, cores=2)
    only_told.add(two, rows(lambda n, b: 0.1, (2,), count=400), RATE_PER_S, 0.2)
    only_told.fit(0.2)
    assert sd(model, two, 2) > 2 * sd(only_told, two, 2)


def test_what_is_told_apart_again_and_again_is_known_as_well_as_if_it_was_told_apart_once() -> None:
    two = SPACE.configuration(SPACE.number({"instances": 2, "inter_op_threads": 1, "intra_op_threads": 1}))

    def deviation(intervals: int, count: int) -> float:
        model = ServiceTimeModel(SPACE, cores=2)
        for _ in range(intervals):
            model.add(two, rows(lambda n, b: 0.1, (2,), count=count), RATE_PER_S, 0.2, mean_busy=1.6)
        model.fit(0.2)
        return sd(model, two, 2)

    assert deviation(8, 50) == pytest.approx(deviation(1, 400), rel=0.02)
    assert deviation(1, 50) > 1.05 * deviation(8, 50)


def test_after_a_slow_down_new_service_times_count_for_more_than_old() -> None:
    machine = family_machine(1)
    model = taught(machine, np.arange(0, 125, 9))
    model.changed(math.log(1.5))  # in truth it was 1.4
    configuration = SPACE.configuration(99)
    model.add(configuration, of_machine(machine.slower(1.4), configuration), RATE_PER_S)
    model.fit()
    true_s = 1.4 * machine.table(configuration)[0, 0]
    assert predicted_s(model, configuration, 1) == pytest.approx(true_s, rel=0.01)


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.3])
def test_a_configuration_that_is_slower_than_it_was_surprises_by_how_much(factor: float) -> None:
    model, machine, configuration = ServiceTimeModel(SPACE), family_machine(2), SPACE.configuration(99)
    model.add(configuration, of_machine(machine, configuration), RATE_PER_S)
    log_factor, deviation = model.surprise(
        configuration, singly(of_machine(machine.slower(factor), configuration)), 1.1 * RATE_PER_S, 0.0
    )
    assert log_factor == pytest.approx(math.log(factor))
    assert deviation < 0.01


def test_only_the_same_configuration_at_a_similar_load_surprises() -> None:
    model, machine, configuration = ServiceTimeModel(SPACE), family_machine(2), SPACE.configuration(99)
    seen = of_machine(machine, configuration)
    model.add(configuration, seen, RATE_PER_S)
    slower = of_machine(machine.slower(1.5), configuration)
    assert model.surprise(SPACE.configuration(98), singly(slower), RATE_PER_S, 0.0) == (0.0, math.inf)
    assert model.surprise(configuration, singly(slower), 2 * RATE_PER_S, 0.0) == (0.0, math.inf)
    assert model.surprise(configuration, singly(slower), RATE_PER_S, 0.0)[0] > 0.3
    model.changed(math.log(1.5))  # nothing has been seen since
    assert model.surprise(configuration, singly(slower), RATE_PER_S, 0.0) == (0.0, math.inf)


def test_parts_of_a_mean_surprise_where_all_of_them_were_seen() -> None:
    model, configuration = ServiceTimeModel(SPACE), SPACE.configuration(124)
    model.add(configuration, rows(lambda n, b: 0.1, (1,)), RATE_PER_S)
    parts = rows(lambda n, b: 0.2, (1, 2))
    assert model.surprise(configuration, [parts], RATE_PER_S, 0.0) == (0.0, math.inf)
    assert model.surprise(configuration, singly(parts), RATE_PER_S, 0.0)[0] == pytest.approx(math.log(2))


def test_where_batches_vary_a_surprise_of_few_of_them_is_worth_little() -> None:
    model, configuration = ServiceTimeModel(SPACE), SPACE.configuration(0)
    model.add(configuration, rows(lambda n, b: 0.1, [1], count=100), RATE_PER_S)
    few = model.surprise(configuration, singly(rows(lambda n, b: 0.12, [1], count=4)), RATE_PER_S, 0.6)[1]
    many = model.surprise(configuration, singly(rows(lambda n, b: 0.12, [1], count=100)), RATE_PER_S, 0.6)[1]
    assert few == pytest.approx(0.6 * math.sqrt(1 / 4 + 1 / 100), rel=0.01)
    assert many == pytest.approx(0.6 * math.sqrt(2 / 100), rel=0.01)


def test_where_batches_vary_the_mean_of_all_intervals_is_taken() -> None:
    model, configuration = ServiceTimeModel(SPACE), SPACE.configuration(0)
    for time_s in (0.09, 0.11, 0.1, 0.105, 0.095):
        model.add(configuration, rows(lambda n, b, s=time_s: s, [1]), RATE_PER_S, 0.6)  # type: ignore[misc]
    model.fit(0.6)
    assert predicted_s(model, configuration, 1) == pytest.approx(0.1, rel=0.01)


def test_batch_sizes_between_those_of_the_table_are_told_apart() -> None:
    model, configuration = ServiceTimeModel(BATCHING), {"instances": 2, "max_batch_size": 32}

    def time_s(n: int, b: int) -> float:
        return 0.02 * n**0.3 * b**0.8

    for sizes in ([9, 13, 20], [10, 11, 14], [5, 7, 9, 19, 27, 31]):
        seen = rows(time_s, [1, 2], sizes)
        log_factor, deviation = model.surprise(configuration, singly(seen), RATE_PER_S, 0.0)
        assert deviation == math.inf or log_factor == pytest.approx(0.0, abs=1e-9)
        model.add(configuration, seen, RATE_PER_S)
        model.fit()
    for size in (8, 12, 24):
        assert predicted_s(model, configuration, 2, size) == pytest.approx(time_s(2, size), rel=0.03)


def test_batches_larger_than_the_table_say_something_of_its_largest() -> None:
    model, configuration = ServiceTimeModel(BATCHING), {"instances": 2, "max_batch_size": 32}
    for _ in range(3):
        model.add(configuration, rows(lambda n, b: 0.02 * n**0.3 * b**0.6, [1, 2], [4, 16, 40]), RATE_PER_S)
        model.fit()
    assert predicted_s(model, configuration, 2, 32) == pytest.approx(0.02 * 2**0.3 * 32**0.6, rel=0.1)


def test_rows_without_batches_teach_nothing() -> None:
    model = ServiceTimeModel(SPACE)
    model.add(SPACE.configuration(3), [ServiceTimes(1, 1, 0, 0.0), ServiceTimes(2, 1, 3, 0.0)], RATE_PER_S)
    assert not model.known
    model.add(SPACE.configuration(3), [ServiceTimes(1, 1, 2, 0.3)], RATE_PER_S)
    assert model.known


def test_more_busy_instances_than_the_configuration_has_count_as_all_of_them() -> None:
    configuration = {"instances": 2, "inter_op_threads": 1, "intra_op_threads": 1}
    model = ServiceTimeModel(SPACE)
    model.add(configuration, rows(lambda n, b: 0.2, [4]), RATE_PER_S)  # left by a larger configuration
    model.fit()
    assert predicted_s(model, configuration, 2) == pytest.approx(0.2, rel=0.01)


def test_however_many_configurations_were_seen_the_newest_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrl.guided.service_times.MAX_ENTRIES", 40)
    machine = family_machine(3)
    model = taught(machine, np.arange(len(SPACE)))  # 375 entries
    for number in (120, 124):
        configuration = SPACE.configuration(number)
        true_s = machine.table(configuration)[0, 0]
        assert predicted_s(model, configuration, 1) == pytest.approx(true_s, rel=0.01)
