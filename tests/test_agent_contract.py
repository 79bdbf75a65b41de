"""What every agent that `--agent` knows promises: the contract of `rrl.testing`, and a little more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

import numpy as np
import pytest

from baselines import AGENTS, NEED_HINDSIGHT, NEED_MACHINE, make_agent
from rrl.agent import Agent, Task, live
from rrl.region.estimator import LatencyEstimator, TrainingRound
from rrl.region.q_learning import RegionQLearning
from rrl.space import ConfigurationSpace
from rrl.testing import (
    PROMISES,
    SPACE,
    MakeAgent,
    Server,
    Spoilt,
    check_actions_lie_in_the_space,
    check_one_configuration,
    full_task,
    spoilt,
)
from tests.support.agents import maker

DRAW_NOTHING = {"aimd", "best-fixed", "oracle", "quick-search", "quick-search-all", "rule", "serf"}
DRAW_ARRIVALS = {"guided"}  # draws the arrivals that it replays, which rarely decides otherwise
TRAIN_BESIDE_DECISIONS = {"rrl-tuned", "rrl-paper", "rrl-released", "rrl-released-exact"}


def make(name: str, seed: int = 0) -> Agent:
    return maker(name)(full_task(SPACE), seed)


def actions(agent: Agent, decisions: int) -> np.ndarray:
    return np.stack([transition.action for transition in live(agent, Server(SPACE), decisions)])


@pytest.fixture(params=sorted(AGENTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__.removeprefix("check_"))
def test_every_agent_keeps_the_contract(
    name: str, promise: Callable[[MakeAgent, ConfigurationSpace], None]
) -> None:
    promise(maker(name), SPACE)


@pytest.mark.parametrize("of", ["guided", "rule", "serf", "aimd"])
def test_a_knob_that_only_the_target_knows_is_one_like_others(of: str) -> None:
    own = ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 4], max_ongoing_requests=[5, 16])
    check_actions_lie_in_the_space(maker(of), own)


def test_a_space_of_one_configuration_works(name: str) -> None:
    check_one_configuration(maker(name), ConfigurationSpace.of(instances=[2], max_batch_size=[1]))


def test_another_seed_decides_otherwise_where_an_agent_draws(name: str) -> None:
    first = actions(make(name, seed=1), 15)
    assert name in DRAW_NOTHING | DRAW_ARRIVALS or (first != actions(make(name, seed=2), 15)).any()


@pytest.mark.parametrize("how", ["gap", "no traffic"])
def test_an_interval_with_a_gap_or_without_traffic_leaves_no_knowledge(name: str, how: Spoilt) -> None:
    fresh, taught_nothing = make(name), make(name)
    taught_nothing.update(spoilt(Server(SPACE).transition(SPACE.action(5)), how))
    for knowledge in ("perceptions", "mean_costs"):
        assert_same(getattr(fresh, knowledge, None), getattr(taught_nothing, knowledge, None))


def assert_same(a: object, b: object) -> None:
    if isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, np.asarray(b))
    else:
        assert a == b


@pytest.mark.parametrize(
    ("name", "lacking", "reason"),
    [
        ("oracle", Task(SPACE), "only a simulation knows"),
        ("best-fixed", Task(SPACE), "only a simulation knows"),
        ("serf", Task(SPACE), "machine"),
        ("aimd", Task(ConfigurationSpace.of(instances=[1, 2])), "max_batch_size"),
        ("quick-search", Task(ConfigurationSpace.of(intra_op_threads=[1, 2])), "instances"),
    ],
)
def test_an_agent_refuses_a_task_that_lacks_what_it_needs(name: str, lacking: Task, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refusal:
        make_agent(name, lacking)
    assert "\n" not in str(refusal.value)
    assert ". " not in str(refusal.value)


def test_an_agent_refuses_a_bare_task_just_where_its_entry_says_so(name: str) -> None:
    if name in NEED_HINDSIGHT + NEED_MACHINE:
        with pytest.raises(ValueError, match="needs"):
            make_agent(name, Task(SPACE))
    else:
        make_agent(name, Task(SPACE)).close()


def test_an_unknown_agent_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown agent 'guess'; known: guided, .*oracle"):
        make_agent("guess", full_task())


@contextmanager
def held_up_training(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Every round of training waits until the block is left; the event tells that one has begun."""
    began, go_on = Event(), Event()

    def held_up(self: LatencyEstimator, stop: Callable[[], bool]) -> TrainingRound:
        began.set()
        assert go_on.wait(30)
        return TrainingRound(0, 0, 0.0)

    monkeypatch.setattr(LatencyEstimator, "train", held_up)
    try:
        yield began
    finally:
        go_on.set()


def test_decisions_do_not_wait_for_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_up_training(monkeypatch) as began:
        agent = make_agent(name, full_task(), background_training=True)
        actions(agent, 10)  # would hang here
        if name in TRAIN_BESIDE_DECISIONS:
            assert began.wait(30)
    agent.close()


def test_training_in_the_background_learns_the_same_landscape() -> None:
    agent = RegionQLearning(Task(SPACE), background_training=True)
    actions(agent, 30)
    agent.finish_training()
    agent.close()
    best = agent.greedy(Server(SPACE).observation)
    assert best is not None
    assert SPACE.features[best].mean() > 0.6
