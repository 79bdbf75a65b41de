"""`scripts/bench break-even`: what its columns say of two machines."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scripts.benchmarks.tuner.simulated.break_even import BreakEven

RULE_MS = np.full((2, 40), 100.0)


def test_the_columns_are_over_machines() -> None:
    """One machine pays with its first ten decisions, and the other never gets them back."""
    tuned_ms = np.array([[200.0] * 10 + [50.0] * 30, [200.0] * 10 + [100.0] * 30])
    found = BreakEven.of(tuned_ms, RULE_MS)
    assert found.gain == pytest.approx(math.sqrt(4000 / 3500 * 4000 / 5000))
    assert found.after_30 == pytest.approx(math.sqrt(2.0))
    assert found.least == pytest.approx(0.8)
    assert (found.cheaper, found.machines) == (1, 2)
    assert found.even == math.inf


def test_it_is_even_from_the_decision_on_after_which_the_sum_stays_below() -> None:
    tuned_ms = np.array([[200.0] * 10 + [50.0] * 30] * 2)
    assert BreakEven.of(tuned_ms, RULE_MS).even == 30
    assert BreakEven.of(0.5 * RULE_MS, RULE_MS).even == 0
