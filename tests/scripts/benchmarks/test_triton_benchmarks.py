"""What the benchmarks on a stock Triton count, and how."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.live import LiveServing
from rrl.agent import Agent, Transition, observe
from rrl.measurement import LatencySummary, Measurement, Progress
from rrl.records import Header, Record
from rrl.space import ConfigurationSpace
from scripts.benchmarks.triton import joint
from scripts.benchmarks.triton.head_to_head import Options, _outcome
from scripts.benchmarks.triton.head_to_head_report import (
    FIXED,
    Trial,
    WorkloadCase,
    changes,
    client_ms,
    results,
    table,
    write_intervals,
)
from scripts.benchmarks.triton.head_to_head_trials import (
    TrialPlan,
    _finalists,
    _tuned,
    contenders,
    slowed,
)
from scripts.benchmarks.triton.load_steps import ClientLandscape, judged, kept, phases, step_moments_s
from scripts.benchmarks.triton.served import Traffic
from scripts.figures.head_to_head import (
    by_workload,
    compared,
    head_to_head_tables,
    kept_runs,
    reached,
    run_row,
)
from scripts.kept_rows import OtherSetting
from scripts.serving import served_agents
from scripts.serving.client_log import Requests
from scripts.serving.in_turns import InTurns
from scripts.serving.served_agents import Choices, Served, TunedRun, Unguarded, WatchOnly, cheapest
from tests.support.client_requests import requests, rounds
from tests.support.runs.fake_target import FakeClock, FakeTarget, live

SPACE = ConfigurationSpace.of(instances=[1, 2, 3, 4])
START, BEST, NEARLY, BAD = range(4)
INTERVAL_S = 10.0
TRUE_MS = {START: 40.0, BEST: 10.0, NEARLY: 10.4, BAD: 100.0}


def record(
    number: int, k: int = 0, kind: str = "tune", cost: float | None = None, aborted: str = ""
) -> Record:
    """The interval k of a run, measured from its second second to its end."""
    cost = TRUE_MS[number] if cost is None else cost
    measurement = Measurement(8.0, 8, 8, 0, LatencySummary(mean_ms=cost), aborted=aborted)
    seen = observe(measurement, SPACE, number)
    return Record(
        kind=kind,  # type: ignore[arg-type]
        number=number,
        configuration=SPACE.configuration(number),
        transition=Transition(seen, SPACE.action(number), cost, seen, measurement),
        decision="agent",
        reason="",
        verdict="",
        rollback=False,
        learned=True,
        wall_time_s=(k + 1) * INTERVAL_S,
    )


def trial(name: str, numbers: Sequence[int], left: int, baseline: int = 1) -> Trial:
    """A run that had these configurations in force, and what its clients saw of them."""
    records = [record(n, k, "baseline" if k < baseline else "tune") for k, n in enumerate(numbers)]
    header = Header(SPACE, "latency", None, name, 0, "host:1", "m", {}, {}, INTERVAL_S, "")
    latencies_ms = [TRUE_MS[n] for n in numbers for _ in range(int(INTERVAL_S))]
    choices = tuple(cheapest(records[: k + 1]) for k in range(len(records)))
    return Trial(name, TunedRun(header, records, left, choices), left, requests(latencies_ms))


def case(*trials: Trial, finals: Sequence[int] = (START, BEST, NEARLY, BAD)) -> WorkloadCase:
    fixed = Trial(FIXED, None, START, requests([TRUE_MS[START]] * 60))
    measured = {n: [requests([TRUE_MS[n]] * 20), requests([TRUE_MS[n]] * 20)] for n in finals}
    by_name = {t.name: t for t in (*trials, fixed)}
    return WorkloadCase("minilm", "poisson", 0, 1.0, SPACE, START, 60.0, by_name, measured)


def kept_row(of: WorkloadCase) -> dict[str, Any]:
    return run_row(
        of.to_json(), TrialPlan(4, INTERVAL_S).setting() | {"asked_rate_per_s": None, "commit": "12ab"}
    )


def row_of(seed: int, latencies_s: Sequence[float]) -> dict[str, Any]:
    """A run in which the default agent and the rule of thumb had these latencies."""
    peers = {name: {"latency_s": s} for name, s in zip(("guided", "rule"), latencies_s, strict=True)}
    return {"seed": seed, "peers": peers}


def settled(numbers: Sequence[int], left: int) -> tuple[int | None, int | None]:
    result = results(case(trial("optuna-tpe", numbers, left)))["optuna-tpe"]
    return result.settled, result.knew


def test_a_client_log_is_read_in_the_order_of_its_moments(tmp_path: Path) -> None:
    rows = "at,latency_ms,status\n12.5,30.000,OK\n11.0,5000.000,UNAVAILABLE\n14.0,10.000,OK\n"
    (tmp_path / "requests.csv").write_text(rows)
    seen = Requests.read(tmp_path)
    assert seen.at.tolist() == [11.0, 12.5, 14.0]
    assert (seen.failures, seen.mean_ms, seen.sum_s) == (1, 20.0, 5.04)
    assert len(seen.between(11.0, 14.0)) == 2
    assert len(seen.first(1.5)) == 1
    assert len(seen.after(1.5)) == 2


def test_a_failed_request_is_over_any_limit() -> None:
    seen = requests([10.0, 20.0, 30.0], failed=[0])
    assert seen.over(25.0) == 2
    assert seen.p95_ms == pytest.approx(29.5)


def test_no_requests_have_no_mean() -> None:
    none = Requests.joined([])
    assert math.isnan(none.mean_ms)
    assert math.isnan(none.p95_ms)
    assert (len(none.first(1.0)), none.sum_s, none.over(1.0)) == (0, 0.0, 0)


def test_settled_is_the_first_measurement_from_which_on_nearly_all_were_near() -> None:
    assert settled([START, BAD, NEARLY, BEST, BEST, BEST], left=BEST) == (3, 3)


def test_a_search_that_leaves_a_near_configuration_has_settled_with_its_last_measurement() -> None:
    assert settled([START, BEST, BAD, BAD, BAD, BAD], left=BEST) == (6, 2)


def test_measuring_the_winner_again_counts_among_the_measurements() -> None:
    searched = trial("guided", [START, BAD, BAD, BAD], left=BEST)
    assert searched.run is not None
    validated = [*searched.run.records, record(BEST, 4, "validation"), record(START, 5, "validation")]
    run = replace(searched.run, records=validated, choices=(*searched.run.choices, BEST, BEST))
    found = results(case(replace(searched, run=run)))["guided"]
    assert (found.measurements, found.settled, found.took_s) == (6, 6, 6 * INTERVAL_S)


def test_what_leaves_a_far_configuration_has_not_settled() -> None:
    assert settled([START, BEST, BEST, BEST], left=START)[0] is None


def test_what_never_measured_a_near_configuration_knew_none() -> None:
    assert settled([START, BAD, START, BAD], left=START) == (None, None)


def test_a_fixed_configuration_settles_at_once_or_never() -> None:
    found = results(case())[FIXED]
    assert (found.settled, found.knew, found.measurements, found.changes) == (None, None, 0, 0)
    near_start = replace(case(), start=BEST, trials={FIXED: Trial(FIXED, None, BEST, requests([10.0] * 60))})
    assert results(near_start)[FIXED].settled == 0


def test_ratios_are_over_the_best_of_the_last_measurements() -> None:
    found = results(case(trial("sweep", [START, BEST, NEARLY, BAD], left=NEARLY)))
    assert found["sweep"].mean_ratio == pytest.approx(1.04)
    assert found["sweep"].p95_ratio == pytest.approx(1.04)
    assert found[FIXED].mean_ratio == pytest.approx(4.0)


def test_where_the_rounds_loads_differ_every_one_counts() -> None:
    assert case(finals=()).last.middle([9.0, 18.0, 900.0]) == 18.0
    assert replace(case(), arrivals="wiki").last.middle([1.0, 100.0]) == pytest.approx(10.0)


def test_finalists_are_chosen_before_anything_was_measured_in_turns() -> None:
    seen = case(trial("sweep", [START, NEARLY, BAD, BEST], left=BEST), finals=())
    assert _finalists(seen, 2) == sorted({START, NEARLY, BEST})


def test_with_batches_of_one_configurations_that_differ_in_the_delay_alone_are_one() -> None:
    space = ConfigurationSpace.of(max_batch_size=[1, 8], max_queue_delay_us=[0, 2000])
    seen = replace(case(), space=space)
    assert [seen.as_one(number) for number in range(4)] == [0, 0, 2, 3]
    # Numbers of this grid: START and BEST are of batches of one; BEST's windows stand for none of their own.
    left = replace(seen, trials={"optuna-tpe": Trial("optuna-tpe", None, BEST, requests([40.0] * 60))})
    found = results(replace(left, finals={n: left.finals[n] for n in (START, NEARLY, BAD)}))["optuna-tpe"]
    assert found.mean_ms == TRUE_MS[START]
    assert _finalists(left, 0) == [START]


def test_harm_counts_every_request_of_the_tuning_period_and_none_after_it() -> None:
    # 60 s of one request a second, of which 10 s are measured in BAD; the limit is 3 x 10 ms.
    run = trial("guided", [START, BAD, BEST, BEST, BEST, BEST, BAD, BAD], left=BEST)
    found = results(case(run))["guided"]
    assert found.requests == 60
    assert found.latency_s == pytest.approx((10 * 40 + 10 * 100 + 40 * 10) / 1e3)
    assert found.over_limit == 20


def test_harm_of_the_validation_is_told_apart() -> None:
    searched = trial("guided", [START, BEST, BEST, BEST, START], left=BEST)
    assert searched.run is not None
    *tuned, last = searched.run.records
    validated = [*tuned[:-1], replace(tuned[-1], kind="validation"), replace(last, kind="validation")]
    seen = case(replace(searched, run=replace(searched.run, records=validated)))
    found = results(seen)["guided"]
    assert found.validation_latency_s == pytest.approx((10 * 10 + 10 * 40) / 1e3)
    assert (found.over_limit, found.validation_over_limit) == (20, 10)
    assert "| 20 (10) " in table(seen)


def test_a_configuration_not_measured_last_is_known_by_what_clients_saw_in_its_intervals() -> None:
    seen = case(trial("guided", [START, NEARLY, BEST], left=BEST), finals=(START, BEST))
    assert client_ms(seen)[NEARLY] == pytest.approx(10.4)
    assert BAD not in client_ms(seen)


def test_its_intervals_count_by_as_much_less_as_others_turned_out_to_be_worth() -> None:
    seen = case(trial("guided", [START, NEARLY, BEST], left=BEST), finals=(START, BEST))
    warm = {n: [requests([0.8 * TRUE_MS[n]] * 20)] * 2 for n in (START, BEST)}
    assert client_ms(replace(seen, finals=warm))[NEARLY] == pytest.approx(0.8 * 10.4)


def test_one_slow_interval_of_several_does_not_tell_what_a_configuration_is_worth() -> None:
    run = trial("guided", [START, NEARLY, NEARLY, NEARLY], left=START)
    run.requests.latency_ms[20:30] = 500.0
    assert client_ms(case(run, finals=(START, BEST)))[NEARLY] == pytest.approx(10.4)


def test_an_unanswered_configuration_has_no_mean() -> None:
    run = trial("guided", [START, NEARLY], left=START)
    run.requests.failed[10:20] = True
    assert client_ms(case(run, finals=(START, BEST))).keys() == {START, BEST}


def test_aborted_intervals_tell_nothing_of_a_configuration() -> None:
    whole = trial("guided", [START, BEST, BAD], left=BEST)
    assert whole.run is not None
    records = [*whole.run.records[:2], record(BAD, 2, aborted="the queue is running away")]
    seen = case(replace(whole, run=replace(whole.run, records=records)), finals=(START, BEST))
    assert BAD not in client_ms(seen)
    assert results(seen)["guided"].aborted == 1


def test_changes_are_counted_from_the_start_on() -> None:
    assert changes([record(START), record(BEST), record(BEST), record(START)], START) == 2
    assert changes([record(BEST)], START) == 1


def test_what_is_left_without_a_guard_is_the_lowest_mean_cost() -> None:
    records = [
        record(BAD, cost=5.0),
        record(BAD, cost=50.0),
        record(BEST, cost=9.0),
        record(START, cost=10.0),
    ]
    assert cheapest(records) == BEST
    assert cheapest([*records, replace(record(START, cost=1.0), learned=False)]) == BEST


@pytest.mark.parametrize(("recommended", "left"), [(NEARLY, NEARLY), (None, BEST)])
def test_unless_the_agent_says_what_is_best(recommended: int | None, left: int) -> None:
    class Silent(Agent):
        def act(self, observation: np.ndarray) -> np.ndarray:
            raise AssertionError("nobody asks it to act")

        def update(self, transition: Transition) -> None: ...

    class Knowing(Silent):
        def recommended(self) -> int | None:
            return recommended

    for agent, left_by_it in ((Knowing(), left), (Silent(), BEST)):
        choices = Choices(agent, Unguarded(START))
        for number in (START, BEST, NEARLY):
            choices.measured(record(number))
        assert choices.numbers[-1] == left_by_it


def test_without_a_guard_every_proposal_is_run_and_nothing_is_aborted() -> None:
    runaway = Progress(elapsed_s=5.0, arrivals=500, completions=10, backlog=490, backlog_growth=490)
    for kind, aborts in ((WatchOnly, True), (Unguarded, False)):
        guard = kind(START)
        assert guard.admit(BAD).number == BAD
        assert bool(guard.watch(runaway)) is aborts
        guard.judge(BAD, math.nan, replace(record(BAD).measurement, completions=0))
        assert not guard.takes_over
        assert guard.admit(BAD).number == BAD


def test_the_table_names_every_peer_the_default_agent_first() -> None:
    lines = table(
        case(trial("optuna-tpe", [START, BEST], BEST), trial("guided", [START, BEST], BEST))
    ).splitlines()
    peers = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    assert peers == ["peer", "---", "guided", "optuna-tpe", FIXED]
    assert "never" in "".join(lines)
    assert lines[-1] == (
        "Requests over 2, 3, 4 times the best's p95: "
        "optuna-tpe 10, 10, 0; guided 10, 10, 0; default 60, 60, 0."
    )


def test_the_table_tells_each_peers_latency_over_the_rule_of_thumbs() -> None:
    rule = trial("rule", [START, NEARLY, NEARLY, NEARLY, NEARLY, NEARLY], NEARLY)
    ours, again = (trial(name, [START, BAD, *[BEST] * 4], BEST) for name in ("guided", "guided-again"))
    lines = table(case(again, rule, ours)).splitlines()
    # 10 requests of 40 ms each first; then 50 of 10.4 ms, or 10 of 100 ms and 40 of 10 ms
    assert "Latency over the rule of thumb's: guided-again 1.96, guided 1.96, default 2.61." in lines
    peers = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    assert peers[2:] == ["guided", "guided-again", "rule", FIXED]


def test_the_table_tells_of_clients_that_could_not_keep_up() -> None:
    late = replace(trial("guided", [START, BEST], BEST), lag_p99_ms=12.3)
    assert table(case(late)).endswith("Sent late (p99; the latencies include it): guided 12 ms.")


def test_intervals_are_written_with_what_the_clients_saw(tmp_path: Path) -> None:
    write_intervals(tmp_path / "intervals.csv", [case(trial("guided", [START, BAD], START))])
    rows = list(csv.DictReader((tmp_path / "intervals.csv").read_text().splitlines()))
    assert [(row["client_mean_ms"], row["requests"], row["kind"]) for row in rows] == [
        ("40", "8", "baseline"),
        ("100", "8", "tune"),
    ]


def test_all_must_hold_against_every_peer() -> None:
    soon = trial("guided", [START, BEST, BEST, BEST, BEST, BEST], BEST)
    late = trial("optuna-tpe", [START, BAD, BAD, BAD, BAD, BEST], BEST)
    assert _outcome([reached([kept_row(case(soon, late))])])["holds"]
    swapped = (replace(soon, name="optuna-tpe"), replace(late, name="guided"))
    held = _outcome([reached([kept_row(case(*swapped))])])
    assert held["holds_by"] == {
        "final_mean": True,
        "final_p95": True,
        "measurements": False,
        "latency_sum": False,
        "over_limit": False,
    }


def test_the_default_agents_second_run_is_no_peer_but_tells_the_noise() -> None:
    ours = trial("guided", [START, BEST, BEST, BEST, BEST, BEST], BEST)
    again = trial("guided-again", [START, NEARLY, BEST, BEST, BEST, BEST], BEST)
    rule = trial("rule", [START, BAD, BAD, BAD, BAD, NEARLY], NEARLY)
    held = _outcome([reached([kept_row(case(ours, again, rule))])])
    assert held["holds"]
    assert held["peer"] == pytest.approx(1.04)
    assert held["latency_again_over_first"] == pytest.approx(0.904 / 0.9, abs=1e-3)
    assert held["latency_over_rule"] == pytest.approx(0.9 / 4.504, abs=1e-3)
    alone = _outcome([reached([kept_row(case(ours))])])
    assert alone["latency_over_rule"] is alone["latency_again_over_first"] is None


def test_of_several_seeds_the_medians_are_judged() -> None:
    soon = [
        trial("guided", [START, BEST, BEST, BEST], BEST),
        trial("optuna-tpe", [START, BAD, BAD, BEST], BEST),
    ]
    never = [trial("guided", [START, BAD, BAD, BAD], START), soon[1]]
    seeds = [replace(case(*never if seed == 1 else soon), seed=seed) for seed in range(3)]
    found = reached([kept_row(one) for one in seeds])
    assert found["guided"].settled == 2
    assert found["guided"].over_limit == 10
    assert _outcome([found])["holds"]
    assert not _outcome([found, reached([kept_row(seeds[1])])])["holds"]
    assert reached([kept_row(seeds[1])])["guided"].settled == math.inf


def test_runs_of_another_model_arrivals_or_grid_are_another_workload() -> None:
    rows = [kept_row(replace(case(), arrivals=a, seed=seed)) for a in ("poisson", "wiki") for seed in (0, 1)]
    groups = by_workload([*rows, rows[0] | {"knobs": "instances=1:8"}])
    assert [[row["seed"] for row in group] for group in groups] == [[0, 1], [0, 1], [0]]


def test_peers_are_compared_within_each_run() -> None:
    """The second run's machine is three times slower for all, which widens no interval."""
    ratios = (1.9, 2.1, 2.0, 2.2)
    rows = [
        row_of(seed, [slowness, slowness * ratio])
        for seed, (slowness, ratio) in enumerate(zip((1.0, 3.0, 1.0, 0.5), ratios, strict=True))
    ]
    found = compared("rule", rows, [rows])
    assert found.middle == pytest.approx(np.exp(np.mean(np.log(ratios))))
    half = 3.182 * np.std(np.log(ratios), ddof=1) / 2  # Student's t, 3 degrees of freedom
    assert found.low == pytest.approx(found.middle / math.exp(half), rel=1e-3)
    assert found.high == pytest.approx(found.middle * math.exp(half), rel=1e-3)


