"""Agents that tune a live server: what they choose, with and without a guard."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rrl.agent import Agent, Transition
from rrl.measurement import Progress
from scripts.serving.served_agents import Choices, Unguarded, WatchOnly, cheapest
from tests.support.runs.trials import BAD, BEST, NEARLY, START, record


def test_what_is_left_without_a_guard_is_the_lowest_mean_cost() -> None:
    records = [
        record(BAD, cost=5.0),
        record(BAD, cost=50.0),
        record(BEST, cost=9.0),
        record(START, cost=10.0),
    ]
    assert cheapest(records) == BEST
    assert cheapest([*records, replace(record(START, cost=1.0), learned=False)]) == BEST


@pytest.mark.parametrize(("recommended", "left"), [(NEARLY, NEARLY), (None, BEST)])
def test_unless_the_agent_says_what_is_best(recommended: int | None, left: int) -> None:
    class Silent(Agent):
        def act(self, observation: np.ndarray) -> np.ndarray:
            raise AssertionError("nobody asks it to act")

        def update(self, transition: Transition) -> None: ...

    class Knowing(Silent):
        def recommended(self) -> int | None:
            return recommended

    for agent, left_by_it in ((Knowing(), left), (Silent(), BEST)):
        choices = Choices(agent, Unguarded(START))
        for number in (START, BEST, NEARLY):
            choices.measured(record(number))
        assert choices.numbers[-1] == left_by_it


def test_without_a_guard_every_proposal_is_run_and_nothing_is_aborted() -> None:
    runaway = Progress(elapsed_s=5.0, arrivals=500, completions=10, backlog=490, backlog_growth=490)
    for kind, aborts in ((WatchOnly, True), (Unguarded, False)):
        guard = kind(START)
        assert guard.admit(BAD).number == BAD
        assert bool(guard.watch(runaway)) is aborts
        guard.judge(BAD, math.nan, replace(record(BAD).measurement, completions=0))
        assert not guard.takes_over
        assert guard.admit(BAD).number == BAD
