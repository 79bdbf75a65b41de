"""Fakes, real servers and recorded runs that several test modules share."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
"""The repository's root: sub-processes that import `tests.support` have it on their path."""