def test_few_runs_have_no_interval_and_other_workloads_lend_them_their_spread() -> None:
    alone, others = [row_of(0, [1.0, 2.0])], [row_of(k, [1.0, 3.0 + k]) for k in range(4)]
    assert str(compared("rule", alone, [alone, others[:3]])) == "2.000"
    lent = compared("rule", alone, [alone, others])
    half = 3.182 * np.std(np.log([3.0, 4.0, 5.0, 6.0]), ddof=1)  # 3 degrees of freedom
    assert math.log(lent.high / lent.middle) == pytest.approx(half, rel=1e-3)


def test_runs_that_all_kept_the_best_have_no_interval_of_width_zero() -> None:
    rows = [row_of(k, [1.0, 2.0]) for k in range(9)]
    assert str(compared("rule", rows, [rows])) == "2.000"


def test_a_table_a_workload_with_the_default_agent_first_and_then_who_costs_least() -> None:
    soon = trial("guided", [START, BEST, BEST, BEST], BEST)
    peers = (
        trial("optuna-tpe", [START, BAD, BAD, BEST], BEST),
        trial("rule", [START, *[NEARLY] * 3], NEARLY),
    )
    rows = [
        kept_row(replace(case(*peers, soon), seed=seed, arrivals=a))
        for a, seed in (("poisson", 30), ("wiki", 30), ("poisson", 31))
    ]
    poisson, wiki = head_to_head_tables(rows).split("\n\n**")
    assert poisson.startswith("**minilm, poisson: 2 runs**, seed 30, 31, commit 12ab, at 1.0 requests/s.")
    assert wiki.startswith("minilm, wiki: 1 run**, seed 30,")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in wiki.splitlines()[4:]]
    assert [line[0] for line in lines] == ["guided", "rule", FIXED, "optuna-tpe"]
    assert lines[0] == ["guided", "1.000", "1.000", "2", "1", "", "10", "2 inst."]
    assert lines[3][3] == "4"
    assert lines[2][3] == "never"


