"""The belief explains what an interval cost by its own arrivals, whatever they were."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from envs.simulated import SimulatedServing
from rrl.arrival_summary import dispersion_of_times, summarised
from rrl.belief.belief import QUANTILE_SD, Belief, while_kept
from rrl.measurement import NOT_TOLD, ArrivalSummary, LatencySummary, Measurement, ServiceTimes
from rrl.objective import Capacity, Goodput, MeanLatency, Objective, StrictSLO, Throughput, log_sd_of
from rrl.queueing.machine import Machine
from rrl.queueing.windows import as_windows
from rrl.space import ConfigurationSpace
from serving_adapter.load.arrivals import Arrivals, Bursts, Poisson

SPACE = ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 8])
START, TWO, BATCHES, BEST = (
    SPACE.number({"instances": n, "max_batch_size": b}) for n, b in ((1, 1), (2, 1), (1, 8), (2, 8))
)
BOTH = np.array([START, TWO])
ONE = np.array([1])
MACHINE = Machine(ONE, ONE, np.array([1, 2]), np.array([1, 8]), np.array([[[[20, 60], [22, 70]]]]) / 1e3)
RATE_PER_S = 25.0
BURSTS = Bursts(RATE_PER_S, burst_ratio=20.0, mean_burst_s=1.0, mean_calm_s=4.0)


class Lived(NamedTuple):
    """What came of some intervals."""

    belief: Belief
    measurements: list[Measurement]
    expected_ms: np.ndarray  # (intervals,) under each interval's own arrivals
    best_ms: np.ndarray  # (intervals,) what `BEST` would have cost by the belief


def lived(
    numbers: list[int], arrivals: Arrivals, slower: dict[int, float] | None = None, seed: int = 0
) -> Lived:
    """A belief that learns intervals of these configurations; `slower` machines by interval."""
    env = SimulatedServing(
        MACHINE,
        SPACE,
        arrivals=arrivals,
        interval_s=8.0,
        start=SPACE.configuration(START),
        carry_backlog=False,
    )
    env.reset(seed=seed)
    belief = Belief(SPACE, MeanLatency(), cores=2)
    measurements, expected, best = [], [], []
    for k, number in enumerate(numbers):
        env._simulation.machine = MACHINE.slower((slower or {}).get(k, 1.0))
        measurement = env.step(SPACE.action(number))[4]["measurement"]
        belief.learn(number, measurement)
        measurements.append(measurement)
        own, other = np.exp(belief.log_costs(np.array([number, BEST]), measurement)[0])
        expected.append(own)
        best.append(other)
    return Lived(belief, measurements, np.array(expected), np.array(best))


def observed_ms(run: Lived) -> np.ndarray:
    return np.array([each.latency.mean_ms for each in run.measurements])


@pytest.fixture(scope="module")
def bursty() -> Lived:
    return lived([START] * 14, BURSTS)


def test_under_bursts_what_is_in_force_costs_about_what_its_own_arrivals_make_it_cost(bursty: Lived) -> None:
    """Where a prediction that takes arrivals for Poisson is off by more than a factor of two."""
    dispersions = np.array([each.dispersion for each in bursty.measurements])
    off = np.abs(np.log(bursty.expected_ms / observed_ms(bursty)))[2:]
    assert np.nanmedian(dispersions) > 20
    assert np.mean(off < np.log(1.15)) > 0.8
    poisson_ms = bursty.belief.screened_at(np.array([START]), RATE_PER_S)[0]
    assert np.median(np.abs(np.log(poisson_ms / observed_ms(bursty)))) > np.log(2)


def test_a_burst_is_not_the_configurations_fault(bursty: Lived) -> None:
    assert np.abs(bursty.belief.model_error.log_ratio).max() < 0.06
    assert abs(bursty.belief.service_times.log_slowness) < 0.05


def test_how_sure_a_cost_is_under_bursts_is_told_by_full_batches() -> None:
    """Few requests come in the mean, so that batches of one would do. They wait in bursts."""
    few = np.array([BEST])
    arrivals = Poisson(RATE_PER_S), Bursts(RATE_PER_S, burst_ratio=50.0, mean_burst_s=0.5, mean_calm_s=4.0)
    calm, bursts = (lived([BEST] * 8, each).belief for each in arrivals)
    points = bursts.service_times.table.points
    assert points[calm._deciding(few)[0], 4] == points[bursts._typical(few)[0], 4] == 1
    assert points[bursts._deciding(few)[0], 4] >= 6
    assert bursts.standard_deviations(few)[0] < 0.02


def without_arrivals(measurement: Measurement, dispersion: float) -> Measurement:
    """As a target tells it that knows no more of its arrivals than this dispersion."""
    return replace(measurement, arrival_summary=NOT_TOLD, dispersion=dispersion)


@pytest.mark.parametrize("told", [3, 14])
def test_a_burst_is_not_the_configurations_fault_where_only_dispersions_are_told(told: int) -> None:
    """Nor where the last intervals tell none."""
    ratios = []
    for seed in range(6):
        belief = Belief(SPACE, MeanLatency(), cores=2)
        for k, each in enumerate(lived([START] * 14, BURSTS, seed=seed).measurements):
            belief.learn(START, without_arrivals(each, each.dispersion if k < told else math.nan))
        ratios.append(belief.model_error.log_ratio[START])
    assert np.mean(ratios) < np.log(1.4)


def test_arrivals_that_are_not_told_are_taken_to_be_as_bursty_as_the_load_is(bursty: Lived) -> None:
    belief = Belief(SPACE, MeanLatency(), cores=2)
    for k, each in enumerate(bursty.measurements):
        belief.learn(START, without_arrivals(each, each.dispersion if k < 3 else math.nan))
    last = without_arrivals(bursty.measurements[-1], math.nan)
    possible = belief._possible(last)
    found = [dispersion_of_times(offsets_s, duration_s) for offsets_s, duration_s in possible]
    assert belief.forecast.dispersion > 8
    assert np.median(found) == pytest.approx(belief.forecast.dispersion, rel=0.5)


def test_under_poisson_arrivals_the_model_is_learned_as_well_where_times_are_not_told() -> None:
    told, untold = (Belief(SPACE, MeanLatency(), cores=2) for _ in range(2))
    for each in lived([TWO] * 10, Poisson(20.0)).measurements:
        slow = replace(each, latency=each.latency._replace(mean_ms=1.5 * each.latency.mean_ms))
        told.learn(TWO, slow)
        untold.learn(TWO, without_arrivals(slow, each.dispersion))
    of_told, of_untold = (each.model_error.log_ratio[TWO] for each in (told, untold))
    assert of_untold == pytest.approx(of_told, abs=0.05)
    assert of_untold > 0.25


def test_under_the_same_arrivals_a_better_configuration_that_was_seen_costs_less() -> None:
    run = lived([START, BEST] * 5 + [START] * 4, BURSTS, seed=1)
    assert (run.best_ms[-4:] < 0.7 * run.expected_ms[-4:]).all()
    ahead = np.exp(run.belief.log_costs_ahead(np.arange(len(SPACE)))[0])
    assert ahead[BEST] < 0.7 * ahead[START]


def test_what_came_while_the_load_was_high_counts_for_what_is_kept_until_it_is_forgotten() -> None:
    run = lived([START, TWO] * 4, Poisson(45.0))
    quiet = lived([START, TWO] * 4, Poisson(4.0)).measurements

    def loses(log_costs: tuple[np.ndarray, np.ndarray]) -> float:
        return float(log_costs[0][0] - log_costs[0][1])

    for number, measurement in zip([START, TWO] * 8, quiet * 2, strict=True):
        run.belief.learn(number, measurement)
    assert abs(loses(run.belief.log_costs_ahead(BOTH))) < 0.1
    assert loses(run.belief.log_costs_kept(BOTH)) > 0.5
    for number, measurement in zip([START, TWO] * 2, quiet[:4], strict=True):
        run.belief.learn(number, measurement)
    assert abs(loses(run.belief.log_costs_kept(BOTH))) < 0.1


def test_a_queue_drains_in_a_silence_between_what_came() -> None:
    """Eight seconds at more than `START` bears, then as long without requests, and so on."""
    busy = lived([START] * 6, Poisson(53.0), seed=2).measurements
    one_after_the_other, with_silences = (Belief(SPACE, MeanLatency(), cores=2) for _ in range(2))
    for measurement in busy:
        for belief in (one_after_the_other, with_silences):
            belief.learn(START, measurement)
        with_silences.learn(START, Measurement(20.0, 0, 0, 0))
    glued, apart = (b.log_costs_lately(np.array([START]))[0][0] for b in (one_after_the_other, with_silences))
    assert glued > apart + 0.5


def test_what_came_is_as_slow_as_it_was_though_the_interval_is_forgotten() -> None:
    """Of one configuration few intervals are remembered, but how slow the machine was in all of them."""
    slow = dict.fromkeys(range(6, 14), 1.6)
    run, quick = (lived([TWO] * 18, Poisson(20.0), slower=each) for each in (slow, None))
    slowness = run.belief.forecast.came(run.belief.service_times.slowness).slowness
    assert slowness[6:14].min() > 1.2 * slowness[14:].max()
    lately, never = (each.belief.log_costs_lately(np.array([TWO]))[0][0] for each in (run, quick))
    assert lately > never + 0.15


def test_of_what_came_every_request_counts_alike() -> None:
    """However short the interval that it came in."""
    belief = lived([TWO] * 4, Poisson(10.0)).belief
    before = belief.log_costs_lately(np.array([START]))[0][0]
    offsets_s = np.full(8, 0.001)  # at once
    burst = Measurement(0.5, 8, 8, 0, arrival_summary=summarised(offsets_s), dispersion=8.0)
    belief.learn(TWO, burst)
    after = belief.log_costs_lately(np.array([START]))[0][0]
    of_burst = 20.0 * (1 + 8) / 2
    requests = 4 * 8.0 * 10.0
    expected = (requests * np.exp(before) + 8 * of_burst) / (requests + 8)
    assert np.exp(after) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("requests", [8, 300])
def test_an_interval_is_replayed_with_its_own_arrivals_and_no_others(requests: int) -> None:
    """All come at once here, so that each waits for those before it."""
    belief = lived([TWO] * 4, Poisson(10.0)).belief
    offsets_s = np.full(requests, 0.001)
    burst = Measurement(8.0, requests, requests, 0, arrival_summary=summarised(offsets_s))
    belief.learn(TWO, burst)
    cost_ms = np.exp(belief.log_costs(np.array([START]), burst)[0][0])
    assert cost_ms == pytest.approx(20.0 * (1 + requests) / 2, rel=0.1)


@pytest.mark.parametrize("requests", [8, 300])
def test_where_arrivals_are_not_told_as_many_are_replayed_as_came(requests: int) -> None:
    belief = Belief(SPACE, MeanLatency(), cores=2)
    stretches = belief._possible(Measurement(8.0, requests, requests, 0))
    assert {len(offsets_s) for offsets_s, _ in stretches} == {requests}


def test_once_requests_were_seen_to_wait_from_one_interval_to_the_next_they_wait_in_a_replay() -> None:
    first, *others = lived([START] * 6, Poisson(47.0)).measurements
    waits = replace(first, backlog=5, backlog_growth=5)
    calm, busy = (Belief(SPACE, MeanLatency(), cores=2) for _ in range(2))
    for belief, begin in ((calm, replace(first, backlog=0, backlog_growth=0)), (busy, waits)):
        for measurement in (begin, *(replace(each, backlog=0, backlog_growth=0) for each in others)):
            belief.learn(START, measurement)
    assert (calm.windows.together, busy.windows.together) == (1, 2)
    alone, behind_others = (each.log_costs_ahead(np.array([START]))[0][0] for each in (calm, busy))
    assert behind_others > alone + 0.1


def test_where_the_load_is_made_faster_what_came_does_not_come_again() -> None:
    run = lived([START, TWO] * 4, Poisson(45.0))
    for number, measurement in zip(
        [START, TWO] * 4, lived([START, TWO] * 4, Poisson(4.0)).measurements, strict=True
    ):
        run.belief.learn(number, measurement)
    capacity = run.belief.supposing(Capacity(200.0))
    for ahead, lately in zip(capacity.log_costs_ahead(BOTH), capacity.log_costs_lately(BOTH), strict=True):
        np.testing.assert_array_equal(ahead, lately)


def test_what_is_kept_is_as_unsure_as_the_less_sure_of_what_is_to_come_and_what_came() -> None:
    ahead, lately = (np.array([1.0, 3.0]), np.array([0.1, 0.5])), (np.array([2.0, 3.0]), np.array([0.3, 0.2]))
    log, sd = while_kept(ahead, lately)
    np.testing.assert_allclose(np.exp(log), [(np.e + np.e**2) / 2, np.e**3])
    np.testing.assert_allclose(sd, [0.3, 0.5])


def test_while_the_load_stays_keeping_costs_what_is_expected_next() -> None:
    belief = lived([START, TWO] * 6, Poisson(20.0)).belief
    numbers = np.arange(len(SPACE))
    ahead, kept = (f(numbers, beside=START) for f in (belief.log_costs_ahead, belief.log_costs_kept))
    np.testing.assert_allclose(ahead[0] - ahead[0][START], kept[0] - kept[0][START], atol=0.15)
    assert (np.abs(np.log(ahead[1][1:] / kept[1][1:])) < 0.5).all()


def test_what_is_in_force_is_known_better_than_what_was_never_tried(bursty: Lived) -> None:
    numbers, last = np.arange(len(SPACE)), bursty.measurements[-1]
    _, sd = bursty.belief.log_costs(numbers, last)
    assert sd[START] < 0.15
    assert (np.delete(sd, START) > 1.2 * sd[START]).all()
    _, beside = bursty.belief.log_costs(numbers, last, beside=START)
    assert beside[START] < 0.01 < np.delete(beside, START).min()


def test_a_slow_interval_is_expected_to_have_been_slow_and_the_next_less_so() -> None:
    run = lived([TWO] * 10, Poisson(20.0), slower={9: 1.5})
    assert run.expected_ms[-1] == pytest.approx(observed_ms(run)[-1], rel=0.15)
    before_ms = np.median(observed_ms(run)[:9])
    ahead_ms = np.exp(run.belief.log_costs_ahead(np.array([TWO]))[0][0])
    assert run.expected_ms[-1] > 1.4 * before_ms
    assert 0.9 * before_ms < ahead_ms < 0.97 * run.expected_ms[-1]


def test_a_knob_that_is_not_tuned_has_the_value_that_was_found() -> None:
    """Two instances bear 25/s here, one does not: telling the belief so is as good as tuning the knob."""
    run = lived([TWO] * 4, Poisson(40.0))
    tuned = ConfigurationSpace.of(max_batch_size=[1, 8])
    found, untold = (Belief(tuned, MeanLatency(), cores=2, found=found) for found in ({"instances": 2}, None))
    for measurement in run.measurements:
        found.learn(0, measurement)
        untold.learn(0, measurement)
    both = run.belief.capacities_per_s(np.array([TWO]))
    assert found.capacities_per_s(np.array([0])) == pytest.approx(both, rel=0.05)
    assert untold.capacities_per_s(np.array([0])) < 0.7 * both


def test_what_bears_the_load_is_told_with_what_it_has_to_spare() -> None:
    run = lived([TWO] * 4, Poisson(60.0))
    numbers = np.array([START, TWO])
    np.testing.assert_allclose(run.belief.capacities_per_s(numbers), [50.0, 2 / 0.022], rtol=0.1)
    assert run.belief.bears(numbers).tolist() == [False, True]
    assert run.belief.bears(numbers, share=0.5).tolist() == [False, False]


def test_what_the_queueing_model_gets_wrong_is_learned() -> None:
    """Each request takes half as long again as the queueing model says."""
    run = lived([TWO] * 3, Poisson(20.0))
    right = run.belief.model_error.log_ratio[TWO]
    for measurement in run.measurements * 2:
        latency = measurement.latency._replace(mean_ms=1.5 * measurement.latency.mean_ms)
        told = Measurement(
            measurement.duration_s,
            measurement.arrivals,
            measurement.completions,
            0,
            latency,
            telemetry=measurement.telemetry,
            arrival_summary=measurement.arrival_summary,
        )
        run.belief.learn(TWO, told)
    assert abs(right) < 0.05
    assert run.belief.model_error.log_ratio[TWO] > 0.15


def test_what_an_interval_may_have_cost_is_expected_by_the_mean_of_its_logarithms() -> None:
    """Arrivals that are not told may have come in bursts or not. The mean of the costs lies above it."""
    (measurement,) = lived([START], Poisson(25.0)).measurements
    untold = replace(measurement, arrival_summary=ArrivalSummary((), (), ()), dispersion=30.0)
    first, again = (Belief(SPACE, MeanLatency(), cores=2) for _ in range(2))
    first.learn(START, untold)
    slower = np.array([first._slower(first.service_times.log_slowness)])
    replayed_ms = first.replay.replayed(
        np.array([START]), slower, as_windows(first._possible(untold))
    ).mean_ms
    mean_ms = float(np.exp(np.log(replayed_ms).mean()))
    assert replayed_ms.mean() > 1.1 * mean_ms
    again.learn(START, replace(untold, latency=untold.latency._replace(mean_ms=mean_ms)))
    assert again.model_error.log_ratio[START] == pytest.approx(0.0, abs=1e-6)


def test_nothing_is_learned_of_the_model_from_an_interval_that_was_cut_short_or_began_with_a_queue() -> None:
    for fields in ({"aborted": "the queue is running away"}, {"backlog": 90, "backlog_growth": 0}):
        belief = Belief(SPACE, MeanLatency(), cores=2)
        measurement = lived([START], Poisson(20.0)).measurements[0]
        for name, value in fields.items():
            object.__setattr__(measurement, name, value)
        belief.learn(START, measurement)
        assert belief.known
        np.testing.assert_array_equal(belief.model_error.log_ratio, 0.0)


@pytest.mark.parametrize(("duration_s", "learned_last"), [(0.01, START), (8.0, TWO)])
def test_an_interval_without_answers_is_an_error_only_where_some_were_expected(
    duration_s: float, learned_last: int
) -> None:
    belief = lived([START] * 2, Poisson(RATE_PER_S)).belief
    belief.learn(TWO, Measurement(duration_s, 1, 0, 0, backlog=2, backlog_growth=1))
    seen = belief.model_error.learned_last
    assert seen is not None
    assert seen.number == learned_last


def test_an_interval_without_arrivals_teaches_nothing() -> None:
    belief = Belief(SPACE, MeanLatency(), cores=2)
    belief.learn(START, Measurement(8.0, 0, 0, 0))
    assert not belief.known
    assert np.isnan(belief.forecast.rate_per_s) or belief.forecast.rate_per_s > 0


@pytest.mark.parametrize("objective", [MeanLatency(), StrictSLO(200.0)])
def test_a_cost_is_of_the_objective_and_of_the_arrivals(objective: Objective) -> None:
    run = lived([TWO] * 4, Poisson(20.0))
    belief = Belief(SPACE, objective, cores=2)
    for measurement in run.measurements:
        belief.learn(TWO, measurement)
    windows = as_windows(belief._possible(run.measurements[-1]))
    latencies = belief.replay.replayed(np.array([TWO]), np.ones(1), windows)
    found = np.exp(belief.log_costs(np.array([TWO]), run.measurements[-1])[0][0])
    expected = latencies.mean_ms if isinstance(objective, MeanLatency) else latencies.p95_ms
    assert found == pytest.approx(expected[0, 0], rel=0.1)


class OfItems(NamedTuple):
    """What was learned of 200 requests in 10 s, each of 4 items that one batch holds."""

    belief: Belief
    measurement: Measurement
    answered_per_s: float = 20.0


def of_items(objective: Objective) -> OfItems:
    """A batch of 4 takes 16 ms."""
    offsets_s = np.arange(200) / 20.0 + 0.01
    measurement = Measurement(
        10.0,
        200,
        200,
        0,
        LatencySummary(mean_ms=16.0, p95_ms=17.0),
        telemetry=(ServiceTimes(1, 4, 200, 200 * 0.016),),
        arrival_summary=summarised(offsets_s, np.full(200, 4)),
    )
    belief = Belief(SPACE, objective, cores=2)
    for _ in range(4):
        belief.learn(BATCHES, measurement)
    return OfItems(belief, measurement)


@pytest.mark.parametrize("objective", [Goodput(200.0), Throughput()])
def test_a_rate_is_of_requests_however_many_items_each_holds(objective: Objective) -> None:
    belief, measurement, answered_per_s = of_items(objective)
    expected = math.exp(belief.log_costs(np.array([BATCHES]), measurement)[0][0])
    assert expected == pytest.approx(1e3 / answered_per_s, rel=0.1)
    assert expected == pytest.approx(objective.cost(measurement, {}), rel=0.1)


def test_the_rate_that_is_borne_is_of_requests_too() -> None:
    """With a limit that is never reached, all that the service times admit is borne."""
    belief, measurement, _ = of_items(Capacity(1e6))
    numbers = np.array([BATCHES])
    expected = math.exp(belief.log_costs(numbers, measurement)[0][0])
    slowed_per_s = belief.capacities_per_s(numbers)[0]
    assert 1e3 / expected == pytest.approx(slowed_per_s, rel=0.1)


def test_a_p95_is_as_sure_as_its_requests_are_many() -> None:
    belief, measurement, _ = of_items(StrictSLO(50.0))
    windows = as_windows(belief._possible(measurement))
    latencies = belief.replay.replayed(np.array([BATCHES]), np.ones(1), windows)
    log_sd = log_sd_of(latencies.mean_ms, latencies.p95_ms)
    expected = QUANTILE_SD * log_sd / math.sqrt(measurement.arrivals)
    np.testing.assert_allclose(belief._log_p95_sd(latencies), expected, rtol=0.05)


def test_the_seed_fixes_what_is_believed() -> None:
    first, again = (lived([START, TWO, BEST], BURSTS) for _ in range(2))
    np.testing.assert_array_equal(first.expected_ms, again.expected_ms)
    numbers = np.arange(len(SPACE))
    for one, other in zip(
        first.belief.log_costs_ahead(numbers), again.belief.log_costs_ahead(numbers), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_an_interval_without_answers_does_not_say_that_busy_instances_are_not_told() -> None:
    belief = lived([TWO, TWO], Poisson(40.0)).belief
    belief.learn(TWO, Measurement(8.0, 320, 0, 0, backlog=320, backlog_growth=320))
    everyone = np.arange(len(SPACE))
    as_told = belief.replay.typical_entries(everyone, belief.forecast.rate_per_s)
    np.testing.assert_array_equal(belief._typical(everyone), as_told)
