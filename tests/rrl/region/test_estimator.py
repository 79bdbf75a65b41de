"""The neural latency estimator, and training in the background."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from threading import Event

import numpy as np
import pytest

from rrl.region import estimator as estimator_module
from rrl.region.estimator import BackgroundTraining, EstimatorSettings, InlineTraining, LatencyEstimator
from rrl.region.q_learning import RELEASED_EXACT
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 3, 4], max_batch_size=[1, 2, 4, 8])


def true_cost(number: int, rate_per_s: float) -> float:
    instances, batch = SPACE.features[number]
    return 20.0 * rate_per_s / 40.0 * math.exp(1.5 * instances - 2.0 * batch)


def estimator_with_samples(settings: EstimatorSettings, seed: int = 0) -> LatencyEstimator:
    estimator = LatencyEstimator(len(SPACE.knobs), settings, seed)
    for rate_per_s in (40.0, 80.0):
        for number in range(len(SPACE)):
            estimator.add(rate_per_s, SPACE.features[number], true_cost(number, rate_per_s))
    return estimator


def test_it_learns_how_cost_depends_on_knobs_and_load() -> None:
    estimator = estimator_with_samples(EstimatorSettings(max_steps=400))
    estimator.train()
    for rate_per_s in (40.0, 80.0):
        expected = [true_cost(number, rate_per_s) for number in range(len(SPACE))]
        error = np.log(estimator.estimate(rate_per_s, SPACE.features) / expected)
        assert np.abs(error).max() < 0.2


def test_the_scripts_settings_learn_raw_milliseconds() -> None:
    settings = replace(RELEASED_EXACT.estimator, max_steps=1000)
    estimator = estimator_with_samples(settings)
    estimator.train()
    expected = np.array([true_cost(number, 80.0) for number in range(len(SPACE))])
    found = estimator.estimate(80.0, SPACE.features)
    assert np.corrcoef(found, expected)[0, 1] > 0.9
    assert 0.5 < found.mean() / expected.mean() < 1.5


def test_warm_rounds_go_on_from_the_last_network_and_cold_ones_do_not() -> None:
    def loss_after(rounds: int, warm_start: bool) -> float:
        estimator = estimator_with_samples(
            EstimatorSettings(max_steps=20, warm_start=warm_start, minibatch=0)
        )
        return [estimator.train().loss for _ in range(rounds)][-1]

    assert loss_after(10, warm_start=True) < 0.2 * loss_after(1, warm_start=True)
    assert loss_after(10, warm_start=False) > 0.2 * loss_after(1, warm_start=False)


def test_the_same_seed_gives_the_same_estimates() -> None:
    def estimates(seed: int) -> np.ndarray:
        estimator = estimator_with_samples(EstimatorSettings(max_steps=10, minibatch=8), seed)
        estimator.train()
        return estimator.estimate(50.0, SPACE.features)

    np.testing.assert_array_equal(estimates(1), estimates(1))
    assert (estimates(1) != estimates(2)).any()


def test_a_round_ends_at_the_loss_threshold_or_when_patience_runs_out() -> None:
    easy = LatencyEstimator(2, EstimatorSettings(max_steps=500, loss_threshold=0.5), seed=0)
    easy.add(40.0, SPACE.features[0], 10.0)
    assert easy.train().steps == 1
    impatient = EstimatorSettings(
        max_steps=5000, loss_threshold=0.0, check_every_steps=5, patience_checks=3, minibatch=8
    )
    assert estimator_with_samples(impatient).train().steps < 5000


def test_estimates_are_those_of_the_last_finished_round() -> None:
    estimator = estimator_with_samples(EstimatorSettings(max_steps=5))
    assert not estimator.trained
    estimator.train()
    before = estimator.estimate(40.0, SPACE.features)
    during: list[np.ndarray] = []

    def stop_after_three() -> bool:
        during.append(estimator.estimate(40.0, SPACE.features))
        return len(during) > 3

    estimator.train(stop_after_three)
    np.testing.assert_array_equal(during, [before] * 4)
    np.testing.assert_array_equal(estimator.estimate(40.0, SPACE.features), before)


def test_the_newest_samples_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what is remembered of a long run has an end, and what a machine was long ago is forgotten."""
    monkeypatch.setattr(estimator_module, "MAX_SAMPLES", 12)
    estimator = estimator_with_samples(EstimatorSettings(max_steps=400))
    for number in range(12):
        estimator.add(40.0, SPACE.features[number], 3.0 * true_cost(number, 40.0))
    assert len(estimator) == 12
    assert estimator.train().samples == 12
    expected = [3.0 * true_cost(number, 40.0) for number in range(12)]
    assert np.abs(np.log(estimator.estimate(40.0, SPACE.features[:12]) / expected)).max() < 0.3


def test_far_loads_and_costs_stay_finite() -> None:
    estimator = estimator_with_samples(EstimatorSettings(max_steps=20))
    estimator.add(0.0, SPACE.features[0], 1e12)
    estimator.train()
    for rate_per_s in (0.0, 1e9):
        estimates = estimator.estimate(rate_per_s, SPACE.features)
        assert np.isfinite(estimates).all()
        assert (estimates > 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "seconds"}, "must be 'log' or 'raw', got 'seconds'"),
        ({"max_steps": 0}, "at least 1"),
        ({"minibatch": -1}, "must not be negative"),
        ({"huber_delta": 0.0}, "huber_delta must be positive"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EstimatorSettings(**settings)  # type: ignore[arg-type]


class Rounds:
    """A training function that a test holds up and lets go."""

    def __init__(self) -> None:
        self.started, self.go_on = Event(), Event()
        self.finished = 0

    def train(self, stop: Callable[[], bool]) -> None:
        self.started.set()
        assert self.go_on.wait(30)
        self.finished += 1


def test_requests_during_a_round_add_up_to_one_more() -> None:
    rounds = Rounds()
    training = BackgroundTraining(rounds.train)
    training.request()
    assert rounds.started.wait(30)
    for _ in range(5):
        training.request()  # returns at once: the round is held up
    assert rounds.finished == 0
    rounds.go_on.set()
    training.wait()
    assert rounds.finished == 2
    training.close()


def test_an_exception_in_the_thread_surfaces_at_the_next_request_and_at_close() -> None:
    started = Event()

    def fail(stop: Callable[[], bool]) -> None:
        started.set()
        raise ArithmeticError("the network exploded")

    training = BackgroundTraining(fail)
    training.request()
    with pytest.raises(ArithmeticError, match="exploded"):
        training.wait()
    started.clear()
    training.request()
    assert started.wait(30)
    with pytest.raises(ArithmeticError, match="exploded"):
        training.close()


def test_closing_stops_a_long_round() -> None:
    started = Event()

    def endless(stop: Callable[[], bool]) -> None:
        while not stop():
            started.set()

    training = BackgroundTraining(endless)
    training.request()
    assert started.wait(30)
    training.close()
    training.close()  # harmless


def test_inline_training_trains_before_it_returns() -> None:
    trained: list[int] = []
    InlineTraining(lambda: trained.append(1)).request()
    assert trained == [1]
