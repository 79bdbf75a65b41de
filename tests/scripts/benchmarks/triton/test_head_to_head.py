"""What a comparison on a stock Triton is asked for, and whether its claims hold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from scripts.benchmarks.triton.head_to_head import Options, _outcome
from scripts.benchmarks.triton.head_to_head_trials import TrialPlan
from scripts.figures.head_to_head import reached
from tests.support.runs.trials import BAD, BEST, NEARLY, START, case, kept_row, trial


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
