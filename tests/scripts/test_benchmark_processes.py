"""Loads of a benchmark that end badly, or too soon, end it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scripts.serving.processes import check_under_way, ended_well


def process(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_load_that_ended_badly_tells_nothing() -> None:
    with process("") as well, process("raise SystemExit(3)") as badly:
        ended_well(well, 60.0)
        with pytest.raises(RuntimeError, match="the load ended with 3"):
            ended_well(badly, 60.0)


def test_a_load_must_last_for_as_long_as_what_is_tuned_under_it() -> None:
    with process("input()") as load:
        check_under_way(load, "guided")
        load.communicate("\n", timeout=60.0)
        with pytest.raises(RuntimeError, match="the load ended with 0 before guided was through"):
            check_under_way(load, "guided")
