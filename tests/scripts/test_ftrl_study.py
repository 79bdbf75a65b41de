"""The study of optimisers for RRL's estimator: its stream, its error, and all of it in miniature."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rrl.region.ftrl import FTRL
from scripts.figures.rrl import ftrl
from scripts.figures.rrl.optimiser_stream import (
    RADIUS,
    RATES_PER_S,
    SLOWER,
    WORST_ERROR,
    LatencyStream,
    StudiedEstimator,
    errors,
    without_network,
)

KNOBS = "instances=1:3,inter_op_threads=1:3"


@pytest.fixture(scope="module")
def stream() -> LatencyStream:
    return LatencyStream.of_machine(900, 16, KNOBS)


def test_a_stream_changes_its_load_every_quarter_and_its_machine_at_half(stream: LatencyStream) -> None:
    assert stream.rates_per_s.tolist() == 2 * ([RATES_PER_S[0]] * 4 + [RATES_PER_S[1]] * 4)
    assert stream.quarters.tolist() == sorted([0, 1, 2, 3] * 4)
    assert (stream.expected_ms[2] > stream.expected_ms[0]).all()
    assert stream.expected_ms[2].min() / stream.expected_ms[0].min() >= 0.99 * SLOWER
    again = LatencyStream.of_machine(900, 16, KNOBS)
    assert again.costs_ms.tolist() == stream.costs_ms.tolist()


def test_the_error_without_a_network_is_how_a_region_differs(stream: LatencyStream) -> None:
    number = int(stream.numbers[0])
    region = [other for other in stream.space.region(number, RADIUS).tolist() if other != number]
    ratios = stream.expected_ms[0][region] / stream.expected_ms[0][number]
    assert without_network(stream)[0] == pytest.approx(
        np.mean(np.minimum(np.abs(np.log(ratios)), WORST_ERROR))
    )


def test_errors_begin_with_the_first_training_and_a_network_of_nans_has_the_worst(
    stream: LatencyStream,
) -> None:
    broken = StudiedEstimator(2, 0, partial(torch.optim.SGD, lr=1e30), goes_on=True)
    found = errors(stream, broken)
    assert np.isnan(found[:4]).all()
    assert found[-1] == WORST_ERROR


def test_an_optimisers_state_goes_on_or_begins_anew() -> None:
    kept, anew = (
        StudiedEstimator(2, 0, partial(FTRL, lr=0.1, start_from_weights=True), goes_on)
        for goes_on in (True, False)
    )
    assert kept._new_optimizer() is kept._new_optimizer()
    assert anew._new_optimizer() is not anew._new_optimizer()


def test_what_is_studied_as_ftrl_is_not_adagrad() -> None:
    """After the same gradients its weights are others, with the learning rate that AdaGrad has."""
    start = torch.tensor([0.5, -0.3])
    ends = {}
    for name in (*ftrl.OF_FTRL, "adagrad"):
        w = start.clone().requires_grad_()
        optimizer = ftrl.STUDIED[name].at(0.1)([w])
        for _ in range(3):
            w.grad = torch.tensor([0.2, 0.1])
            optimizer.step()
        ends[name] = w.detach()
    for name in ftrl.OF_FTRL:
        assert not torch.allclose(ends[name], ends["adagrad"], atol=1e-3)


def test_insensitivity_is_the_width_around_the_best() -> None:
    rates = (0.01, 0.1, 1.0, 10.0)
    assert ftrl.decades_near_best(rates, np.array([1.2, 1.0, 1.1, 2.0])) == pytest.approx(2.0)
    assert ftrl.decades_near_best(rates, np.array([1.0, 2.0, 1.0, 2.0])) == 0.0


def test_the_study_in_miniature(tmp_path: Path) -> None:
    setting = ftrl.FTRLSetting(8, KNOBS, (0.01, 0.1), (900,), ("ftrl-from-weights", "adam"))
    result = ftrl.run(tmp_path, 1, setting)
    rows = (tmp_path / ftrl.ROWS).read_text().splitlines()
    assert len(rows) == 2 * (2 * 2 + 1)
    assert len(result.claims) == 1 + 1 + 1 + 3
    assert ftrl.run(tmp_path, 1, setting) == result
    assert len((tmp_path / ftrl.ROWS).read_text().splitlines()) == len(rows)
