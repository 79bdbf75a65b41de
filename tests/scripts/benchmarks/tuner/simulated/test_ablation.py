"""`scripts/bench ablation`: settings are compared by machine, and what is beyond noise is marked."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from baselines.comparison.decisions import run_dtype
from scripts.benchmarks.tuner.simulated import ablation
from scripts.benchmarks.tuner.simulated.ablation import AS_IT_IS, Ablated
from scripts.benchmarks.tuner.simulated.rows import SimulatedRow

HOME = SimulatedRow("family", "model", "stationary")


def ablated(*whole_run: float) -> Ablated:
    return Ablated(whole_run, len(whole_run), 4.0)


def test_the_columns_are_over_machines() -> None:
    rows = np.zeros(40, run_dtype(("instances",)))
    rows["expected_ms"], rows["oracle_ms"] = 110.0, 100.0
    rows["instances"][20:] = 1
    far = rows.copy()
    far["expected_ms"] = 200.0
    found = Ablated.of([rows, far], ("instances",))
    assert found.whole_run == pytest.approx((1.1, 2.0))
    assert (found.soon, found.changes) == (1, 1.0)


def test_what_all_machines_share_is_beyond_noise_and_what_they_do_not_share_is_not() -> None:
    usual = ablated(1.0, 2.0, 4.0)
    ratio, error = ablated(1.1, 2.2, 4.4).over(usual)
    assert (ratio, error) == (pytest.approx(1.1), pytest.approx(0.0, abs=1e-9))
    assert ablation.is_beyond(ratio, error)
    assert ablation.is_beyond(1 / ratio, error)
    ratio, error = ablated(1.1, 1.9, 4.0).over(usual)
    assert not ablation.is_beyond(ratio, error)
    assert not ablation.is_beyond(*ablated(3.0).over(ablated(1.0)))  # one machine shows nothing


def test_the_table_has_a_line_for_each_change() -> None:
    found = {AS_IT_IS: [ablated(1.0, 1.21)], "horizon=1": [ablated(2.0, 2.42)]}
    head, _, usual, changed = ablation.table([HOME], found)
    assert head == "| changed to | family/model/stationary | soon | changes |"
    assert usual == "| as it is | 1.100 | 2/2 | 4.0 |"
    assert changed == "| `horizon=1` | 2.000 ± 0.000* | 2/2 | 4.0 |"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"changes": ("magic=1",)}, "magic"),
        ({"rows": ("amdahl",)}, "none begins with amdahl"),
        ({"decisions": 30}, "--decisions must be above 30"),
        ({"seeds": "x"}, "cannot read the seeds"),
    ],
)
def test_wrong_use_is_refused(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ablation.Options(**options)


def test_a_change_to_what_is_anyway_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--seeds", "3-4", "--rows", "usl", "--decisions", "31", "--folder", str(tmp_path)]
    changes = ["--changes", "contenders=16", "horizon=1"]
    monkeypatch.setattr(sys, "argv", ["bench", "ablation", *flags, *changes])
    result = ablation.run()
    lines = {line.split(" | ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "1.000 ± 0.000 |" in lines["| `contenders=16`"]
    assert "1.000 ± 0.000 |" not in lines["| `horizon=1`"]
    assert result["value"] >= 1
    assert math.isfinite(result["value"])
    assert list(tmp_path.rglob("usl*/*.npy")) == []
