"""`scripts/bench model-error`: what it takes for a prediction, and how it counts what was learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rrl import journal
from scripts.benchmarks.tuner.real_traffic.model_error import (
    Options,
    PredictedError,
    learned,
    likelihood,
    predictions,
    without,
)

RECORDED = Path(__file__).parents[4] / "recorded"


def test_nothing_is_expected_of_the_first_interval_and_what_was_seen_of_later_ones() -> None:
    found = list(predictions(RECORDED / "embedded"))
    assert (found[0].expected, found[0].first) == (0.0, True)
    assert np.abs([each.expected for each in found[3:]]).min() > 0
    assert min(each.variance for each in found) > 0


def test_an_interval_is_the_first_of_its_configuration_once() -> None:
    _, records = journal.read(RECORDED / "triton")
    found = list(predictions(RECORDED / "triton"))
    assert 1 < sum(each.first for each in found) <= len({each.number for each in records})
    assert len(found) <= len(records)


def test_what_was_learned_counts_where_the_queueing_model_is_always_wrong_alike() -> None:
    wrong = [PredictedError(False, error, 0.05**2, 0.3, 0.02) for error in (0.28, 0.3, 0.33)]
    assert likelihood(wrong, learned).mean() > likelihood(wrong, without).mean() + 1
    right = [each._replace(error=each.error - 0.3) for each in wrong]
    assert likelihood(right, learned).mean() < likelihood(right, without).mean() - 1


def test_a_folder_without_a_journal_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no journal\.jsonl in"):
        Options(runs=(tmp_path,))
