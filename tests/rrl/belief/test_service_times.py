"""Service times are carried over to what was not seen, and told apart from the machine's slow moments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from envs.scenarios.families import family_cores, family_machine
from rrl.belief import cholesky, remembered, service_time_posterior, service_times
from rrl.belief.learned_prior import shipped
from rrl.belief.service_times import ServiceTimeModel
from rrl.measurement import ServiceTimes
from rrl.queueing.machine import Machine
from rrl.space import Configuration, ConfigurationSpace

SPACE = ConfigurationSpace.of(
    instances=range(1, 6), inter_op_threads=range(1, 4), intra_op_threads=range(1, 6)
)
BATCHING = ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 8, 32])
CENTRE = SPACE.number({"instances": 3, "inter_op_threads": 2, "intra_op_threads": 3})


def row(busy: int, count: int, mean_s: float, batch_size: int = 1) -> ServiceTimes:
    return ServiceTimes(busy, batch_size, count, count * mean_s)


def of_machine(machine: Machine, configuration: Configuration, slower: float = 1.0) -> list[ServiceTimes]:
    """What an interval tells in which each number of busy instances was met as often."""
    times_s = slower * machine.table(configuration)[:, 0]
    return [row(n, 50, float(time_s)) for n, time_s in enumerate(times_s, start=1)]


def taught(
    model: ServiceTimeModel, machine: Machine, visits: Sequence[tuple[int, float]]
) -> ServiceTimeModel:
    """Intervals by configuration and how slow the machine was."""
    for number, slower in visits:
        model.add(SPACE.configuration(number), of_machine(machine, SPACE.configuration(number), slower))
        model.fit()
    return model


def log_errors(model: ServiceTimeModel, machine: Machine, numbers: Sequence[int]) -> np.ndarray:
    """ln of the usual service times expected, all instances busy, over the true ones."""
    errors = []
    for number in numbers:
        configuration = SPACE.configuration(number)
        entry = model.table.entry(configuration, configuration["instances"], 1)
        errors.append(model.log_times[entry] - np.log(machine.table(configuration)[-1, 0]))
    return np.array(errors)


def sd(model: ServiceTimeModel, number: int) -> float:
    configuration = SPACE.configuration(number)
    entry = model.table.entry(configuration, configuration["instances"], 1)
    return float(model.standard_deviations(np.array([entry]))[0])


def neighbours() -> list[int]:
    return [int(number) for number in SPACE.region(CENTRE, 1.0) if number != CENTRE]


def test_what_was_seen_of_one_configuration_carries_to_its_neighbours() -> None:
    """Over machines they are known within 15 %, and half as far off as by what was seen far away."""
    errors = []
    far = int(SPACE.distances(CENTRE).argmax())
    for seed in range(6):
        machine = family_machine(seed)
        for seen in (CENTRE, far):
            model = taught(ServiceTimeModel(SPACE, family_cores(seed)), machine, [(seen, 1.0)] * 2)
            assert abs(log_errors(model, machine, [seen])[0]) < 0.02
            errors.append(np.abs(log_errors(model, machine, neighbours())).mean())
            assert sd(model, seen) < min(sd(model, number) for number in neighbours() if number != seen)
    by_centre, by_far = np.array(errors).reshape(-1, 2).mean(axis=0)
    assert by_centre < 0.15
    assert by_centre < 0.5 * by_far


@pytest.mark.parametrize("slow", [1.15, 1.25, 1.4])
def test_a_configuration_that_was_seen_only_in_a_slow_moment_is_blamed_for_part_of_it_at_most(
    slow: float,
) -> None:
    """Another one was slower just before and after. Of that one nothing is believed to have changed."""
    machine, near = family_machine(1), neighbours()
    visits = [(CENTRE, 1.0)] * 4 + [(near[0], 1.0)] * 2
    visits += [(CENTRE, slow), (near[1], slow), (CENTRE, slow)] + [(CENTRE, 1.0)] * 4
    model = taught(ServiceTimeModel(SPACE, family_cores(1)), machine, visits)
    blamed = log_errors(model, machine, [near[1], CENTRE]) / np.log(slow)
    assert blamed[0] < 0.6
    assert abs(blamed[1]) < 0.2


def test_a_slow_interval_is_told_as_the_machines() -> None:
    machine = family_machine(1)
    model = taught(ServiceTimeModel(SPACE, family_cores(1)), machine, [(CENTRE, 1.0)] * 6 + [(CENTRE, 1.3)])
    assert model.log_slowness == pytest.approx(np.log(1.3), abs=0.1)
    assert 0 < model.log_slowness_to_come < model.log_slowness_ahead < model.log_slowness
    assert model.slowness.seen[7] == pytest.approx(model.log_slowness)
    assert abs(model.slowness.seen[3]) < 0.1


def test_a_slow_machine_is_not_fast_again_because_an_interval_tells_nothing() -> None:
    machine = family_machine(1)
    visits = [(CENTRE, 1.0)] * 6 + [(CENTRE, 1.3)] * 3
    model = taught(ServiceTimeModel(SPACE, family_cores(1)), machine, visits)
    told = model.log_slowness_ahead
    model.add(SPACE.configuration(CENTRE), [])
    assert 0.5 * told < model.log_slowness <= told
    assert 0 < model.log_slowness_ahead < model.log_slowness


def test_a_machine_that_is_slower_for_good_becomes_the_usual_one() -> None:
    machine = family_machine(1)
    visits = [(CENTRE, 1.0)] * 5 + [(CENTRE, 1.5)] * 40
    model = taught(ServiceTimeModel(SPACE, family_cores(1)), machine, visits)
    known = log_errors(model, machine, [CENTRE])[0] + model.log_slowness_ahead
    assert known == pytest.approx(np.log(1.5), abs=0.05)


def alien(seed: int) -> Machine:
    """Service times that have no order at all."""
    rng = np.random.default_rng(seed)
    axes = (np.arange(1, 4), np.arange(1, 6), np.arange(1, 6), np.array([1]))
    return Machine(*axes, np.exp(rng.normal(-2.0, 0.5, (3, 5, 5, 1))))


def test_what_an_entry_has_alone_is_learned_of_it_and_of_no_other() -> None:
    """Each entry is by a tenth faster or slower than its neighbours let expect."""
    machine = family_machine(901)
    luck = np.random.default_rng(0).normal(0.0, 0.1, machine.service_time_s.shape)
    machine = dataclasses.replace(machine, service_time_s=machine.service_time_s * np.exp(luck))
    visited = [CENTRE, *neighbours()]
    model = taught(ServiceTimeModel(SPACE, 5), machine, 3 * [(number, 1.0) for number in visited])
    assert np.abs(log_errors(model, machine, visited)).max() < 0.02
    assert max(sd(model, number) for number in visited) < 0.03
    others = [number for number in SPACE.region(CENTRE, 2.0).tolist() if number not in visited]
    assert min(sd(model, number) for number in others) > 0.05


def test_the_learned_prior_is_averaged_and_never_replaces() -> None:
    """On an alien machine the generic hypotheses win, and do as well as without it."""
    machine, visits = alien(3), [(n, 1.0) for n in range(0, len(SPACE), 9)]
    generic = taught(ServiceTimeModel(SPACE, 5), machine, visits)
    averaged = taught(ServiceTimeModel(SPACE, 5, shipped()), machine, visits)
    assert not averaged._posterior.plausible[0].kind
    errors = [np.std(log_errors(each, machine, range(len(SPACE)))) for each in (generic, averaged)]
    assert errors[1] < 1.1 * errors[0]


def test_on_a_machine_of_its_kind_the_learned_prior_knows_more() -> None:
    errors = []
    for seed in range(900, 904):
        machine = family_machine(seed)
        for kinds in ((), shipped()):
            model = taught(ServiceTimeModel(SPACE, family_cores(seed), kinds), machine, [(CENTRE, 1.0)])
            errors.append(np.std(log_errors(model, machine, range(len(SPACE)))))
    generic, learned = np.array(errors).reshape(-1, 2).mean(axis=0)
    assert learned < 0.8 * generic


@pytest.mark.parametrize("limit", ["MAX_INTERVALS", "MAX_ENTRIES"])
def test_memory_is_bounded_and_the_newest_is_known(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(remembered, limit, 20)
    machine = family_machine(3)
    model = ServiceTimeModel(SPACE, family_cores(3))
    taught(model, machine, [(n, 1.0) for n in range(len(SPACE))])
    assert len(model._posterior.seen) <= 20 * 5
    assert abs(log_errors(model, machine, [len(SPACE) - 1])[0]) < 0.03


def test_what_was_worked_out_of_entries_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    visits = [(n, 1.0) for n in range(12)]
    usual = taught(ServiceTimeModel(SPACE, family_cores(3)), family_machine(3), visits)
    monkeypatch.setattr(service_time_posterior, "MAX_ROWS", 8)
    few = taught(ServiceTimeModel(SPACE, family_cores(3)), family_machine(3), visits)
    assert len(few._posterior._rows) <= 8
    np.testing.assert_array_equal(few.log_times, usual.log_times)


def test_what_neighbours_slowed_is_forgotten_with_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_times, "MAX_INTERVALS", 5)
    model, configuration = ServiceTimeModel(SPACE), SPACE.configuration(0)
    for _ in range(40):
        model.add(configuration, [row(1, 50, 0.11)], log_slower=0.1)
        model.fit()
    assert len(model._beside) <= 5 + remembered.MAX_INTERVALS_ALIKE
    assert model.expected_s(configuration, 1)[0] == pytest.approx(0.11 / np.exp(0.1), rel=0.01)


def test_the_same_intervals_lead_to_the_same_numbers() -> None:
    visits = [(CENTRE, 1.0), (7, 1.1), (40, 0.9), (CENTRE, 1.0)]
    first, again = (
        taught(ServiceTimeModel(SPACE, kinds=shipped()), family_machine(5), visits) for _ in range(2)
    )
    np.testing.assert_array_equal(first.service_time_s(), again.service_time_s())
    draws = [each.draws(3, np.random.default_rng(0)) for each in (first, again)]
    np.testing.assert_array_equal(draws[0], draws[1])


def test_draws_scatter_as_the_standard_deviations_say() -> None:
    model = taught(ServiceTimeModel(SPACE, family_cores(2)), family_machine(2), [(CENTRE, 1.0), (0, 1.0)])
    drawn = np.log(model.draws(400, np.random.default_rng(0)))
    for number in (CENTRE, 60):
        knobs = SPACE.configuration(number)
        table = np.ravel_multi_index(SPACE.indices[number][[1, 2, 0]], model.table.shape[2:5])
        found = drawn[:, table, knobs["instances"] - 1, 0].std()
        assert found == pytest.approx(sd(model, number), rel=0.3, abs=0.01)


def test_a_large_table_is_drawn_by_parts_that_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry scatters as it would, those that are alike go together, and no matrix is of all entries."""
    model = taught(ServiceTimeModel(SPACE, family_cores(2)), family_machine(2), [(CENTRE, 1.0), (0, 1.0)])
    entries = [
        model.table.entries(SPACE.configuration(number), 1)[0] for number in (CENTRE, CENTRE + 1, 60, 61)
    ]
    together = np.log(model.draws(4000, np.random.default_rng(0)))
    sizes: list[int] = []
    factored = cholesky.factored

    def noted(matrix: np.ndarray) -> np.ndarray:
        sizes.append(len(matrix))
        return factored(matrix)

    monkeypatch.setattr(cholesky, "factored", noted)
    monkeypatch.setattr(service_time_posterior, "MAX_DRAWN_TOGETHER", 60)
    by_parts = np.log(model.draws(4000, np.random.default_rng(0)))
    assert set(sizes) == {60}
    assert len(model.log_times) > 200
    where = [np.argwhere(model.table._number.reshape(-1, 5, 1) == entry)[0] for entry in entries]
    of_each = [np.stack([drawn[:, a, n, b] for a, n, b in where]) for drawn in (together, by_parts)]
    exact, found = (np.cov(each) for each in of_each)
    np.testing.assert_allclose(np.diag(found), np.diag(exact), rtol=0.15)
    np.testing.assert_allclose(np.corrcoef(of_each[1]), np.corrcoef(of_each[0]), atol=0.15)