def test_a_run_that_is_kept_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    kept_runs(path).add(kept_row(case()))
    assert kept_row(case()) in kept_runs(path)
    assert kept_row(replace(case(), seed=1)) not in kept_runs(path)


def test_the_rate_of_stepped_arrivals_is_that_of_each_phase() -> None:
    moments_s = step_moments_s((100.0, 200.0, 50.0), (10.0, 20.0, 10.0), np.random.default_rng(0))
    assert moments_s[0] == 0
    assert (np.diff(moments_s) >= 0).all()
    counts = np.histogram(moments_s, [0, 10, 30, 40])[0]
    assert counts == pytest.approx([1000, 4000, 500], rel=0.1)


def test_intervals_after_a_step_count_from_the_one_it_falls_into() -> None:
    run = trial("guided", [START, BEST, BEST, BEST, BAD, BAD, BEST, BEST], BEST)
    assert run.run is not None
    near = [{BEST}, {BAD}, {BEST}]
    up, down = judged(run.run, run.requests, (35.0, 30.0, 15.0), near)
    assert up.intervals == 2
    assert down.intervals == 1
    assert (up.seconds, down.seconds) == (15.0, 5.0)
    assert down.mean_ms == pytest.approx(10.0)
    up, _ = judged(run.run, run.requests, (45.0, 30.0, 5.0), near)
    assert up.intervals is None  # it left again


