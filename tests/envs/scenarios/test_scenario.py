"""Scenarios, the family of machines, the loads, and what configurations cost in them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import (
    FIRST_FOR_JUDGING,
    RATE_PER_S,
    SLOWDOWN_AT,
    TRUTHS,
    TWO_SIZES,
    family_cores,
    family_machine,
    scenarios,
    space_of,
)
from envs.scenarios.scenario import Scenario
from envs.scenarios.workloads import RATE_STEP, PerIntervalPoisson, make_workload
from envs.simulated import SimulatedServing
from rrl.measurement import Measurement
from rrl.objective import LeastResources, MeanLatency, StrictSLO
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace
from serving_adapter.load.sizes import TwoSizes, make_sizes


def constant_machine(service_s: float, most: int = 4) -> Machine:
    axis = np.array([1, most])
    return Machine(axis, axis, axis, axis, np.full((2, 2, 2, 2), service_s))


def steady(count: int, rate_per_s: float = RATE_PER_S, requests: int = 100) -> PerIntervalPoisson:
    return PerIntervalPoisson(np.full(count, rate_per_s), requests)


# ---- the family ----


def test_the_familys_machines_follow_from_their_seeds() -> None:
    assert np.array_equal(family_machine(7).service_time_s, family_machine(7).service_time_s)
    assert not np.allclose(family_machine(7).service_time_s, family_machine(8).service_time_s)
    cores = {family_cores(seed) for seed in range(60)}
    assert min(cores) == 6
    assert max(cores) == 16


@pytest.mark.parametrize("seed", [0, 1, 2, 3, FIRST_FOR_JUDGING, FIRST_FOR_JUDGING + 1])
def test_the_familys_rate_takes_a_quarter_to_two_thirds_of_the_capacity(seed: int) -> None:
    times_s = family_machine(seed).service_time_s[..., 0]
    assert 0.25 <= RATE_PER_S / np.max(np.arange(1, 11) / times_s) <= 0.65


def test_the_best_configurations_of_the_family_differ() -> None:
    best = []
    for seed in range(4):
        scenario = scenarios(f"family:{seed}")[0]
        space = ConfigurationSpace.parse("instances=1:7,inter_op_threads=1,2,4,intra_op_threads=1:6")
        costs = ExpectedCosts(scenario, space, MeanLatency(), 30).costs(RATE_PER_S)
        best.append(int(np.argmin(costs)))
    assert len(set(best)) >= 3


@pytest.mark.parametrize("truth", TRUTHS)
def test_every_truth_gives_a_scenario_that_runs(truth: str) -> None:
    scenario = scenarios("family:3", truth)[0]
    assert (scenario.name, scenario.cores) == ("family-3", family_cores(3))
    space = space_of(truth, scenario.machine)
    env = scenario.environment(space, MeanLatency(), steady(3))
    env.reset(seed=0)
    measurement = env.step(env.space.action(len(space) // 2))[4]["measurement"]
    assert measurement.arrivals == 100
    assert math.isfinite(measurement.latency.mean_ms)


def test_the_truths_are_what_they_say() -> None:
    machine = family_machine(0)
    made = {truth: make(machine, "m", 0) for truth, make in TRUTHS.items()}
    assert made["model"] == Scenario(machine, "m")
    assert made["processor-sharing"].discipline == "ps"
    assert math.expm1(made["variation"].service_variation ** 2) == pytest.approx(0.5)
    assert made["backlog"].carry_backlog
    assert made["two-sizes"].sizes == TWO_SIZES
    assert made["two-sizes"].size_of_table == TWO_SIZES.mean == 1.75
    assert made["slowdown"].slowdown is not None
    decision, factor = made["slowdown"].slowdown
    assert decision == SLOWDOWN_AT
    assert 1.25 <= factor <= 1.6
    times_s = made["batching"].machine.service_time_s
    assert times_s[..., -1].max() < 16 * times_s[..., 0].max()  # 32 requests in less than 16 times the time
    # No configuration without batches could serve the rate.
    assert np.max(np.arange(1, 11) / times_s[..., 0]) < RATE_PER_S
    assert set(space_of("batching", machine).names) > {"max_batch_size", "max_queue_delay_us"}
    assert len(space_of("model", machine)) == 1000


def test_machine_files_are_scenarios_named_after_them(tmp_path: Path) -> None:
    constant_machine(0.1).save(tmp_path / "one.npz")
    family_machine(0).save(tmp_path / "two.npz")
    made = scenarios(f"{tmp_path}/one.npz,{tmp_path}/two.npz", "variation")
    assert [scenario.name for scenario in made] == ["one", "two"]
    assert space_of("model", made[0].machine).shape == (4, 4, 4)  # not beyond the table
    assert space_of("batching", made[0].machine).shape == (4, 3, 3, 5)


@pytest.mark.parametrize(
    ("text", "truth", "message"),
    [
        ("family:3-1", "model", "cannot read the seeds"),
        ("family:", "model", "cannot read the seeds"),
        ("family:1,x", "model", "cannot read the seeds"),
        ("family:-4", "model", "cannot read the seeds"),
        ("family:0-99999999", "model", "cannot read the seeds"),
        ("family:0", "magic", "unknown truth 'magic'; known: model, processor-sharing"),
        ("none.npz", "model", "there is no machine file"),
        ("famly:0", "model", "unknown machines 'famly:0'; expected FILE.npz.*, family:SEEDS, usl:SEEDS"),
        (",", "model", "no machine is given"),
    ],
)
def test_machines_that_are_not_understood_are_refused(text: str, truth: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenarios(text, truth)


def test_a_machine_without_batches_has_no_batching(tmp_path: Path) -> None:
    one = np.array([1])
    Machine(one, one, one, one, np.ones((1, 1, 1, 1))).save(tmp_path / "single.npz")
    with pytest.raises(ValueError, match="holds batches of 1 only"):
        scenarios(f"{tmp_path}/single.npz", "batching")


def test_seeds_may_be_ranges_and_lists() -> None:
    assert [s.name for s in scenarios("family:0-2,9")] == ["family-0", "family-1", "family-2", "family-9"]


def test_two_sizes_come_in_their_shares() -> None:
    sizes = make_sizes("mix:1:4:0.25")
    assert sizes == TwoSizes(1, 4, 0.25)
    drawn = sizes.sample(np.random.default_rng(0), 40_000)
    assert set(drawn.tolist()) == {1, 4}
    assert drawn.mean() == pytest.approx(1.75, rel=0.02)
    for text in ("mix:1:4", "mix:1:4:2", "mix:0:4:0.5", "mix:1:4:x", "mix:1:4:nan"):
        with pytest.raises(ValueError, match="not understood"):
            make_sizes(text)


# ---- scenarios as environments ----


def test_an_interval_of_a_scenario_answers_all_its_requests_and_leaves_nothing() -> None:
    env = Scenario(constant_machine(0.5), "slow").environment(
        ConfigurationSpace.of(instances=[1, 2]), MeanLatency(), steady(4, 20.0)
    )
    for measurement in (env.reset(seed=0)[1]["measurement"], env.step(np.array([0]))[4]["measurement"]):
        assert (measurement.arrivals, measurement.completions, measurement.backlog) == (100, 100, 0)
        # Request k waits for k others: about 0.5 s · 50 less the mean of the arrival times.
        expected_s = 0.5 * 50.5 - measurement.duration_s / 2
        assert measurement.latency.mean_ms == pytest.approx(1e3 * expected_s, rel=0.05)
        assert measurement.duration_s == pytest.approx(5.0, rel=0.5)


def test_the_machine_slows_down_at_the_decision() -> None:
    scenario = Scenario(constant_machine(0.01), "m", slowdown=(2, 3.0))
    env = scenario.environment(ConfigurationSpace.of(instances=[1, 4]), MeanLatency(), steady(9))
    measurements: list[Measurement] = []
    for _ in range(2):  # and from the beginning again
        measurements = [env.reset(seed=0)[1]["measurement"]]
        measurements += [env.step(np.array([0]))[4]["measurement"] for _ in range(4)]
        assert [round(m.service.mean_ms) for m in measurements] == [10, 10, 10, 30, 30]
    slowed = scenario.slowed()
    assert slowed.slowdown is None
    assert np.allclose(slowed.machine.service_time_s, 0.03)
    assert slowed.slowed() is slowed


@pytest.mark.parametrize("slowdown", [(-1, 2.0), (1, 0.0), (1, math.inf)])
def test_an_impossible_slowdown_is_refused(slowdown: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="slowdown"):
        Scenario(constant_machine(0.1), "m", slowdown=slowdown)
    with pytest.raises(ValueError, match="slowdown"):
        SimulatedServing(constant_machine(0.1), "instances=1", slowdown=slowdown)


# ---- expected costs ----


def test_one_request_an_interval_costs_its_service_time() -> None:
    machine = family_machine(1)
    space = ConfigurationSpace.of(inter_op_threads=[1, 4], intra_op_threads=[1, 3, 10])
    costs = ExpectedCosts(Scenario(machine, "m"), space, MeanLatency(), 1).costs(5.0)
    expected = [machine.table(space.configuration(number))[0, 0] for number in range(len(space))]
    assert costs.tolist() == pytest.approx([1e3 * value for value in expected])


def test_a_carried_backlog_costs_what_the_stationary_queue_does() -> None:
    service_s, load = 0.05, 0.6
    scenario = Scenario(constant_machine(service_s), "m", carry_backlog=True)
    space = ConfigurationSpace.of(instances=[1])
    [mean_ms] = ExpectedCosts(scenario, space, MeanLatency()).mean_latency_ms(load / service_s)
    assert mean_ms == pytest.approx(1e3 * service_s * (1 + load / (2 * (1 - load))), rel=0.03)


def test_an_unstable_configuration_costs_what_an_empty_start_does() -> None:
    space = ConfigurationSpace.of(instances=[1, 4])
    costs = []
    for carries in (True, False):
        scenario = Scenario(constant_machine(0.2), "m", carry_backlog=carries)
        costs.append(ExpectedCosts(scenario, space, MeanLatency()).costs(10.0))
    assert costs[0][0] == costs[1][0] > 3000
    assert costs[0][1] == pytest.approx(costs[1][1], rel=0.1)


@pytest.mark.parametrize("truth", [truth for truth in TRUTHS if truth != "slowdown"])
@pytest.mark.parametrize("objective", [MeanLatency(), StrictSLO(600.0), LeastResources(600.0)])
def test_expected_costs_are_the_means_of_what_the_environment_measures(truth: str, objective: Any) -> None:
    scenario = scenarios("family:2", truth)[0]
    space = {
        "batching": ConfigurationSpace.parse(
            "instances=4,intra_op_threads=4,max_batch_size=8,max_queue_delay_us=30000"
        )
    }.get(truth, ConfigurationSpace.parse("instances=3,inter_op_threads=2,intra_op_threads=4"))
    env = scenario.environment(space, objective, steady(601), start=None)
    env.reset(seed=1)
    infos = [env.step(space.action(0))[4] for _ in range(600)]
    expected = ExpectedCosts(scenario, space, objective)
    assert expected.costs(RATE_PER_S)[0] == pytest.approx(np.mean([i["cost"] for i in infos]), rel=0.08)
    p95_ms = np.mean([info["measurement"].latency.p95_ms for info in infos])
    assert expected.p95_ms(RATE_PER_S)[0] == pytest.approx(p95_ms, rel=0.08)


def test_costs_are_found_once_and_cannot_be_changed() -> None:
    scenario = scenarios("family:4")[0]
    space = ConfigurationSpace.parse("instances=1:5,inter_op_threads=1:3,intra_op_threads=1:5")
    expected = ExpectedCosts(scenario, space, MeanLatency(), 20)
    costs = expected.costs(9.0)
    assert expected.costs(9.0) is costs
    assert costs.shape == (len(space),)
    assert np.all(np.isfinite(costs))
    assert np.array_equal(ExpectedCosts(scenario, space, MeanLatency(), 20).costs(9.0), costs)
    with pytest.raises(ValueError, match="read-only"):
        costs[0] = 0.0
    with pytest.raises(ValueError, match="rate must be a positive"):
        expected.costs(0.0)
    with pytest.raises(ValueError, match="at least 1 request"):
        ExpectedCosts(scenario, space, MeanLatency(), 0)


# ---- loads ----


def test_intervals_hold_their_requests_at_their_own_rate() -> None:
    rates_per_s = np.repeat([5.0, 20.0], 150)
    arrivals = PerIntervalPoisson(rates_per_s)
    chunks = list(arrivals.times_s(np.random.default_rng(0)))
    assert [len(chunk) for chunk in chunks] == [100] * 300
    times_s = np.concatenate(chunks)
    assert np.all(np.diff(times_s) > 0)
    lengths_s = np.diff([chunk[0] for chunk in chunks])
    assert (100 / lengths_s[:149].mean(), 100 / lengths_s[150:].mean()) == pytest.approx((5, 20), rel=0.03)
    assert np.std(np.diff(times_s[:15_000])) == pytest.approx(0.2, rel=0.05)  # exponential gaps
    assert arrivals.mean_rate_per_s == pytest.approx(8.0)

    env = Scenario(constant_machine(0.01), "m").environment(
        ConfigurationSpace.of(instances=[1]), MeanLatency(), arrivals
    )
    measurement = env.reset(seed=0)[1]["measurement"]
    for k in range(1, 299):
        measurement = env.step(np.array([0]))[4]["measurement"]
        assert measurement.arrivals == 100
        # A Gamma(100) length: its standard deviation is a tenth.
        assert measurement.arrival_rate_per_s == pytest.approx(rates_per_s[k], rel=0.5)


@pytest.mark.parametrize("text", ["stationary", "dynamic", "wiki"])
def test_rates_lie_on_a_grid_around_the_mean_and_follow_from_the_generator(text: str) -> None:
    workload = make_workload(text, 14.0)
    rates_per_s = workload.rates_per_s(400, np.random.default_rng(3))
    assert rates_per_s.shape == (400,)
    steps = np.log(rates_per_s / 14.0) / math.log(RATE_STEP)
    assert np.allclose(steps, np.rint(steps))
    assert len(set(rates_per_s.tolist())) <= 40
    assert np.array_equal(rates_per_s, workload.rates_per_s(400, np.random.default_rng(3)))
    assert 400 / np.sum(1 / rates_per_s) == pytest.approx(14.0, rel=0.2)
    if text == "stationary":
        assert set(rates_per_s.tolist()) == {14.0}
    else:
        assert rates_per_s.min() < 10 < 18 < rates_per_s.max()
        assert not np.array_equal(rates_per_s, workload.rates_per_s(400, np.random.default_rng(4)))


@pytest.mark.parametrize("decisions", [12, 24, 120])
def test_a_trace_of_counts_is_spread_over_the_decisions(tmp_path: Path, decisions: int) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("minute,requests\n0,600\n1,1800\n")
    rates_per_s = make_workload(str(path), 10.0).rates_per_s(decisions, np.random.default_rng(0))
    # A quarter of the requests came in the first half, so at 10/s on average 5/s and 15/s.
    exact = np.repeat([5.0, 15.0], [decisions // 4, 3 * decisions // 4])
    assert rates_per_s == pytest.approx(exact, rel=0.025)


@pytest.mark.parametrize("decisions", [50, 700])
def test_the_mean_over_time_of_a_trace_is_the_rate_asked_for(tmp_path: Path, decisions: int) -> None:
    rng = np.random.default_rng(0)
    counts, moments = tmp_path / "counts.csv", tmp_path / "moments.csv"
    per_minute = np.r_[0, rng.integers(0, 900, 300), 0, 0]
    counts.write_text("minute,requests\n" + "\n".join(f"{k},{n}" for k, n in enumerate(per_minute)) + "\n")
    gaps_s = rng.exponential(np.linspace(0.2, 2.0, 4321))
    moments.write_text("t_s\n" + "\n".join(f"{moment:.3f}" for moment in np.cumsum(gaps_s)) + "\n")
    for path in (counts, moments):
        rates_per_s = make_workload(str(path), 14.0).rates_per_s(decisions, np.random.default_rng(0))
        assert len(rates_per_s) == decisions
        assert PerIntervalPoisson(rates_per_s).mean_rate_per_s == pytest.approx(14.0, rel=0.02)


def test_the_loads_of_the_papers_script_come_in_turn() -> None:
    rates_per_s = make_workload("script", 14.0).rates_per_s(10, np.random.default_rng(0))
    assert rates_per_s == pytest.approx(np.repeat([14.0, 14 * 7 / 6, 14.0, 9.8, 14 * 7 / 12], 2))


def test_minutes_of_a_trace_follow_each_other_from_a_random_one_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("minute,requests\n" + "".join(f"{k},{10 * 2**k}\n" for k in range(6)))
    workload = make_workload(f"minutes:{path}", 21.0)  # the mean of the counts is 105
    stretches = [workload.rates_per_s(4, np.random.default_rng(seed)) for seed in range(20)]
    assert {round(float(rates[0])) for rates in stretches} == {2, 4, 8}
    assert all(rates[1:] / rates[:-1] == pytest.approx([2.0] * 3, rel=0.05) for rates in stretches)
    with pytest.raises(ValueError, match="6 bins, too few for 7 decisions"):
        workload.rates_per_s(7, np.random.default_rng(0))
    path.write_text("t_s\n0.5\n1.5\n")
    with pytest.raises(ValueError, match="needs requests counted per minute"):
        make_workload(f"minutes:{path}", 21.0)


def test_a_day_of_wiki_by_minutes_is_as_many_intervals() -> None:
    rates_per_s = make_workload("minutes:wiki", 14.0).rates_per_s(1440, np.random.default_rng(0))
    assert rates_per_s[:720].mean() > 1.2 * rates_per_s[720:].mean()


def test_a_trace_of_moments_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    moments_s = np.cumsum(np.repeat([0.1, 0.3], 200))
    path.write_text("t_s\n" + "\n".join(f"{moment:.3f}" for moment in moments_s) + "\n")
    rates_per_s = make_workload(str(path), 20.0).rates_per_s(3, np.random.default_rng(0))
    assert rates_per_s[0] / rates_per_s[2] == pytest.approx(3.0, rel=0.08)


@pytest.mark.parametrize(
    ("text", "rate_per_s", "requests", "message"),
    [
        ("weekly", 14.0, 100, "unknown workload 'weekly'; known: stationary, .*, minutes:wiki or a trace"),
        ("dynamic", 0.0, 100, "rate must be a positive"),
        ("dynamic", math.nan, 100, "rate must be a positive"),
        ("wiki", 14.0, 0, "at least 1 request"),
        ("none.csv", 14.0, 100, "cannot read the trace"),
    ],
)
def test_loads_that_are_not_understood_are_refused(
    text: str, rate_per_s: float, requests: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_workload(text, rate_per_s, requests)


def test_impossible_interval_rates_are_refused() -> None:
    for rates in ([0.0], [math.nan], [[1.0]]):
        with pytest.raises(ValueError, match="one-dimensional array of positive"):
            PerIntervalPoisson(np.array(rates))
    with pytest.raises(ValueError, match="at least 1 request"):
        PerIntervalPoisson(np.ones(2), 0)
