"""The Gaussian-process bandit finds the optimum of each load, bounds its work, and says nothing meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor

from baselines import gaussian_process
from baselines.gaussian_process import GaussianProcessBandit, GaussianProcessSettings
from rrl.agent import Task, Transition, observe
from rrl.measurement import Measurement
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=range(1, 7), intra_op_threads=range(1, 7), max_queue_delay_us=[0, 9])
CENTRE = SPACE.number({"instances": 4, "intra_op_threads": 2, "max_queue_delay_us": 0})

Cost = Callable[[int, float], float]


def bowl(number: int, rate_per_s: float) -> float:
    return 50.0 * math.exp(0.4 * SPACE.distances(CENTRE)[number])


def interval(number: int, cost: float, rate_per_s: float = 10.0, gap: str = "") -> Transition:
    measurement = Measurement(100.0, round(100 * rate_per_s), round(100 * rate_per_s), 0, gap=gap)
    seen = observe(measurement, SPACE, number)
    return Transition(seen, SPACE.action(number), cost, seen, measurement)


def proposed(agent: GaussianProcessBandit, in_force: int = 0) -> int:
    return SPACE.number_of_action(agent.act(interval(in_force, 1.0).observation))


def live(
    agent: GaussianProcessBandit, decisions: int, rate_per_s: float = 10.0, cost: Cost = bowl
) -> list[int]:
    numbers = []
    for _ in range(decisions):
        numbers.append(proposed(agent))
        agent.update(interval(numbers[-1], cost(numbers[-1], rate_per_s), rate_per_s))
    return numbers


def bandit(seed: int = 0, **settings: float) -> GaussianProcessBandit:
    return GaussianProcessBandit(Task(SPACE), seed, GaussianProcessSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_finds_the_optimum_in_spite_of_noise_and_stays(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = live(
        bandit(seed), 50, cost=lambda number, rate: bowl(number, rate) * math.exp(0.1 * rng.standard_normal())
    )
    costs = [bowl(number, 10.0) for number in numbers]
    assert len(set(numbers)) < 40  # of 72
    assert np.mean(costs[-10:]) < 1.2 * bowl(CENTRE, 10.0)


def test_it_recommends_what_should_cost_least_and_not_what_it_explores() -> None:
    agent = bandit(kappa=30.0, lowest_kappa=30.0)
    live(agent, 4)
    assert agent.recommended() is None  # the design is not over
    explored = live(agent, 40)[-10:]
    kept = agent.recommended()
    assert kept is not None
    assert bowl(kept, 10.0) < np.mean([bowl(number, 10.0) for number in explored])


def test_it_follows_the_load() -> None:
    def cost(number: int, rate_per_s: float) -> float:
        best = 1.0 if rate_per_s < 20 else 5.0  # index of the instances
        return 50.0 * math.exp(abs(float(SPACE.indices[number][0]) - best))

    agent = bandit()
    for _ in range(2):
        low = live(agent, 20, 10.0, cost)[-1]
        high = live(agent, 20, 40.0, cost)[-1]
    assert SPACE.indices[low][0] == 1
    assert SPACE.indices[high][0] == 5
    back = live(agent, 8, 10.0, cost)  # known by now: no search again
    assert [int(SPACE.indices[number][0]) for number in back[-3:]] == [1, 1, 1]


def test_it_begins_with_the_configuration_found_and_the_design() -> None:
    agent = bandit(design=9)
    assert proposed(agent, in_force=17) == 17
    first = live(agent, 9)
    assert len(set(first)) > 6
    spread = np.ptp(SPACE.features[first[1:]], axis=0)
    assert (spread >= 0.6).all()
    assert first != live(bandit(seed=1, design=9), 9)


@pytest.mark.parametrize(("cost", "gap"), [(math.nan, ""), (1.0, "the server restarted")])
def test_an_interval_with_a_gap_or_no_cost_is_repeated_and_is_no_sample(cost: float, gap: str) -> None:
    agent, other = bandit(), bandit()
    live(agent, 3)
    live(other, 3)
    for _ in range(5):
        agent.update(interval(proposed(agent), cost, gap=gap))
    assert live(agent, 10) == live(other, 10)


def test_what_the_guard_chose_is_a_sample_too() -> None:
    agent = bandit(kappa=0.0, lowest_kappa=0.0, design=2)
    for number in (CENTRE, 0, CENTRE, 71):
        agent.update(interval(number, bowl(number, 10.0)))
    assert SPACE.distances(CENTRE)[proposed(agent)] <= 1.0


@pytest.mark.parametrize("decisions", [1, 12])  # in the design, and after it
def test_what_the_guard_refuses_is_not_proposed_while_it_does(decisions: int) -> None:
    agent = bandit()
    live(agent, decisions)
    kept_off = frozenset(np.flatnonzero(SPACE.values[:, 0] > 2).tolist())
    agent.keep_off(kept_off)
    agent.update(interval(0, bowl(0, 10.0)))  # the guard ran another
    assert not kept_off & set(live(agent, 10))
    agent.keep_off(frozenset())
    assert kept_off & set(live(agent, 10))


def test_no_more_than_so_many_samples_are_modelled_and_rare_ones_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modelled: list[np.ndarray] = []
    fit = GaussianProcessRegressor.fit

    def watched(self: GaussianProcessRegressor, x: np.ndarray, y: np.ndarray) -> GaussianProcessRegressor:
        modelled.append(x)
        return fit(self, x, y)

    monkeypatch.setattr(GaussianProcessRegressor, "fit", watched)
    agent = bandit(samples=10, design=2)
    for number in (3, 4, *[5] * 30):
        agent.update(interval(number, bowl(number, 10.0)))
    assert max(len(x) for x in modelled) == 10
    assert len(np.unique(modelled[-1][:, 1:], axis=0)) == 3


def test_the_work_of_fitting_grows_with_the_logarithm_of_the_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = bandit(design=2, refit_growth=2.0)
    decisions: list[int] = []

    def watched(function: object, start: np.ndarray, **options: object) -> SimpleNamespace:
        decisions.append(decision)
        return SimpleNamespace(x=start)

    monkeypatch.setattr(gaussian_process, "minimize", watched)
    for decision in range(1, 41):  # noqa: B007 (`watched` reads it)
        live(agent, 1)
    assert decisions == [2, 4, 8, 16, 32]


@pytest.mark.parametrize("cost", [1e-12, 1e30])
def test_any_cost_can_be_learned_from(cost: float) -> None:
    live(bandit(), 8, cost=lambda number, rate: cost)
    live(bandit(), 8, 0.0, cost=lambda number, rate: cost if number % 2 else 1.0)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"design": 1}, "design must be at least 2, got 1"),
        ({"samples": 1}, "samples must be at least 2, got 1"),
        ({"load_window": 0}, "load_window must be at least 1, got 0"),
        ({"cost_cap": 1.0}, "must exceed 1, got 1"),
        ({"refit_growth": 1.0}, "must exceed 1"),
        ({"kappa": 0.1}, "lowest_kappa must lie between 0 and kappa, got 0.3 and kappa 0.1"),
        ({"noise": 0.0}, "noise must be positive, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        GaussianProcessSettings(**wrong)  # type: ignore[arg-type]