def test_what_a_run_kept_at_a_load_is_what_it_had_longest_and_last_in_each_phase() -> None:
    of_phases = [[START, BEST, BEST], [BAD], [NEARLY, NEARLY, START]]
    records = [[record(number) for number in phase] for phase in of_phases]
    assert kept((100.0, 200.0, 100.0), records) == {100.0: {BEST, NEARLY, START}, 200.0: {BAD}}


def test_a_phase_in_which_no_interval_ended_is_an_error() -> None:
    run = trial("guided", [START, BEST], BEST)
    assert run.run is not None
    with pytest.raises(RuntimeError, match="no interval"):
        phases(run.run, run.requests, (15.0, 30.0, 15.0))


@pytest.mark.parametrize(("far_ms", "is_near"), [(18.6, True), (18.8, False)])
def test_near_the_best_of_a_load_are_those_within_a_tenth_of_it(far_ms: float, is_near: bool) -> None:
    """What was measured alone counts by as much less as the others turned out to be worth: 10 / 17."""
    alone_ms = {START: 20.0, BEST: 18.0, NEARLY: 17.0, BAD: far_ms}
    turns_ms = {START: (15.0, 15.0, 15.0), BEST: (7.0, 10.0, 10.0), NEARLY: (10.0, 10.0, 8.0)}
    seen = ClientLandscape(rounds({n: [ms] for n, ms in alone_ms.items()}), InTurns(rounds(turns_ms)))
    assert seen.turns.best_ms() == pytest.approx(10.0)
    assert seen.near() == ({BEST, NEARLY, BAD} if is_near else {BEST, NEARLY})
    ratio, error = seen.turns.ratio(START)
    assert (ratio, error) == (pytest.approx(1.5), pytest.approx(0.0))