def test_batch_sizes_between_those_of_the_table_are_told_apart() -> None:
    model, configuration = ServiceTimeModel(BATCHING), {"instances": 2, "max_batch_size": 32}

    def time_s(n: int, b: int) -> float:
        return 0.02 * n**0.3 * b**0.8

    for sizes in ([9, 13, 20], [10, 11, 14], [5, 7, 9, 19, 27, 31]):
        model.add(configuration, [row(n, 50, time_s(n, b), b) for n in (1, 2) for b in sizes])
        model.fit()
    for size in (8, 12, 24):
        assert model.expected_s(configuration, size)[1] == pytest.approx(time_s(2, size), rel=0.04)


def test_rows_without_batches_teach_nothing() -> None:
    model = ServiceTimeModel(SPACE)
    model.add(SPACE.configuration(3), [ServiceTimes(1, 1, 0, 0.0), ServiceTimes(2, 1, 3, 0.0)])
    assert not model.known
    model.add(SPACE.configuration(3), [row(1, 2, 0.15)])
    assert model.known


def test_batches_of_many_kinds_teach_though_each_kind_is_rare() -> None:
    """As under a load that fills batches by chance, up to 32 requests."""
    model, configuration = ServiceTimeModel(BATCHING), {"instances": 2, "max_batch_size": 32}
    model.add(configuration, [row(n, 10, 0.02 * b**0.8, b) for n in (1, 2) for b in range(1, 33)])
    assert model.known
    model.fit()
    assert model.expected_s(configuration, 16)[0] == pytest.approx(0.02 * 16**0.8, rel=0.05)


