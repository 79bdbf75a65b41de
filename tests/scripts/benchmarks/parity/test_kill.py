"""`scripts/bench parity-kill`: what has to be there for its answers to show anything."""

from __future__ import annotations

from collections import Counter

import pytest

from scripts.benchmarks.parity.kill import outcome

ALL_EXACT = {"none": Counter(exact=100), "parity": Counter({"exact": 90, "reconstructed, same class": 10})}
ONE_FAILED = ALL_EXACT | {"parity": Counter(exact=99, failed=1)}


@pytest.mark.parametrize(
    ("tallies", "replaced", "holds"),
    [
        (ALL_EXACT, {"none": 30, "parity": 29}, True),
        (ALL_EXACT, {"none": 30, "parity": 0}, False),
        (ALL_EXACT, {"none": 0, "parity": 0}, False),
        (ONE_FAILED, {"none": 30, "parity": 29}, False),
    ],
)
def test_it_holds_where_workers_were_killed_and_nothing_was_lost(
    tallies: dict[str, Counter[str]], replaced: dict[str, int], holds: bool
) -> None:
    found = outcome(tallies, replaced)
    assert found["holds"] == holds
    assert found["replaced"] == replaced
