"""`scripts/bench reach`: its rows, its columns and their limits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from baselines.comparison.decisions import run_dtype
from rrl.guided.settings import GUIDED
from scripts.benchmarks.tuner.simulated import reach
from scripts.benchmarks.tuner.simulated.given_settings import guided_settings
from scripts.benchmarks.tuner.simulated.rows import ROWS, SimulatedRow, changes_of, rows_named, runs_of

HOME, JUDGE = SimulatedRow("family", "model", "stationary"), SimulatedRow("usl", "model", "stationary")

KNOBS = ("instances",)


def decided(expected_ms: list[float], far: int = 0) -> np.ndarray:
    """A run's rows, where the oracle's latency is 100 ms and the p95 is far in the first few."""
    rows = np.zeros(len(expected_ms), run_dtype(KNOBS))
    rows["expected_ms"], rows["oracle_ms"], rows["best_p95_ms"] = expected_ms, 100.0, 300.0
    rows["p95_ms"] = np.where(np.arange(len(rows)) < far, 601.0, 599.0)
    rows["decide_ms"] = 4.0
    return rows


ORACLES = {name: decided([100.0] * 40, far=1) for name in ("a", "b")}


def test_the_columns_are_over_machines() -> None:
    runs = {"a": decided([200.0] * 5 + [100.0] * 35, far=2), "b": decided([200.0] * 20 + [102.0] * 20, far=4)}
    found = reach.ReachLine.of(runs, ORACLES, KNOBS)
    assert (found.soon, found.machines) == (1, 2)
    assert found.first_ten == pytest.approx((1.5 * 2.0) ** 0.5)
    assert (found.far, found.oracle_far) == pytest.approx((3 / 40, 1 / 40))
    assert (found.after_30_median, found.after_30_worst) == pytest.approx((1.01, 1.02))
    assert list(found.after_30) == ["b", "a"]
    assert "b 1.020  a 1.000  of 2" in reach.worst_of(HOME, "guided", found)
    assert found.decide_p99_ms == 4.0


def test_a_run_whose_eleventh_decision_is_the_first_near_is_not_soon() -> None:
    runs = {
        "a": decided([200.0] * 9 + [100.0] * 31),
        "b": decided([200.0] * 10 + [100.0] * 30),
    }
    assert reach.ReachLine.of(runs, ORACLES, KNOBS).soon == 1


def test_a_change_is_one_of_any_number_of_knobs() -> None:
    rows = np.zeros(5, run_dtype(("instances", "intra_op_threads")))
    rows["instances"], rows["intra_op_threads"] = [1, 2, 2, 2, 1], [1, 2, 2, 1, 1]
    assert changes_of(rows, ("instances", "intra_op_threads")) == 3


def test_what_misses_its_limit_is_marked() -> None:
    near = reach.ReachLine.of({name: decided([100.0] * 40, far=2) for name in "ab"}, ORACLES, KNOBS)
    assert near.misses(reach.limits_of(HOME)) == set()
    late = reach.ReachLine.of(
        {name: decided([200.0] * 20 + [103.0] * 20, far=3) for name in "ab"}, ORACLES, KNOBS
    )
    assert late.misses(reach.limits_of(HOME)) == {"soon", "first ten", "p95 far", "median"}
    assert late.misses(reach.limits_of(JUDGE)) == {"first ten", "p95 far", "median"}
    assert reach.line_of(HOME, "guided", late).count("*") == 4
    assert "*" not in reach.line_of(HOME, "guided", near)


def test_rows_are_chosen_by_the_beginnings_of_their_names() -> None:
    assert rows_named([]) == list(ROWS)
    assert rows_named(["usl", "family/model/stat"]) == [HOME, JUDGE]
    with pytest.raises(ValueError, match=r"--rows: none begins with amdahl; known: family/model/stationary"):
        rows_named(["amdahl"])


def test_settings_reach_the_agents() -> None:
    found = guided_settings(["horizon=3.5", "change_share=0.2"])
    assert (found.horizon, found.change_share) == (3.5, 0.2)
    assert found.contenders == GUIDED.contenders
    assert guided_settings([]) == GUIDED


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"agents": ("alphago",)}, "unknown agent 'alphago'"),
        ({"agents": ("serf",)}, "unknown agent 'serf'"),
        ({"rows": ("amdahl",)}, "none begins with amdahl"),
        ({"decisions": 30}, "--decisions must be above 30"),
        ({"seeds": "x"}, "cannot read the seeds"),
        ({"settings": ("magic=1",)}, "magic"),
        ({"settings": ("errors=1",)}, "errors"),
        ({"settings": ("horizon=far",)}, "no value for horizon"),
    ],
)
def test_wrong_use_is_refused(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        reach.Options(**options)


def test_the_table_is_of_runs_and_goes_into_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second call finds the expected costs that the first one simulated, and the same figures."""
    out, costs = tmp_path / "reach.jsonl", tmp_path / "costs"
    flags = [
        "--seeds",
        "3",
        "--rows",
        "usl",
        "--agents",
        "guided",
        "random",
        "--decisions",
        "31",
        "--settings",
        "horizon=4",
    ]
    monkeypatch.setattr(sys, "argv", ["bench", "reach", *flags, "--out", str(out), "--folder", str(costs)])
    result = reach.run()
    assert "expected costs: 1 machines" in capsys.readouterr().out
    reach.run()
    told = capsys.readouterr().out
    assert "expected costs" not in told
    assert "seeds 3, 31 decisions, cores not told horizon=4" in told
    first, random, again, _ = map(json.loads, out.read_text().splitlines())
    assert (first["agent"], first["source"], first["settings"]) == ("guided", "usl", ["horizon=4"])
    assert "settings" not in random
    assert 1 <= first["whole_run"] < random["whole_run"]
    assert result["value"] == pytest.approx(first["whole_run"], abs=1e-4)
    assert first["commit"]
    times = {"decide_median_ms", "decide_p99_ms"}
    assert {k: v for k, v in first.items() if k not in times} == {
        k: v for k, v in again.items() if k not in times
    }
    assert list(costs.rglob("*.npy")) == []


@pytest.mark.parametrize(
    ("agent", "tell_cores", "told"), [("guided", False, None), ("guided", True, 14), ("rule", False, 14)]
)
def test_the_rule_is_told_the_cores_and_others_where_asked_for(
    agent: str, tell_cores: bool, told: int | None, tmp_path: Path
) -> None:
    (run,) = runs_of(JUDGE, "3", 31, tmp_path)
    assert run.scenario.cores == 14
    assert reach._job(run, agent, reach.Options(tell_cores=tell_cores)).settings.cores == told
