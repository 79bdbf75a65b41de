"""What must not be proposed, nobody proposes who searches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baselines import make_agent
from rrl.agent import Task, live
from rrl.testing import SPACE, Server, full_task

SEARCHES = (
    "guided", "random", "sweep", "optuna-tpe", "optuna-gp", "gp-bandit", "quick-search", "quick-search-all",
    "rule",
)  # fmt: skip
TOO_MANY = frozenset(np.flatnonzero(SPACE.threads > 2).tolist())
"""Half of the space: those that use more than two threads."""


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_proposes_nothing_that_is_excluded(name: str) -> None:
    task = replace(full_task(), excluded=TOO_MANY)
    agent = make_agent(name, task, seed=1)
    seen = [SPACE.number_of_action(t.action) for t in live(agent, Server(), decisions=40, seed=0)]
    agent.close()
    assert not TOO_MANY & set(seen)
    if (recommended := agent.recommended()) is not None:
        assert recommended not in TOO_MANY


def test_the_numbers_allowed_are_all_the_others() -> None:
    task = Task(SPACE, excluded=TOO_MANY)
    assert set(task.allowed.tolist()) == set(range(len(SPACE))) - TOO_MANY
    assert Task(SPACE).allowed.tolist() == list(range(len(SPACE)))
