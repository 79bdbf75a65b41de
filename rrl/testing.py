"""The contract of an agent as checks that any test-suite can run over agents of its own.

    from rrl.testing import check_agent

    def test_my_agent_keeps_the_contract():
        check_agent(lambda task, seed: MyAgent(task, seed))

Each promise is a function of its own, so that a suite can run the promises one by one (`PROMISES`). A promise
is checked on a simulated server of known costs (`Server`). An agent that breaks one raises `BrokenPromise`,
whose sentence says which and how. Nothing here needs a test framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from rrl.agent import Agent, Hindsight, Task, Transition, live, observe
from rrl.measurement import LatencySummary, Measurement
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace

MakeAgent = Callable[[Task, int], Agent]
"""Makes the agent under test from a task and a seed. Training in the background must be off."""

Spoilt = Literal["gap", "no traffic"]
"""How an interval can tell no cost: the server was not reached throughout, or nobody asked it anything."""

SPACE = ConfigurationSpace.of(instances=[1, 2, 3], intra_op_threads=[1, 2], max_batch_size=[1, 2, 4, 8])
"""The space that agents are checked on where no other is given."""

DECISIONS_IN_HINDSIGHT = 100
RATE_PER_S = 40.0
INTERVAL_S = 10.0
NOISE = 0.1  # standard deviation of a cost's logarithm
CORES = 4


class BrokenPromise(AssertionError):
    """An agent does not keep its contract; the message is one sentence."""


def expected_costs(space: ConfigurationSpace) -> np.ndarray:
    """(size,) what a configuration of `Server` costs without noise: the larger its values, the less."""
    costs: np.ndarray = 100.0 * np.exp(-2.0 * space.features.mean(axis=1))
    return costs


def full_task(space: ConfigurationSpace = SPACE) -> Task:
    """A task that holds whatever any agent may need: cores, a profiled machine, hindsight."""
    rates_per_s = np.full(DECISIONS_IN_HINDSIGHT, RATE_PER_S)
    hindsight = Hindsight(rates_per_s, lambda rate_per_s: expected_costs(space))
    machine = Machine.invent(
        3,
        cores=CORES,
        inter_op_threads=[1, 2],
        intra_op_threads=[1, 2],
        busy_instances=[1, 2, 3],
        batch_size=[1, 8],
    )
    return Task(space, cores=CORES, machine=machine, hindsight=hindsight)


class Server:
    """A server of known costs, with some noise of load and latency; `rrl.agent.live` runs on it."""

    def __init__(self, space: ConfigurationSpace = SPACE, seed: int = 7) -> None:
        self.space = space
        self._seed = seed
        self.reset()

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """The first observation, of configuration 0."""
        self._rng = np.random.default_rng(self._seed if seed is None else seed)
        measurement, cost = self._measured(0)
        self.observation = observe(measurement, self.space, 0)
        return self.observation, {"cost": cost, "measurement": measurement}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One interval under this action, in Gymnasium's form; BrokenPromise for what is no action."""
        _check_action(action, self.space)
        number = self.space.number_of_action(action)
        measurement, cost = self._measured(number)
        self.observation = observe(measurement, self.space, number)
        return self.observation, -cost, False, False, {"cost": cost, "measurement": measurement}

    def transition(self, action: np.ndarray) -> Transition:
        """One interval under this action, as agents learn from it."""
        before = self.observation
        after, _, _, _, info = self.step(action)
        return Transition(before, action, info["cost"], after, info["measurement"])

    def _measured(self, number: int) -> tuple[Measurement, float]:
        cost = float(expected_costs(self.space)[number]) * math.exp(NOISE * self._rng.standard_normal())
        arrivals = int(self._rng.poisson(INTERVAL_S * RATE_PER_S))
        return Measurement(INTERVAL_S, arrivals, arrivals, 0, LatencySummary(mean_ms=cost)), cost


def spoilt(transition: Transition, how: Spoilt, space: ConfigurationSpace = SPACE) -> Transition:
    """The same interval, had it told no cost."""
    if how == "gap":
        return replace(transition, measurement=replace(transition.measurement, gap="the server restarted"))
    nothing = Measurement(INTERVAL_S, 0, 0, 0)
    number = space.number_of_action(transition.action)
    return replace(
        transition, cost=math.nan, measurement=nothing, next_observation=observe(nothing, space, number)
    )


# --- the promises ---


def check_actions_lie_in_the_space(make: MakeAgent, space: ConfigurationSpace = SPACE) -> None:
    """An action is an int64 array with an index for each knob, and the index exists."""
    _lived(make(full_task(space), 0), space, 20)


def check_the_seed_decides(make: MakeAgent, space: ConfigurationSpace = SPACE) -> None:
    """Two agents of the same seed that see the same intervals take the same actions."""
    first, second = (_actions(make(full_task(space), 1), space, 15) for _ in range(2))
    _check(first == second, "two agents of the same seed took other actions in the same intervals")


