"""The traffic that a benchmark sends to a stock Triton."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from scripts.benchmarks.triton.head_to_head_trials import slowed
from scripts.benchmarks.triton.served import Traffic


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
