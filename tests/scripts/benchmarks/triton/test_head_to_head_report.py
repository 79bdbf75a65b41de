"""What a comparison on a stock Triton counts of each run, and how it is told."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rrl.space import ConfigurationSpace
from scripts.benchmarks.triton.head_to_head_report import (
    FIXED,
    Trial,
    changes,
    client_ms,
    results,
    table,
    write_intervals,
)
from scripts.benchmarks.triton.head_to_head_trials import _finalists
from serving_adapter.load.options import LoadOptions
from tests.support.client_requests import requests
from tests.support.runs.trials import BAD, BEST, INTERVAL_S, NEARLY, START, TRUE_MS, case, record, trial


def settled(numbers: Sequence[int], left: int) -> tuple[int | None, int | None]:
    result = results(case(trial("optuna-tpe", numbers, left)))["optuna-tpe"]
    return result.settled, result.knew


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


def test_a_failed_request_harms_as_much_as_the_longest_wait() -> None:
    run = trial("guided", [START, BAD, BEST, BEST, BEST, BEST], left=BEST)
    run.requests.failed[10:20] = True
    found = results(case(run))["guided"]
    assert found.latency_s == pytest.approx((10 * 40 + 40 * 10) / 1e3 + 10 * LoadOptions.timeout_s)
    assert (found.failures, found.over_limit) == (10, 20)


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
