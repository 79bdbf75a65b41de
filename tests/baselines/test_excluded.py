"""What must not be proposed, nobody proposes, nor what the target refused twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from baselines.agents import NEED_HINDSIGHT, OUR_AGENTS
from rrl.agent import Proposable, Task, live
from rrl.testing import SPACE, Server, full_task
from tests.support.agents import maker

TOO_MANY = frozenset(np.flatnonzero(SPACE.threads > 2).tolist())
"""Half of the space: those that use more than two threads."""
START = 0
# The default agent stays with its first choice while it has no telemetry: `tests/rrl/guided` refuses it one.
DEAF_TO_REFUSALS = {"aimd", "guided", *NEED_HINDSIGHT}


@pytest.mark.parametrize("name", OUR_AGENTS)
def test_nothing_is_proposed_that_is_excluded(name: str) -> None:
    task = replace(full_task(), excluded=TOO_MANY)
    agent = maker(name)(task, 1)
    seen = [SPACE.number_of_action(t.action) for t in live(agent, Server(), decisions=40, seed=0)]
    agent.close()
    assert not TOO_MANY & set(seen)
    if (recommended := agent.recommended()) is not None:
        assert recommended not in TOO_MANY


@pytest.mark.parametrize("name", [name for name in OUR_AGENTS if name not in DEAF_TO_REFUSALS])
def test_what_the_target_refused_twice_is_not_proposed_again(name: str) -> None:
    """The target has no memory for so many. Each time it refuses, the start runs for an interval."""
    agent, server = maker(name)(full_task(), 1), Server()
    refusals: Counter[int] = Counter()
    for _ in range(60):
        number = SPACE.number_of_action(agent.act(server.observation))
        if number in TOO_MANY:
            refusals[number] += 1
            agent.refused(number)
            number = START
        agent.update(server.transition(SPACE.action(number)))
    agent.close()
    assert refusals
    assert max(refusals.values()) <= 2


def test_the_numbers_allowed_are_all_the_others() -> None:
    task = Task(SPACE, excluded=TOO_MANY)
    assert set(task.allowed.tolist()) == set(range(len(SPACE))) - TOO_MANY
    assert Task(SPACE).allowed.tolist() == list(range(len(SPACE)))


def test_what_is_refused_once_may_still_be_proposed() -> None:
    proposable = Proposable(Task(SPACE))
    assert not proposable.refused(START)
    assert proposable.mask.all()
    assert proposable.refused(START)
    assert np.flatnonzero(~proposable.mask).tolist() == [START]


def test_what_the_guard_refuses_is_admitted_again_once_it_does_not() -> None:
    proposable = Proposable(Task(SPACE, excluded=frozenset({1})))
    proposable.kept_off = frozenset({2})
    assert np.flatnonzero(~proposable.admitted).tolist() == [1, 2]
    proposable.kept_off = frozenset()
    assert np.array_equal(proposable.admitted, proposable.mask)


def test_the_last_configuration_may_be_proposed_however_often_it_is_refused() -> None:
    proposable = Proposable(Task(SPACE, excluded=frozenset(range(1, len(SPACE)))))
    for _ in range(3):
        proposable.refused(START)
    assert np.flatnonzero(proposable.mask).tolist() == [START]
