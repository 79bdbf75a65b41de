"""The default agent says why it proposes what it proposes."""

from __future__ import annotations

import re

import numpy as np

from rrl.agent import Task
from rrl.guided.agent import GuidedRRL
from tests.support.guided_agents import (
    FIRST,
    LINE,
    RATE_PER_S,
    SPACE,
    by_hand,
    family_scenario,
    lived,
    row,
    told,
    transition,
)


def test_before_anything_is_known_it_explains_where_it_begins() -> None:
    assert GuidedRRL(Task(LINE)).explain() == (
        "nothing is known yet: begins in the middle of what should bear a heavy load"
    )


def test_it_explains_what_it_expects_instead_of_what_is_in_force() -> None:
    agent = by_hand(radius=0.0, exploring=0, looks=())
    for _ in range(3):
        agent.update(transition(2, 80.0, [row(1, 60, 0.02)]))
    assert agent.act(np.empty(0)).tolist() == [1]
    assert agent.explain() == "expects 40 ms instead of 80 ms"
    agent.update(transition(1, 40.0, [row(1, 60, 0.02)]))
    assert agent.explain() == "stays: expects 40 ms, and nothing better"


def test_where_changes_cost_it_explains_that_none_is_worth_it() -> None:
    agent = by_hand(in_place=frozenset())
    agent.update(transition(1, 40.0, [row(1, 60, 0.02)]))
    assert agent.explain() == "stays: expects 40 ms, and nothing worth a change"


def test_it_explains_that_it_explores_where_little_is_known() -> None:
    agent = GuidedRRL(Task(SPACE, cores=10))
    next(lived(agent, family_scenario(3), np.full(1, RATE_PER_S)))
    assert re.fullmatch(
        r"explores, little is known here: \d+ ms, perhaps \d+ ms, instead of \d+ ms", agent.explain()
    )


def test_it_explains_an_overload_and_a_change_of_the_machine() -> None:
    overloaded = told(transition(0, 15_000.0, [row(1, 30, 1.0)], rate_per_s=200.0, completions=30))
    assert re.fullmatch(
        r"overloaded: takes what serves most, about [\d.]+ of 200 requests/s", overloaded.explain()
    )
    changed = told(FIRST, FIRST, transition(2, 120.0, [row(1, 60, 0.1), row(2, 40, 0.12)]))
    assert changed.changes == 1
    assert changed.explain().startswith("the machine has changed: ")
    changed.update(transition(2, 120.0, [row(1, 60, 0.1), row(2, 40, 0.12)]))
    assert not changed.explain().startswith("the machine has changed")


def test_what_it_explains_changes_nothing() -> None:
    silent, asked = (GuidedRRL(Task(SPACE, cores=10), seed=2) for _ in range(2))
    scenario, rates_per_s = family_scenario(4), np.full(8, RATE_PER_S)
    proposed = []
    for number in lived(asked, scenario, rates_per_s):
        proposed.append(number)
        assert asked.explain()
    assert proposed == list(lived(silent, scenario, rates_per_s))