def check_asking_twice(make: MakeAgent, space: ConfigurationSpace = SPACE) -> None:
    """`act` changes nothing: asked again about the same observation, the agent answers the same."""
    agent = make(full_task(space), 0)
    observation = _lived(agent, space, 3)[-1].next_observation
    same = np.array_equal(agent.act(observation), agent.act(observation))
    _check(same, "act answered otherwise when it was asked again about the same observation")


def check_replay_resumes(make: MakeAgent, space: ConfigurationSpace = SPACE) -> None:
    """A fresh agent that is updated with every transition of another decides like it from then on."""
    lived = make(full_task(space), 0)
    transitions = _lived(lived, space, 12)
    transitions.append(spoilt(transitions[-1], "gap", space))
    lived.update(transitions[-1])
    resumed = make(full_task(space), 0)
    for transition in transitions:
        resumed.update(transition)
    for later in _lived(lived, space, 5):
        same = np.array_equal(resumed.act(later.observation), later.action)
        _check(same, "an agent that replayed every transition of another decided otherwise after it")
        resumed.update(later)


def check_spoilt_intervals_teach_nothing(make: MakeAgent, space: ConfigurationSpace = SPACE) -> None:
    """The cost of an interval with a gap does not matter, and one without traffic does no harm."""
    for how in ("gap", "no traffic"):
        agent = make(full_task(space), 0)
        agent.update(spoilt(_lived(agent, space, 8)[-1], how, space))
        _check_action(agent.act(observe(Measurement(INTERVAL_S, 0, 0, 0), space, 0)), space)
    cheap, dear = make(full_task(space), 0), make(full_task(space), 0)
    for agent, factor in ((cheap, 1e-3), (dear, 1e3)):
        last = _lived(agent, space, 8)[-1]
        agent.update(spoilt(replace(last, cost=last.cost * factor), "gap", space))
    same = _actions(cheap, space, 5) == _actions(dear, space, 5)
    _check(same, "the cost of an interval with a gap changed what the agent decided afterwards")


def check_one_configuration(make: MakeAgent, space: ConfigurationSpace = SPACE) -> None:
    """A space of the same knobs with one value each has one action, and the agent takes it."""
    single = ConfigurationSpace.of(**{knob.name: knob.values[:1] for knob in space.knobs})
    _lived(make(full_task(single), 0), single, 4)


def check_actions_of_the_guard(make: MakeAgent, space: ConfigurationSpace = SPACE) -> None:
    """The agent learns from intervals whose action the guard chose in its place."""
    agent, server = make(full_task(space), 0), Server(space)
    chosen = space.action(min(3, len(space) - 1))
    for _ in range(6):
        agent.act(server.observation)
        agent.update(server.transition(chosen))
    _check_action(agent.act(server.observation), space)


def check_optional_answers(make: MakeAgent, space: ConfigurationSpace = SPACE) -> None:
    """What an agent may also answer has the form that the tuning loop expects, and it ends when told to."""
    agent = make(full_task(space), 0)
    last = _lived(agent, space, 3)[-1]
    _check(isinstance(agent, Agent), "the agent is no subclass of rrl.agent.Agent")
    recommended = agent.recommended()
    known = recommended is None or 0 <= recommended < len(space)
    _check(known, f"recommended() is {recommended!r}, which is neither None nor a configuration's number")
    explained = agent.explain()
    _check(isinstance(explained, str), f"explain() is {explained!r}, which is no text")
    agent.refused(space.number_of_action(last.action))
    _check_action(agent.act(last.next_observation), space)
    agent.finish_training()
    agent.close()


PROMISES: tuple[Callable[[MakeAgent, ConfigurationSpace], None], ...] = (
    check_actions_lie_in_the_space,
    check_the_seed_decides,
    check_asking_twice,
    check_replay_resumes,
    check_spoilt_intervals_teach_nothing,
    check_one_configuration,
    check_actions_of_the_guard,
    check_optional_answers,
)
"""What holds for every agent that the tuning loop can run."""


def check_agent(make: MakeAgent, space: ConfigurationSpace = SPACE) -> None:
    """Checks every promise; BrokenPromise at the first that the agent does not keep."""
    for promise in PROMISES:
        promise(make, space)


# --- how a promise is checked ---


def _lived(agent: Agent, space: ConfigurationSpace, decisions: int) -> list[Transition]:
    """The agent's life on a server of its own, which takes actions of the space only."""
    return list(live(agent, Server(space), decisions))


def _actions(agent: Agent, space: ConfigurationSpace, decisions: int) -> Sequence[list[int]]:
    return [transition.action.tolist() for transition in _lived(agent, space, decisions)]


def _check_action(action: np.ndarray, space: ConfigurationSpace) -> None:
    _check(
        isinstance(action, np.ndarray) and action.shape == (len(space.knobs),) and action.dtype == np.int64,
        f"an action must be an int64 array of shape ({len(space.knobs)},), got {action!r}",
    )
    inside = bool((action >= 0).all() and (action < space.shape).all())
    _check(inside, f"the action {action.tolist()} does not lie in the grid of shape {list(space.shape)}")


def _check(kept: bool, breach: str) -> None:
    if not kept:
        raise BrokenPromise(breach)
