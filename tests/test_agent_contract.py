"""What holds for every agent that `--agent` knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event

import numpy as np
import pytest

from baselines import AGENTS, make_agent
from rrl.agent import Agent, Hindsight, Task, Transition, observe
from rrl.measurement import LatencySummary, Measurement
from rrl.queueing.machine import Machine
from rrl.region.estimator import LatencyEstimator, TrainingRound
from rrl.region.q_learning import RegionQLearning
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(instances=[1, 2, 3], intra_op_threads=[1, 2], max_batch_size=[1, 2, 4, 8])


DECISIONS = 100  # that hindsight reaches
RATE_PER_S = 40.0
DRAW_NOTHING = {"aimd", "best-fixed", "oracle", "quick-search", "quick-search-all", "serf"}
DRAW_ARRIVALS = {"rrl"}  # ... of simulations, and a network's start: other seeds rarely decide otherwise
MACHINE = Machine.invent(
    3, cores=4, inter_op_threads=[1, 2], intra_op_threads=[1, 2], busy_instances=[1, 2, 3], batch_size=[1, 8]
)


def task(space: ConfigurationSpace = SPACE) -> Task:
    """A task that holds whatever any agent needs."""
    hindsight = Hindsight(np.full(DECISIONS, RATE_PER_S), lambda rate_per_s: expected_costs(space))
    return Task(space, cores=4, machine=MACHINE, hindsight=hindsight)


def make(name: str, space: ConfigurationSpace = SPACE, seed: int = 0) -> Agent:
    """The agent, trained for fewer steps: how many is a matter of time, not of behaviour."""
    agent = make_agent(name, task(space), seed)
    if not isinstance(agent, RegionQLearning):
        return agent
    estimator = replace(agent.settings.estimator, max_steps=15)
    return RegionQLearning(space, replace(agent.settings, estimator=estimator), seed)


def expected_costs(space: ConfigurationSpace) -> np.ndarray:
    """(size,) what `Server` costs, but for its noise."""
    costs: np.ndarray = 100.0 * np.exp(-2.0 * space.features.mean(axis=1))
    return costs


@pytest.fixture(params=sorted(AGENTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Server:
    """A server of known costs, with some noise of load and latency."""

    def __init__(self, space: ConfigurationSpace, seed: int = 7) -> None:
        self.space = space
        self._rng = np.random.default_rng(seed)
        self.observation = self._measured(0)[1]

    def _measured(self, number: int) -> tuple[Measurement, np.ndarray, float]:
        cost = float(expected_costs(self.space)[number]) * math.exp(0.1 * self._rng.standard_normal())
        arrivals = int(self._rng.poisson(10 * RATE_PER_S))
        measurement = Measurement(10.0, arrivals, arrivals, 0, LatencySummary(mean_ms=cost))
        return measurement, observe(measurement, self.space, number), cost

    def step(self, action: np.ndarray) -> Transition:
        before = self.observation
        measurement, self.observation, cost = self._measured(self.space.number_of_action(action))
        return Transition(before, action, cost, self.observation, measurement)


def live(agent: Agent, decisions: int, space: ConfigurationSpace = SPACE) -> list[Transition]:
    server = Server(space)
    transitions = []
    for _ in range(decisions):
        transitions.append(server.step(agent.act(server.observation)))
        agent.update(transitions[-1])
    return transitions


def actions(transitions: list[Transition]) -> np.ndarray:
    return np.stack([transition.action for transition in transitions])


def spoilt(transition: Transition, how: str) -> Transition:
    if how == "gap":
        return replace(transition, measurement=replace(transition.measurement, gap="the server restarted"))
    nothing = Measurement(10.0, 0, 0, 0)
    number = SPACE.number_of_action(transition.action)
    return replace(
        transition, cost=math.nan, measurement=nothing, next_observation=observe(nothing, SPACE, number)
    )


def test_actions_lie_in_the_space(name: str) -> None:
    for transition in live(make(name), 20):
        action = transition.action
        assert action.shape == (len(SPACE.knobs),)
        assert action.dtype == np.int64
        assert (action >= 0).all()
        assert (action < SPACE.shape).all()


def test_the_same_seed_and_transitions_give_the_same_actions(name: str) -> None:
    first = actions(live(make(name, seed=1), 15))
    np.testing.assert_array_equal(first, actions(live(make(name, seed=1), 15)))
    assert name in DRAW_NOTHING | DRAW_ARRIVALS or (first != actions(live(make(name, seed=2), 15))).any()


def test_asking_twice_gives_the_same_answer(name: str) -> None:
    agent = make(name)
    observation = live(agent, 3)[-1].next_observation
    np.testing.assert_array_equal(agent.act(observation), agent.act(observation))


def test_replaying_a_journal_resumes_exactly(name: str) -> None:
    lived = make(name)
    transitions = live(lived, 12)
    transitions.append(spoilt(transitions[-1], "gap"))
    lived.update(transitions[-1])
    resumed = make(name)
    for transition in transitions:
        resumed.update(transition)
    for later in live(lived, 5):
        np.testing.assert_array_equal(resumed.act(later.observation), later.action)
        resumed.update(later)


@pytest.mark.parametrize("how", ["gap", "no traffic"])
def test_an_interval_with_a_gap_or_without_traffic_teaches_nothing(name: str, how: str) -> None:
    agent = make(name)
    agent.update(spoilt(live(agent, 8)[-1], how))
    assert agent.act(observe(Measurement(10.0, 0, 0, 0), SPACE, 0)).shape == (len(SPACE.knobs),)
    fresh, taught_nothing = make(name), make(name)
    transition = Server(SPACE).step(SPACE.action(5))
    taught_nothing.update(spoilt(transition, how))
    for knowledge in ("perceptions", "mean_costs"):
        assert_same(getattr(fresh, knowledge, None), getattr(taught_nothing, knowledge, None))


def assert_same(a: object, b: object) -> None:
    if isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, np.asarray(b))
    else:
        assert a == b


def test_a_space_of_one_configuration_works(name: str) -> None:
    space = ConfigurationSpace.of(instances=[2], max_batch_size=[1])
    assert (actions(live(make(name, space), 4, space)) == 0).all()


def test_agents_accept_transitions_whose_action_the_guard_chose(name: str) -> None:
    agent = make(name)
    server = Server(SPACE)
    for _ in range(6):
        agent.act(server.observation)
        agent.update(server.step(SPACE.action(3)))
    assert agent.act(server.observation).shape == (len(SPACE.knobs),)


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


def test_an_unknown_agent_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown agent 'guess'; known: rrl, .*oracle"):
        make_agent("guess", task())


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
        agent = make_agent(name, task(), background_training=True)
        live(agent, 10)  # would hang here
        if isinstance(agent, RegionQLearning) and agent.settings.radius > 0:
            assert began.wait(30)
    if isinstance(agent, RegionQLearning):
        agent.close()


def test_training_in_the_background_learns_the_same_landscape() -> None:
    agent = RegionQLearning(SPACE, background_training=True)
    live(agent, 30)
    agent.finish_training()
    agent.close()
    best = agent.greedy(Server(SPACE).observation)
    assert best is not None
    assert SPACE.features[best].mean() > 0.6
