"""RRL's formulas, worked out by hand where the space is small enough."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rrl.agent import Task, Transition, observe
from rrl.load_levels import LoadLevels
from rrl.measurement import LatencySummary, Measurement
from rrl.region.estimator import EstimatorSettings
from rrl.region.q_learning import PAPER, RELEASED, TUNED, Perception, RegionQLearning, RRLSettings
from rrl.space import ConfigurationSpace

LINE = ConfigurationSpace.of(instances=[1, 2, 3])
RATE_PER_S = 40.0
LEVEL = LoadLevels().level(RATE_PER_S)
QUICK = EstimatorSettings(hidden=(4,), max_steps=1)


class FixedEstimator:
    """An estimator whose network says what the test wants."""

    def __init__(self, space: ConfigurationSpace, expected: list[float] | None) -> None:
        self._space = space
        self._expected = expected
        self.samples: list[float] = []

    @property
    def trained(self) -> bool:
        return self._expected is not None

    def add(self, rate_per_s: float, knob_features: np.ndarray, cost: float) -> None:
        self.samples.append(cost)

    def estimate(self, rate_per_s: float, knob_features: np.ndarray) -> np.ndarray:
        assert self._expected is not None
        matches = (knob_features[:, None, :] == self._space.features[None]).all(axis=2)
        return np.asarray(self._expected)[matches.argmax(axis=1)]


def agent_with_estimates(
    settings: RRLSettings,
    expected: list[float] | None,
    space: ConfigurationSpace = LINE,
    excluded: frozenset[int] = frozenset(),
) -> RegionQLearning:
    agent = RegionQLearning(
        Task(space, excluded=excluded),
        replace(settings, estimator=replace(settings.estimator, hidden=(4,), max_steps=1)),
    )
    agent.estimator = FixedEstimator(space, expected)  # type: ignore[assignment]
    agent._training.request = lambda: None  # type: ignore[method-assign]
    return agent


def transition(
    number: int,
    cost: float,
    rate_per_s: float = RATE_PER_S,
    next_rate_per_s: float | None = None,
    gap: str = "",
    space: ConfigurationSpace = LINE,
) -> Transition:
    def measured(rate: float) -> Measurement:
        return Measurement(10.0, round(10 * rate), round(10 * rate), 0, LatencySummary(mean_ms=cost), gap=gap)

    after = observe(measured(rate_per_s if next_rate_per_s is None else next_rate_per_s), space, number)
    return Transition(after, space.action(number), cost, after, measured(rate_per_s))


def test_q_starts_at_one_over_the_number_of_configurations_and_the_policy_is_then_uniform() -> None:
    agent = agent_with_estimates(PAPER, None)
    np.testing.assert_allclose(agent.policy(LEVEL), 1 / 3)
    agent.update(transition(0, 6.0))
    far = agent.policy(LEVEL + 5)  # a level without any update: all Q are Q_0 = 1/3 of the first cost
    np.testing.assert_allclose(far, 1 / 3)


def test_equation_1_anchors_the_estimate_at_the_observation() -> None:
    logarithmic = agent_with_estimates(PAPER, [10.0, 20.0, 40.0])
    logarithmic.update(transition(1, 30.0))  # Q_0 = 30/3, so γ min Q_0 = 9; r̂ = 30 · (10, 20, 40)/20; α = 1
    np.testing.assert_allclose(logarithmic.perceptions[LEVEL].q, [15 + 9, 30 + 9, 60 + 9])
    raw = replace(PAPER, estimator=EstimatorSettings(target="raw"), discount=0.0)
    additive = agent_with_estimates(raw, [10.0, 20.0, 40.0])
    additive.update(transition(1, 30.0))
    np.testing.assert_allclose(additive.perceptions[LEVEL].q, [20, 30, 50])


def test_equation_2_worked_out_by_hand() -> None:
    # δ = 1, γ = 0.5, α = 1/n, a network that knows no difference; every load at one level.
    agent = agent_with_estimates(replace(PAPER, radius=1.0, discount=0.5), [1.0, 1.0, 1.0])
    agent.update(transition(0, 12.0))  # Q_0 = 4; region {0, 1}: 12 + 0.5 · 4 = 14
    np.testing.assert_allclose(agent.perceptions[LEVEL].q, [14, 14, 4])
    agent.update(transition(2, 6.0))  # region {1, 2}: r + γ min Q = 6 + 2; n(1) = 2, so (14 + 8) / 2
    np.testing.assert_allclose(agent.perceptions[LEVEL].q, [14, 11, 8])
    agent.update(transition(1, 10.0))  # all three: 10 + 4 = 14; α = 1/2, 1/3, 1/2
    np.testing.assert_allclose(agent.perceptions[LEVEL].q, [14, 11 * 2 / 3 + 14 / 3, 11])


def test_the_bootstrap_comes_from_the_level_of_the_next_observation() -> None:
    agent = agent_with_estimates(replace(PAPER, radius=0.0, discount=0.5), None)
    for number in range(3):  # Q at a higher level: 90 + 0.5 · 30, the lowest; then it is itself the bootstrap
        agent.update(transition(number, 90.0, rate_per_s=400.0))
    high = agent.perceptions[LoadLevels().level(400.0)].q.min()
    agent.update(transition(0, 10.0, next_rate_per_s=400.0))
    assert agent.perceptions[LEVEL].q[0] == pytest.approx(10 + 0.5 * high)
    assert set(agent.perceptions) == {LEVEL, LoadLevels().level(400.0)}


def test_the_level_updated_is_that_of_the_measured_load_not_of_the_observation_before() -> None:
    agent = agent_with_estimates(PAPER, None)
    t = transition(0, 10.0, rate_per_s=400.0)
    agent.update(replace(t, observation=transition(0, 10.0, rate_per_s=10.0).observation))
    assert set(agent.perceptions) == {LoadLevels().level(400.0)}


def test_radius_0_is_point_based_q_learning() -> None:
    space = ConfigurationSpace.of(instances=[1, 2, 3], max_batch_size=[1, 2, 4])
    agent = agent_with_estimates(replace(PAPER, radius=0.0), list(range(1, 10)), space)
    rng = np.random.default_rng(0)
    q, n, first = np.full(9, math.nan), np.zeros(9), math.nan
    for _ in range(60):
        number, cost = int(rng.integers(9)), float(rng.uniform(5, 50))
        if math.isnan(first):
            first, q = cost, np.full(9, cost / 9)
        n[number] += 1
        q[number] += (cost + 0.9 * q.min() - q[number]) / n[number]
        agent.update(transition(number, cost, space=space))
    np.testing.assert_allclose(agent.perceptions[LEVEL].q, q)


@hypothesis_settings(deadline=None)
@given(number=st.integers(0, 24), radius=st.floats(0, 5), cost=st.floats(0.1, 1e4))
def test_outside_the_region_nothing_changes(number: int, radius: float, cost: float) -> None:
    space = ConfigurationSpace.of(instances=[1, 2, 3, 4, 5], max_batch_size=[1, 2, 4, 8, 16])
    agent = agent_with_estimates(replace(PAPER, radius=radius), list(np.linspace(1, 9, 25)), space)
    agent.update(transition(12, 100.0, space=space))
    before = agent.perceptions[LEVEL].q.copy()
    agent.update(transition(number, cost, space=space))
    outside = space.distances(number) > radius + 1e-6
    np.testing.assert_array_equal(agent.perceptions[LEVEL].q[outside], before[outside])
    inside = space.distances(number) <= radius
    assert (agent.perceptions[LEVEL].q[inside] != before[inside]).any()


@pytest.mark.parametrize("settings", [PAPER, TUNED])
def test_the_learning_rates_satisfy_the_papers_conditions(settings: RRLSettings) -> None:
    agent = agent_with_estimates(settings, None)
    n = np.arange(1, 100_001)
    α = agent._learning_rates(n)
    power = settings.learning_rate_power
    np.testing.assert_allclose(
        α, 1.0 / n**power
    )  # a p-series: Σ n^-p = ∞ for p <= 1, Σ n^-2p < ∞ for p > 0.5
    assert 0.5 < power <= 1
    assert ((α > 0) & (α <= 1)).all()


def test_counting_observations_estimates_anew_until_the_first_and_averages_from_then_on() -> None:
    agent = agent_with_estimates(replace(TUNED, learning_rate_power=1.0, radius=1.0), [1.0, 1.0, 1.0])
    agent.update(transition(0, 12.0))
    agent.update(transition(2, 6.0))
    np.testing.assert_allclose(agent.perceptions[LEVEL].q, [12, 6, 6])  # 1: the newest estimate; 0: observed
    agent.update(transition(1, 30.0))
    np.testing.assert_allclose(agent.perceptions[LEVEL].q, [12, 30, 6])  # observed neighbours keep their own
    agent.update(transition(1, 20.0))
    np.testing.assert_allclose(agent.perceptions[LEVEL].q, [12, 25, 6])


def test_before_any_network_is_finished_neighbours_are_taken_to_perform_alike() -> None:
    agent = agent_with_estimates(replace(PAPER, discount=0.0), None)
    agent.update(transition(0, 12.0))
    np.testing.assert_allclose(agent.perceptions[LEVEL].q, [12, 12, 12])


def test_as_released_the_network_is_mixed_in_everywhere_in_the_region_even_at_the_observation() -> None:
    agent = agent_with_estimates(RELEASED, [10.0, 20.0, 40.0])
    agent.update(transition(1, 100.0))  # Q starts at the first result everywhere
    np.testing.assert_allclose(agent.perceptions[0].q, [0.7 * 100 + 3, 0.7 * 100 + 6, 0.7 * 100 + 12])
    agent.update(transition(1, 5.0, rate_per_s=900.0))  # no load index in Q
    assert set(agent.perceptions) == {0}


def test_the_boltzmann_policy_worked_out_by_hand() -> None:
    agent = agent_with_estimates(replace(PAPER, radius=0.0, discount=0.0, inverse_temperature=2.0), None)
    for number, cost in enumerate((10.0, 20.0, 15.0)):
        agent.update(transition(number, cost))
    weights = np.exp([-2.0, -4.0, -3.0])  # β Q / r_min
    np.testing.assert_allclose(agent.policy(LEVEL), weights / weights.sum())


def test_the_released_policy_is_a_softmax_of_k_over_q_with_largest_exponent_500() -> None:
    agent = agent_with_estimates(RELEASED, None)
    agent.update(transition(0, 10.0))
    agent.perceptions[0].q = np.array([10.0, 10.1, 20.0])
    k = 500 * 10.0
    weights = np.exp(np.array([k / 10.0, k / 10.1, k / 20.0]) - 500)
    np.testing.assert_allclose(agent.policy(0), weights / weights.sum())


@hypothesis_settings(deadline=None)
@given(
    q=st.lists(st.floats(1e-9, 1e13), min_size=3, max_size=3),
    lowest=st.floats(1e-9, 1e12),
    released=st.booleans(),
)
def test_policies_sum_to_one_for_any_costs(q: list[float], lowest: float, released: bool) -> None:
    agent = agent_with_estimates(RELEASED if released else PAPER, None)
    level = 0 if released else LEVEL
    agent.perceptions[level] = Perception(np.array(q), np.ones(3, dtype=bool), np.ones(3, dtype=int), lowest)
    policy = agent.policy(level)
    assert policy.sum() == pytest.approx(1.0)
    assert (policy >= 0).all()


def test_huge_costs_do_not_overflow() -> None:
    agent = agent_with_estimates(TUNED, [1e-8, 1.0, 1e9])
    for number, cost in enumerate((1e-300, 1e300, 0.0)):
        agent.update(transition(number, cost))
    assert np.isfinite(agent.perceptions[LEVEL].q).all()
    assert agent.policy(LEVEL).sum() == pytest.approx(1.0)


def test_a_larger_beta_exploits_more() -> None:
    def share_of_best(β: float) -> float:
        agent = agent_with_estimates(replace(TUNED, inverse_temperature=β, radius=0.0), None)
        for number, cost in enumerate((10.0, 11.0, 12.0)):
            agent.update(transition(number, cost))
        return float(agent.policy(LEVEL)[0])

    assert share_of_best(0.0) == pytest.approx(1 / 3)
    assert 1 / 3 < share_of_best(5.0) < share_of_best(50.0)


@pytest.mark.parametrize("optimistic", [False, True])
def test_what_was_never_observed_is_hoped_to_cost_less_by_as_much_as_q_was_off(optimistic: bool) -> None:
    settings = replace(TUNED, optimistic=optimistic, radius=1.0)
    agent = agent_with_estimates(settings, [10.0, 20.0, 20.0])
    agent.update(transition(0, 10.0))  # Q_0 is the first cost, so it is not off
    agent.update(transition(1, 10.0))  # it was expected to cost 20: ln 2 off
    q = agent.perceptions[LEVEL].q
    assert q[2] == pytest.approx(10.0)  # the network takes it for as good as 1
    share = math.exp(-math.log(2) / 2) if optimistic else 1.0
    odds = math.exp(settings.inverse_temperature * (1 - share))
    policy = agent.policy(LEVEL)
    assert policy[2] / policy[1] == pytest.approx(odds)
    agent.update(transition(2, 10.0))
    np.testing.assert_allclose(agent.policy(LEVEL), 1 / 3)


def test_a_load_never_seen_starts_from_its_nearest_neighbour() -> None:
    agent = agent_with_estimates(TUNED, None)
    agent.update(transition(0, 30.0, rate_per_s=40.0))
    agent.update(transition(2, 10.0, rate_per_s=40.0))
    np.testing.assert_array_equal(agent.policy(LEVEL + 1), agent.policy(LEVEL))
    agent.update(transition(0, 90.0, rate_per_s=LoadLevels().rate_per_s(LEVEL + 1)))
    np.testing.assert_allclose(agent.perceptions[LEVEL + 1].q, [90, 90, 90])


def test_the_best_configuration_is_the_lowest_of_those_tried_or_estimated() -> None:
    agent = agent_with_estimates(replace(PAPER, radius=1.0), [30.0, 10.0, 20.0])
    assert agent.best_configuration(LEVEL) is None
    agent.update(transition(0, 30.0))  # 2 is out of reach; its optimistic Q_0 does not count
    assert agent.best_configuration(LEVEL) == 1
    assert agent.best_configuration(LEVEL + 3) == 1  # nearest level known
    assert agent.greedy(transition(0, 1.0).observation) == 1


def test_load_levels_lie_around_the_centre_given() -> None:
    levels = LoadLevels(2.0, centre_per_s=14.0)
    assert [levels.level(rate) for rate in (7.0, 10.1, 14.0, 19.5, 20.1, 28.0)] == [-1, 0, 0, 0, 1, 1]
    assert levels.rate_per_s(1) == 28.0
    with pytest.raises(ValueError, match="positive rate, got 0"):
        LoadLevels(2.0, centre_per_s=0.0)


def test_the_network_trains_after_every_so_many_samples() -> None:
    agent = agent_with_estimates(replace(PAPER, train_every=3), None)
    trained_on: list[int] = []
    samples = agent.estimator.samples  # type: ignore[attr-defined]
    agent._training.request = lambda: trained_on.append(len(samples))  # type: ignore[method-assign]
    for _ in range(7):
        agent.update(transition(1, 30.0))
    assert trained_on == [3, 6]


def test_nothing_is_learned_from_a_gap_or_without_a_cost() -> None:
    agent = agent_with_estimates(TUNED, None)
    agent.update(transition(0, 30.0, gap="the server restarted"))
    agent.update(transition(0, math.nan))
    assert agent.perceptions == {}
    assert len(agent.estimator.samples) == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"radius": -1.0}, "radius must not be negative"),
        ({"inverse_temperature": math.inf}, "inverse_temperature must be finite"),
        ({"discount": 1.0}, r"discount must be in \[0, 1\)"),
        ({"learning_rate": 0.0}, r"learning rate must be in \(0, 1\]"),
        ({"learning_rate_power": 0.5}, r"learning_rate_power must be in \(0.5, 1\]"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RRLSettings(**settings)  # type: ignore[arg-type]


def test_on_a_smooth_landscape_it_finds_half_the_starting_cost_within_thirty_decisions() -> None:
    space = ConfigurationSpace.of(
        instances=[1, 2, 3, 4],
        intra_op_threads=[1, 2],
        max_batch_size=[1, 2, 4, 8, 16],
        max_queue_delay_us=[0, 2000],
    )
    instances, intra, batch, delay = space.features.T
    costs = 20 * np.exp(
        3 * np.maximum(0, instances * (1 + intra) - 0.6) + 2.5 * (batch - 0.7) ** 2 + 0.3 * delay
    )
    start = space.number(
        {"instances": 4, "intra_op_threads": 1, "max_batch_size": 1, "max_queue_delay_us": 0}
    )
    agent = RegionQLearning(Task(space), TUNED, seed=3)
    noise = np.random.default_rng(4)
    t = transition(start, float(costs[start]), space=space)
    agent.update(t)
    for _ in range(30):
        number = space.number_of_action(agent.act(t.next_observation))
        t = transition(number, float(costs[number] * np.exp(0.05 * noise.standard_normal())), space=space)
        agent.update(t)
    best = agent.greedy(t.next_observation)
    assert best is not None
    assert costs[best] < costs[start] / 2
    assert costs[best] < 1.3 * costs.min()


@pytest.mark.parametrize("settings", [PAPER, RELEASED, replace(PAPER, inverse_temperature=0.0)])
def test_what_is_excluded_has_no_weight_however_low_its_q_is(settings: RRLSettings) -> None:
    agent = agent_with_estimates(
        replace(settings, radius=0.0, anchored=True), None, excluded=frozenset({0, 2})
    )
    np.testing.assert_array_equal(agent.policy(LEVEL), [0, 1, 0])
    agent.update(transition(1, 30.0))
    agent.update(transition(0, 0.001))  # in force though it is excluded
    np.testing.assert_array_equal(agent.policy(LEVEL), [0, 1, 0])
    assert agent.best_configuration(0 if settings.load_levels is None else LEVEL) == 1


def test_the_bootstrap_is_of_what_may_be_proposed() -> None:
    agent = agent_with_estimates(replace(PAPER, radius=0.0, discount=0.5), None, excluded=frozenset({1, 2}))
    agent.update(transition(0, 12.0))  # Q_0 = 4 everywhere: 12 + 0.5 · 4
    agent.update(transition(0, 12.0))  # α = 1/2, and the least Q is its own: (14 + 12 + 0.5 · 14) / 2
    assert agent.perceptions[LEVEL].q[0] == pytest.approx(16.5)


def test_where_only_what_is_excluded_is_known_none_is_best() -> None:
    agent = agent_with_estimates(replace(PAPER, radius=0.0), None, excluded=frozenset({0}))
    agent.update(transition(0, 12.0))
    assert agent.best_configuration(LEVEL) is None


def test_a_network_that_exploded_does_not_spoil_q() -> None:
    agent = agent_with_estimates(TUNED, [math.nan, math.nan, math.nan])
    agent.update(transition(1, 10.0))
    np.testing.assert_allclose(agent.perceptions[LEVEL].q, 10.0)
