"""`rrl-compare`: agents x machines x seeds on one bench, and what their decisions cost."""

from __future__ import annotations

from baselines.comparison.comparison import run_comparison
from baselines.comparison.decisions import read_decisions, write_decisions
from baselines.comparison.settings import ComparisonSettings

__all__ = ["ComparisonSettings", "read_decisions", "run_comparison", "write_decisions"]
