"""The simulated stock Triton of `scripts/bench triton-simulated`: what it tells, what its changes cost."""

from __future__ import annotations

import math
from itertools import groupby

import numpy as np
import pytest

from envs.scenarios.small_machines import CORES, random_machine
from rrl.belief.telemetry import tells_busy_instances
from scripts.benchmarks.triton.simulated import (
    CaseOutcome,
    Options,
    SimulatedCase,
    cases_of,
    episode,
    outcome,
)
from scripts.benchmarks.triton.simulated_server import (
    INTERVAL_S,
    MEASURED,
    SPACE,
    UNMODELLED_SD,
    SimulatedTriton,
    Steps,
    is_reload,
    measured_machine,
    processes_started,
    true_costs_ms,
)


def numbered(instances: int, intra_op_threads: int = 1, max_batch_size: int = 1) -> int:
    knobs = {"instances": instances, "intra_op_threads": intra_op_threads, "max_batch_size": max_batch_size}
    return SPACE.number(knobs | {"max_queue_delay_us": 0})


def simulated(start: int, unmodelled: np.ndarray, one_by_one: float = 1.0) -> SimulatedTriton:
    return SimulatedTriton(
        measured_machine("minilm"),
        SPACE,
        arrivals=60.0,
        interval_s=INTERVAL_S,
        start=SPACE.configuration(start),
        cores=CORES,
        unmodelled=unmodelled,
        one_by_one=one_by_one,
    )


def intervals(seed: int, count: int = 20, unmodelled: float = 1.0) -> list:
    env = simulated(numbered(2, max_batch_size=8), np.full(len(SPACE), unmodelled))
    _, info = env.reset(seed=seed)
    steps = (env.step(SPACE.action(env.start))[-1] for _ in range(count))
    return [info["measurement"], *(info["measurement"] for info in steps)]


def test_it_tells_what_a_stock_triton_tells_and_no_more() -> None:
    for measurement in intervals(seed=1):
        assert not tells_busy_instances(measurement)
        assert math.isnan(measurement.latency.p95_ms)
        assert measurement.latency.mean_ms > 0
        sizes = [row.batch_size for row in measurement.telemetry]
        assert sizes == sorted(set(sizes))
        assert sum(row.count * row.batch_size for row in measurement.telemetry) == measurement.completions


def test_its_machine_drifts_and_the_same_seed_drifts_alike() -> None:
    def of_one_s(seed: int) -> np.ndarray:
        rows = [measurement.telemetry[0] for measurement in intervals(seed)]
        return np.array([row.total_s / row.count for row in rows])

    assert np.log(of_one_s(1)).std() > 0.03
    np.testing.assert_array_equal(of_one_s(1), of_one_s(1))
    assert (of_one_s(1) != of_one_s(2)).all()


def test_its_slow_spells_last_for_several_intervals() -> None:
    env = simulated(numbered(1), np.ones(len(SPACE)))
    env.reset(seed=1)
    factors = [env._log_spell() for _ in range(5000)]
    spells = [len(list(same)) for factor, same in groupby(factors) if factor]
    assert 40 < len(spells) < 110
    assert set(spells) == {2, 3, 4}
    assert 0.25 <= min(filter(None, factors)) < max(factors) <= 0.6


def test_latency_is_also_what_no_service_time_tells_of() -> None:
    for plain, more in zip(intervals(seed=1), intervals(seed=1, unmodelled=1.2), strict=True):
        assert more.latency.mean_ms == pytest.approx(1.2 * plain.latency.mean_ms)
        assert more.telemetry == plain.telemetry


def test_all_latency_is_by_the_factor_of_what_is_in_force() -> None:
    """Requests answered while a change starts its processes, too."""
    one, three = numbered(1, intra_op_threads=2), numbered(3, max_batch_size=4)

    def summed_s(unmodelled: np.ndarray) -> np.ndarray:
        """In the first interval, and with the change and the second."""
        env = simulated(one, unmodelled)
        env.reset(seed=1)
        before_s = env.latency_s
        env.step(SPACE.action(three))
        return np.array([before_s, env.latency_s - before_s])

    plain, of_one, of_three = np.ones((3, len(SPACE)))
    of_one[one] = of_three[three] = 2.0
    before_s, after_s = summed_s(plain)
    assert summed_s(of_one)[0] == pytest.approx(2 * before_s)
    assert summed_s(of_three)[0] == pytest.approx(before_s)
    more_s = summed_s(of_one)[1] - after_s, summed_s(of_three)[1] - after_s
    assert min(more_s) > 0
    assert sum(more_s) == pytest.approx(after_s)


@pytest.mark.parametrize(("max_batch_size", "longer"), [(1, 1.4), (8, 1.0)])
def test_everything_takes_longer_where_the_largest_batch_is_one(max_batch_size: int, longer: float) -> None:
    def of_one_s(one_by_one: float) -> float:
        env = simulated(numbered(1, max_batch_size=max_batch_size), np.ones(len(SPACE)), one_by_one)
        _, info = env.reset(seed=1)
        row = info["measurement"].telemetry[0]
        return row.total_s / row.count

    assert of_one_s(1.4) == pytest.approx(longer * of_one_s(1.0), rel=0.01)
    usual_ms, slower_ms = true_costs_ms("minilm", 30.0), true_costs_ms("minilm", 30.0, 1.4)
    alone = numbered(2, max_batch_size=max_batch_size)
    assert (slower_ms > 1.3 * usual_ms)[alone] == (longer > 1)
    assert (slower_ms == usual_ms)[alone] == (longer == 1)