def test_of_kinds_of_batches_that_are_all_as_rare_some_are_kept() -> None:
    """More of them than are remembered."""
    space = ConfigurationSpace.of(instances=[32], max_batch_size=[32])
    model, configuration = ServiceTimeModel(space), {"instances": 32, "max_batch_size": 32}
    model.add(configuration, [row(n, 1, 0.02, b) for n in range(1, 33) for b in range(1, 33)])
    assert model.known


def test_rare_kinds_of_batches_are_left_out_where_others_hold_enough() -> None:
    model, configuration = ServiceTimeModel(BATCHING), {"instances": 2, "max_batch_size": 32}
    model.add(configuration, [row(1, 500, 0.02, 1), row(1, 5, 0.3, 16)])
    model.fit()
    assert model._posterior.seen.tolist() == [model.table.entry(configuration, 1, 1)]


def test_parts_told_apart_from_a_mean_count_for_less_the_further_they_are_from_it() -> None:
    four = SPACE.configuration(SPACE.number({"instances": 4, "inter_op_threads": 1, "intra_op_threads": 1}))
    model = ServiceTimeModel(SPACE, cores=2)
    model.add(four, [row(n, 50, 0.1 * n) for n in (1, 2, 3)], 0.2, mean_busy=2.0)
    model.fit()
    entries = np.array([model.table.entry(four, busy, 1) for busy in (1, 2, 3)])
    alone, middle, beside_two = model.standard_deviations(entries)
    assert alone > 1.5 * middle
    assert beside_two > middle


