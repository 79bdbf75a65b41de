"""What the default agent's prior gets wrong, worked out by hand (RRL, equations 1 and 2)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rrl.guided.region_residual import RegionResidual
from rrl.guided.settings import GUIDED
from tests.support.guided_agents import LINE, RATE_PER_S

SD = 0.1
PREDICTED_MS = 50.0 * np.array([0.9, 1.1])
VARIANCE = (math.log(1.1 / 0.9) / 2) ** 2  # of ln of these


class KnownNetwork:
    """An estimator whose network says what the test wants."""

    def __init__(self, ratios: list[float], trained: bool = True) -> None:
        self.ratios, self.trained = np.array(ratios), trained
        self.samples: list[float] = []
        self.rounds = 0

    def __len__(self) -> int:
        return len(self.samples)

    def add(self, rate_per_s: float, knob_features: np.ndarray, cost: float) -> None:
        self.samples.append(cost)

    def estimate(self, rate_per_s: float, knob_features: np.ndarray) -> np.ndarray:
        result: np.ndarray = self.ratios[np.rint(2 * knob_features[:, 0]).astype(int)]
        return result

    def train(self) -> None:
        self.rounds += 1


def residual_of(
    network: KnownNetwork, radius: float = 2.0, changes_cost: bool = False, common: float = 0.0
) -> RegionResidual:
    settings = replace(GUIDED, radius=radius, residual_sd=SD, residual_common=common)
    return RegionResidual(LINE, settings, changes_cost, network)  # type: ignore[arg-type]


def learning_rate(count: int, sd: float = SD) -> float:
    return 1 / (count + VARIANCE / sd**2)


def test_an_untrained_network_lets_the_region_share_what_was_observed() -> None:
    network = KnownNetwork([1, 1, 1], trained=False)
    residual = residual_of(network, radius=1.0)
    residual.learn(0, RATE_PER_S, 60.0, PREDICTED_MS)
    expected = learning_rate(1) * math.log(1.2)
    np.testing.assert_allclose(residual.log_ratio(RATE_PER_S), [expected, expected, 0.0])
    assert network.samples == pytest.approx([1.2])


def test_equation_1_adds_what_the_network_knows_and_equation_2_moves_towards_it() -> None:
    residual = residual_of(KnownNetwork([1.0, 1.3, 0.9]))
    residual.learn(1, RATE_PER_S, 62.5, PREDICTED_MS)
    α = learning_rate(1)
    estimated = np.log([1.25 * 1.0 / 1.3, 1.25, 1.25 * 0.9 / 1.3])
    np.testing.assert_allclose(residual.log_ratio(RATE_PER_S), α * estimated)
    residual.learn(1, RATE_PER_S, 55.0, PREDICTED_MS)
    own = α * estimated[1] + learning_rate(2) * (math.log(1.1) - α * estimated[1])
    others = np.log([1.1 * 1.0 / 1.3, 1.1 * 0.9 / 1.3])  # not observed themselves: still n = 1
    unseen = α * estimated[[0, 2]] + α * (others - α * estimated[[0, 2]])
    np.testing.assert_allclose(residual.log_ratio(RATE_PER_S), [unseen[0], own, unseen[1]])


def test_what_was_observed_itself_is_not_changed_by_its_neighbours() -> None:
    residual = residual_of(KnownNetwork([1, 1, 1]))
    residual.learn(0, RATE_PER_S, 60.0, PREDICTED_MS)
    own = residual.log_ratio(RATE_PER_S)[0]
    residual.learn(1, RATE_PER_S, 25.0, PREDICTED_MS)
    assert residual.log_ratio(RATE_PER_S)[0] == own
    assert residual.log_ratio(RATE_PER_S)[2] < 0


def test_what_is_seen_itself_does_not_build_upon_what_its_neighbours_made_likely() -> None:
    """Where changes cost; elsewhere the next ones tell soon enough."""
    residual = residual_of(KnownNetwork([1.0, 0.4, 1.0]), changes_cost=True)
    for _ in range(5):
        residual.learn(0, RATE_PER_S, 50.0, PREDICTED_MS)
    assert residual.log_ratio(RATE_PER_S)[1] < -0.4  # the network's belief
    residual.learn(1, RATE_PER_S, 55.0, PREDICTED_MS)
    α = learning_rate(1, GUIDED.residual_sd_costly)
    assert residual.log_ratio(RATE_PER_S)[1] == pytest.approx(α * math.log(1.1))


def test_where_changes_cost_what_is_seen_counts_for_more() -> None:
    residual = residual_of(KnownNetwork([1, 1, 1]), changes_cost=True)
    residual.learn(0, RATE_PER_S, 60.0, PREDICTED_MS)
    α = learning_rate(1, GUIDED.residual_sd_costly)
    assert residual.log_ratio(RATE_PER_S)[0] == pytest.approx(α * math.log(1.2))


@pytest.mark.parametrize("changes_cost", [True, False])
def test_where_changes_cost_one_quick_interval_does_not_make_the_unseen_look_better_than_the_seen(
    changes_cost: bool,
) -> None:
    residual = residual_of(KnownNetwork([1, 1, 1]), changes_cost=changes_cost)
    for ms in [50.0] * 9 + [35.0]:
        residual.learn(0, RATE_PER_S, ms, PREDICTED_MS)
    seen, unseen, _ = residual.log_ratio(RATE_PER_S)
    assert seen < 0
    assert (unseen >= seen) == changes_cost


def test_where_changes_cost_most_of_what_the_prior_is_wrong_by_is_expected_of_all_that_was_not_seen() -> None:
    free, costly = (
        residual_of(KnownNetwork([1, 1, 1]), 1.0, changes_cost, common=0.75) for changes_cost in (False, True)
    )
    for residual in (free, costly):
        residual.learn(0, RATE_PER_S, 60.0, PREDICTED_MS)
    seen, beside, far = costly.log_ratio(RATE_PER_S)
    assert 0 < far < beside < seen
    assert far == pytest.approx(0.75 * seen)
    assert free.log_ratio(RATE_PER_S)[2] == 0.0
    costly.learn(1, RATE_PER_S, 30.0, PREDICTED_MS)
    seen_now, _, far_now = costly.log_ratio(RATE_PER_S)
    assert seen_now == seen
    assert far_now < far
    for _ in range(30):  # elsewhere, until all that was seen here counts for little
        costly.learn(2, 10 * RATE_PER_S, 60.0, PREDICTED_MS)
    seen_now, beside_now, far_now = costly.log_ratio(RATE_PER_S)
    assert beside_now < far_now < seen_now
    assert far_now < 0


def test_where_changes_cost_what_was_seen_long_ago_gives_way_to_what_neighbours_show() -> None:
    """A single interval may have met a slow spell of the machine; it counts for half after 21 others."""
    residual = residual_of(KnownNetwork([1, 1, 1]), changes_cost=True)
    residual.learn(0, RATE_PER_S, 75.0, PREDICTED_MS)
    own = residual.log_ratio(RATE_PER_S)[0]
    for _ in range(20):
        residual.learn(1, RATE_PER_S, 50.0, PREDICTED_MS)
    assert residual.log_ratio(RATE_PER_S)[0] == own > 0.2
    for _ in range(20):
        residual.learn(1, RATE_PER_S, 50.0, PREDICTED_MS)
    assert abs(residual.log_ratio(RATE_PER_S)[0]) < 0.01


def test_what_is_as_good_as_forgotten_is_seen_as_if_for_the_first_time() -> None:
    residual = residual_of(KnownNetwork([1, 1, 1]), radius=0.0, changes_cost=True)
    residual.learn(0, RATE_PER_S, 75.0, PREDICTED_MS)
    first = residual.log_ratio(RATE_PER_S)[0]
    for _ in range(25):
        residual.learn(1, RATE_PER_S, 50.0, PREDICTED_MS)
    residual.learn(0, RATE_PER_S, 75.0, PREDICTED_MS)
    assert residual.log_ratio(RATE_PER_S)[0] == first


def test_where_changes_cost_what_is_seen_again_and_again_does_not_harden() -> None:
    """Its mean is that of about the last thirty intervals."""
    residual = residual_of(KnownNetwork([1, 1, 1]), changes_cost=True)
    for ms in [50.0] * 300 + [75.0] * 90:
        residual.learn(0, RATE_PER_S, ms, PREDICTED_MS)
    now = residual.log_ratio(RATE_PER_S)[0]
    assert 0.94 * math.log(1.5) < now < math.log(1.5)


def test_what_an_interval_says_against_the_prior_is_bounded() -> None:
    residual = residual_of(KnownNetwork([1, 1, 1], trained=False))
    residual.learn(0, RATE_PER_S, 50.0 * 1000, PREDICTED_MS)
    np.testing.assert_allclose(residual.log_ratio(RATE_PER_S), learning_rate(1))


def test_load_levels_are_perceived_apart_and_all_of_them_forgotten() -> None:
    residual = residual_of(KnownNetwork([1, 1, 1]))
    residual.learn(0, RATE_PER_S, 60.0, PREDICTED_MS)
    residual.learn(0, 3 * RATE_PER_S, 40.0, PREDICTED_MS)
    assert (residual.log_ratio(RATE_PER_S) > 0).all()
    assert (residual.log_ratio(3 * RATE_PER_S) < 0).all()
    residual.forget()
    assert not residual.log_ratio(RATE_PER_S).any()
    assert not residual.log_ratio(3 * RATE_PER_S).any()


def test_the_network_is_trained_every_few_intervals() -> None:
    network = KnownNetwork([1, 1, 1])
    residual = residual_of(network)
    for _ in range(2 * GUIDED.training_every):
        residual.learn(0, RATE_PER_S, 60.0, PREDICTED_MS)
    residual.finish_training()
    assert network.rounds == 2
    residual.close()