def test_machines_of_the_row_one_by_one_are_up_to_half_slower_there_and_others_are_not() -> None:
    found = cases_of(Options(machines=20))
    factors = [case.one_by_one for case in found.pop("one by one")]
    assert 1.0 < min(factors) < 1.1
    assert 1.4 < max(factors) < 1.5
    assert {case.one_by_one for cases in found.values() for case in cases} == {1.0}


def test_what_no_service_time_tells_of_is_the_runs_own() -> None:
    case = SimulatedCase("minilm", ((40.0, 60.0),), 12, seed=3)
    np.testing.assert_array_equal(case.unmodelled, case.unmodelled)
    assert (case.unmodelled != case._replace(seed=4).unmodelled).all()
    many = np.log([case._replace(seed=seed).unmodelled for seed in range(200)])
    assert many.std() == pytest.approx(math.hypot(*UNMODELLED_SD), rel=0.1)
    same_instances = np.flatnonzero(SPACE.values[:, 0] == 2)
    assert np.diff(many[:, same_instances]).std() == pytest.approx(2**0.5 * UNMODELLED_SD[1], rel=0.1)
    assert (case.unmodelled != case._replace(machine=3).unmodelled).all()


@pytest.mark.parametrize(
    ("before", "after", "started"),
    [
        (numbered(1), numbered(1), 0),
        (numbered(1), numbered(3), 2),  # in place: those to come
        (numbered(3), numbered(1), 0),
        (numbered(1), numbered(3, max_batch_size=4), 3),  # loaded anew: all
        (numbered(3), numbered(2, intra_op_threads=2), 2),
    ],
)
def test_a_change_starts_the_processes_of_a_reload_or_those_to_come(
    before: int, after: int, started: int
) -> None:
    assert processes_started(before, after) == started
    assert is_reload(before, after) == (started > 0 and (before, after) != (numbered(1), numbered(3)))


def test_service_times_grow_with_company_and_the_load_is_one_that_the_default_bears() -> None:
    machines = [measured_machine(name) for name in MEASURED]
    for seed in range(20):
        machine, rate_per_s = random_machine(seed)
        machines.append(machine)
        assert rate_per_s < machine.capacity_per_s({"intra_op_threads": 2})
    for machine in machines:
        assert (np.diff(machine.service_time_s, axis=2) >= 0).all()


def test_stepped_arrivals_come_at_the_rate_of_their_step() -> None:
    chunks = Steps(((50.0, 20.0), (50.0, 200.0))).times_s(np.random.default_rng(0))
    times_s = np.empty(0)
    while times_s.size == 0 or times_s[-1] < 200:
        times_s = np.concatenate([times_s, next(chunks)])
    counts, _ = np.histogram(times_s, [0, 50, 100, 150])
    np.testing.assert_allclose(counts, [1000, 10_000, 10_000], rtol=0.1)


def test_what_cannot_bear_the_load_is_never_best() -> None:
    costs_ms = true_costs_ms("minilm", 130.0)
    assert costs_ms[numbered(2)] < 40
    assert costs_ms[numbered(1, intra_op_threads=2)] > 1000  # bears 116 requests per s


@pytest.mark.parametrize(
    "agent", ["guided", "guided-again", "rule", "gp-bandit", "quick-search", "optuna-tpe"]
)
def test_a_run_is_judged_against_the_best_and_the_same_seed_gives_the_same(agent: str) -> None:
    case = SimulatedCase("efficientnet_lite0", ((40.0, 15.0), (40.0, 30.0)), 12, seed=3)
    found = episode(case, agent)
    assert found == episode(case, agent)
    assert found.final >= 1
    assert found.latency > 1
    assert 1 <= found.settled <= 20
    assert len(found.near_after) == 1


def test_the_default_agents_second_run_meets_other_arrivals_on_the_same_machine() -> None:
    case = SimulatedCase("efficientnet_lite0", ((80.0, 15.0),), 12, seed=3)
    first, again = episode(case, "guided"), episode(case, "guided-again")
    assert first.latency != again.latency


def test_the_rule_of_thumb_changes_once_and_stays() -> None:
    found = episode(SimulatedCase("efficientnet_lite0", ((80.0, 15.0),), 12, seed=3), "rule")
    assert (found.reloads, found.processes) == (1, 2)


def test_the_outcome_is_beside_the_best_peer_and_beside_the_rule() -> None:
    def ran(final: float, latency: float) -> list[CaseOutcome]:
        return [CaseOutcome(final, 3, latency, 1, 2)] * 2

    found = outcome(
        {
            "rule": ran(1.2, 1.4),
            "guided": ran(1.02, 2.1),
            "guided-again": ran(1.01, 2.0),
            "quick-search": ran(1.5, 3.0),
        }
    )
    assert (found["value"], found["peer"], found["final_again"]) == (1.02, 1.2, 1.01)
    assert (found["latency_over_rule"], found["final_over_rule"]) == (1.5, 0.85)
    assert found["holds"]


def test_runs_are_as_many_as_asked_for() -> None:
    counts = {label: len(cases) for label, cases in cases_of(Options(seeds=4, machines=6)).items()}
    assert counts.pop("random") == counts.pop("one by one") == 6
    assert counts.pop("steps") == 3 * 2 + 3
    assert set(counts.values()) == {4}


@pytest.mark.parametrize("setting", ["magic=1", "gamble", "gamble=high", "gamble=0.5"])
def test_settings_that_the_agent_does_not_know_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=r"magic|gamble"):
        Options(settings=(setting,))