def test_one_made_anew_knows_nothing_of_what_the_other_has_seen() -> None:
    machine = family_machine(1)
    first = taught(ServiceTimeModel(SPACE, family_cores(1)), machine, [(CENTRE, 1.0), (0, 1.0)])
    second = first.anew(by_mean_busy=False)
    assert not second.known
    fresh = taught(ServiceTimeModel(SPACE, family_cores(1)), machine, [(CENTRE, 1.0)])
    before = first.log_times
    np.testing.assert_array_equal(taught(second, machine, [(CENTRE, 1.0)]).log_times, fresh.log_times)
    np.testing.assert_array_equal(first.log_times, before)


def test_another_configuration_that_comes_as_predicted_is_no_error_on_a_slow_machine() -> None:
    machine = family_machine(50)
    model = taught(ServiceTimeModel(SPACE, cores=family_cores(50)), machine, [(CENTRE, 1.0)] * 8)
    taught(model, machine, [(CENTRE, 2.0)] * 3)
    another = SPACE.configuration(0)
    expected_s = model.expected_s(another, 1)
    model.add(another, [row(n, 50, float(time_s)) for n, time_s in enumerate(expected_s, start=1)])
    assert model._squared_errors[-1] == pytest.approx(0.0, abs=1e-12)


def test_a_batch_of_one_may_take_longer_where_requests_are_taken_one_by_one() -> None:
    """It is not taken for a slow moment, and some of what was seen of two instances is expected of one."""
    model = ServiceTimeModel(BATCHING)
    two, one_by_one = {"instances": 2, "max_batch_size": 8}, {"instances": 2, "max_batch_size": 1}
    for configuration, mean_s in [(two, 0.015), (one_by_one, 0.021)] * 3:
        model.add(configuration, [row(1, 80, mean_s)])
        model.fit()
    assert model.log_slowness_ahead == pytest.approx(0.0, abs=0.1)
    for instances, least, most in [(2, 1.35, 1.45), (1, 1.08, 1.4)]:
        alone = model.expected_s({"instances": instances, "max_batch_size": 1}, 1)[0]
        batched = model.expected_s({"instances": instances, "max_batch_size": 8}, 1)[0]
        assert least < alone / batched < most


