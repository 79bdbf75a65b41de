"""What the runs of a comparison on a stock Triton come to together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.benchmarks.triton.head_to_head_report import FIXED
from scripts.figures.head_to_head import by_workload, compared, head_to_head_tables, kept_runs
from tests.support.runs.trials import BAD, BEST, NEARLY, START, case, kept_row, trial


def row_of(seed: int, latencies_s: Sequence[float]) -> dict[str, Any]:
    """A run in which the default agent and the rule of thumb had these latencies."""
    peers = {name: {"latency_s": s} for name, s in zip(("guided", "rule"), latencies_s, strict=True)}
    return {"seed": seed, "peers": peers}


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