def test_a_day_of_a_trace_of_minutes_takes_as_long_as_told(tmp_path: Path) -> None:
    minutes = tmp_path / "minutes.csv"
    minutes.write_text("minute,requests\n" + "\n".join(f"{k},60" for k in range(2880)))
    traffic = Traffic(str(minutes), 20.0, seed=0, day_s=100.0, offset_share=0.5)
    assert traffic.lasts_s() == pytest.approx(200.0)
    arguments = dict(zip(traffic.arguments()[::2], traffic.arguments()[1::2], strict=True))
    assert arguments["--speed-up"] == 864.0
    assert arguments["--offset-s"] == 86400.0


def test_a_trace_of_moments_lasts_as_long_as_its_rate_lets_it(tmp_path: Path) -> None:
    moments = tmp_path / "moments.csv"
    moments.write_text("t_s\n" + "\n".join(str(2 * k) for k in range(101)))
    assert Traffic(str(moments), 10.0, seed=0).lasts_s() == pytest.approx(10.0)
    assert "--speed-up" not in Traffic(str(moments), 10.0, seed=0).arguments()
    assert 20.0 < slowed(Traffic(str(moments), 10.0, seed=0), needed_s=20.0).lasts_s() < 21.0
    assert slowed(Traffic("poisson", 10.0, seed=0), needed_s=20.0).rate_per_s == 10.0
    assert Traffic("poisson", 10.0, seed=0).lasts_s() == math.inf


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"arrivals": ("poisson", "nowhere.csv")}, "cannot read the trace nowhere.csv: No such file"),
        ({"arrivals": ("often",)}, "unknown arrivals 'often'; expected poisson"),
        ({"agents": ("guided", "best")}, "unknown agent 'best'; known: guided, .*optuna-tpe, "),
        ({"agents": ("optuna-tpe",)}, "and guided among the agents"),
        ({"measurements": 9}, "--measurements must be at least 10, got 9"),
        ({"seeds": (0, 1, 0)}, "--seeds names one twice: 0 1 0"),
        ({"models": ("minilm", "nope")}, "unknown model 'nope'; known: .*minilm"),
        ({"agents": ("guided", "oracle")}, "unknown agent 'oracle'; known: guided, "),
        ({"interval_s": 1.0}, "--interval-s must be above 1, got 1"),
    ],
)
def test_what_would_end_a_comparison_later_is_refused_at_first(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Options(**changes)


def test_every_peer_runs_behind_the_guard_unless_nobody_does() -> None:
    assert Options().agents[:3] == ("guided", "guided-again", "rule")
    assert TrialPlan(24, 4.0).guarded
    assert Options(unguarded=True).unguarded


@pytest.mark.parametrize("guarded", [True, False])
def test_the_guard_ends_what_a_peer_overloads_and_refuses_it_from_then_on(
    guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One instance answers 50 of 80 requests a second, and the peer proposes nothing else."""

    class Reckless(Agent):
        def act(self, observation: np.ndarray) -> np.ndarray:
            return SPACE.action(START)

        def update(self, transition: Transition) -> None: ...

    monkeypatch.setattr(served_agents, "LiveServing", live_by_its_clock)
    target = FakeTarget(FakeClock(), rate_per_s=80.0)
    served = Served(target, SPACE, {"instances": 2}, 0, 5.0, 1.0, tmp_path)  # type: ignore[arg-type]
    plan = TrialPlan(14, 5.0, guarded=guarded)
    found = _tuned("quick-search", Reckless(), served, plan, lambda: False)
    tried = [each for each in found.tuning if each.number == START]
    assert bool(tried[0].measurement.aborted) is guarded
    assert len(tried) == (1 if guarded else len(found.tuning))
    assert {each.decision for each in found.tuning[1:]} == ({"rollback", "refused"} if guarded else {"agent"})


def live_by_its_clock(
    target: FakeTarget, space: ConfigurationSpace, objective: object, interval_s: float, settle_s: float
) -> LiveServing:
    return live(target, space, interval_s=interval_s, settle_s=settle_s)


def test_those_that_may_still_be_the_best_are_measured_in_more_rounds() -> None:
    seen = InTurns(rounds({START: (40.0, 40.0), BEST: (10.0, 10.0), NEARLY: (12.0, 12.0), BAD: (13.0, 13.0)}))
    assert contenders(seen) == [BEST, NEARLY]
    assert contenders(InTurns(rounds({START: (40.0, 40.0), BEST: (10.0, 10.0)}))) == []


@pytest.mark.parametrize(
    "changed",
    [{"load": 0.5}, {"models": ("minilm", "burn")}, {"cores": 2}, {"interval_s": 10.0}, {"window_s": 15.0}],
)
def test_two_models_go_on_in_a_file_of_the_same_models_load_and_lengths_only(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    options = joint.Options(out=tmp_path / "rows.jsonl")
    joint.rows_of(options).add({"what": "rates", "found": {}})
    more = replace(options, seeds=3, rounds=4, agents=(joint.TOGETHER,))
    assert {"what": "rates"} in joint.rows_of(more)
    with pytest.raises(OtherSetting, match="and those wanted have " + next(iter(changed))):
        joint.rows_of(replace(options, **changed))