def test_a_request_of_several_items_is_a_larger_batch_though_no_other_may_join_it() -> None:
    """Batches of 1, 4 and 8 were seen where they may be batched; then four items come in one request."""
    model = ServiceTimeModel(BATCHING)
    one_by_one = {"instances": 1, "max_batch_size": 1}
    batched = [row(1, 50, 0.01 * size, size) for size in (1, 4, 8)]
    for _ in range(2):
        model.add({"instances": 1, "max_batch_size": 8}, batched)
        model.fit()
    for _ in range(2):
        model.add(one_by_one, [row(1, 50, 0.04, 4)])
        model.fit()
    assert model.expected_s(one_by_one, 4)[0] == pytest.approx(0.04, rel=0.02)
    assert model.expected_s(one_by_one, 1)[0] == pytest.approx(0.01, rel=0.05)


def test_each_table_has_the_threads_of_its_configurations() -> None:
    space = ConfigurationSpace.of(
        instances=[1, 2], inter_op_threads=[1, 3], intra_op_threads=[1, 2, 4], max_batch_size=[1, 8]
    )
    table = ServiceTimeModel(space).table
    found = np.exp(table.times_s(np.zeros(len(table.points)))).shape[0]
    assert len(table.table_threads) == found == 2 * 2 * 2 * 3
    numbers = table._number.reshape(found, -1)[:, 0]
    np.testing.assert_array_equal(table.points[numbers][:, :2], table.table_threads)


def test_where_nothing_may_be_batched_there_is_one_kind_of_batches_of_one() -> None:
    alone, both = (ConfigurationSpace.of(instances=[1, 2], max_batch_size=sizes) for sizes in ([1], [1, 8]))
    assert not ServiceTimeModel(alone).table.one_by_one.any()
    assert ServiceTimeModel(both).table.one_by_one.sum() == 3  # 1 of 1, 1 and 2 of 2 instances busy
