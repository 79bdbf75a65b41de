"""The contract of agents catches those that break it, one promise each, and lets an honest one pass."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rrl.agent import Agent, Task, Transition
from rrl.testing import (
    PROMISES,
    SPACE,
    BrokenPromise,
    check_actions_lie_in_the_space,
    check_actions_of_the_guard,
    check_agent,
    check_asking_twice,
    check_one_configuration,
    check_optional_answers,
    check_replay_resumes,
    check_spoilt_intervals_teach_nothing,
    check_the_seed_decides,
)


class Honest(Agent):
    """Draws the next configuration at every update, and keeps the best that it has seen."""

    def __init__(self, task: Task, seed: int) -> None:
        self.space = task.space
        self.rng = np.random.default_rng(seed)
        self.next = int(self.rng.integers(len(self.space)))
        self.best: tuple[float, int] | None = None

    def act(self, observation: np.ndarray) -> np.ndarray:
        return self.space.action(self.next)

    def update(self, transition: Transition) -> None:
        self.next = int(self.rng.integers(len(self.space)))
        if transition.has_cost:
            seen = (transition.cost, self.space.number_of_action(transition.action))
            self.best = seen if self.best is None else min(seen, self.best)

    def recommended(self) -> int | None:
        return None if self.best is None else self.best[1]


class BeyondTheGrid(Honest):
    def act(self, observation: np.ndarray) -> np.ndarray:
        return np.asarray(self.space.shape, dtype=np.int64)


class OfFloats(Honest):
    def act(self, observation: np.ndarray) -> np.ndarray:
        return super().act(observation).astype(float)


class Unseeded(Honest):
    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, int(np.random.default_rng().integers(2**31)))


class DrawsWhenAsked(Honest):
    def act(self, observation: np.ndarray) -> np.ndarray:
        return self.space.action(int(self.rng.integers(len(self.space))))


class CountsQuestions(Honest):
    """Decides by how often it was asked, which no journal holds."""

    asked = 0

    def act(self, observation: np.ndarray) -> np.ndarray:
        self.asked += 1
        return self.space.action(self.asked // 2 % len(self.space))


class LearnsFromGaps(Honest):
    def act(self, observation: np.ndarray) -> np.ndarray:
        return self.space.action(self.next if self.best is None or self.best[0] > 1.0 else self.best[1])

    def update(self, transition: Transition) -> None:
        super().update(transition)
        self.best = min(self.best or (np.inf, 0), (transition.cost, self.next))


class NeedsTwoConfigurations(Honest):
    def act(self, observation: np.ndarray) -> np.ndarray:
        return self.space.action(self.next) if len(self.space) > 1 else np.ones(3, dtype=np.int64)


class TrustsItsChoice(Honest):
    def update(self, transition: Transition) -> None:
        if not np.array_equal(transition.action, self.act(transition.observation)):
            self.next = len(self.space)
        else:
            super().update(transition)

    def act(self, observation: np.ndarray) -> np.ndarray:
        in_grid = self.next < len(self.space)
        return self.space.action(self.next) if in_grid else np.asarray(self.space.shape, dtype=np.int64)


class RecommendsNowhere(Honest):
    def recommended(self) -> int | None:
        return len(self.space)


BREACHES = [
    (BeyondTheGrid, check_actions_lie_in_the_space, "does not lie in the grid of shape"),
    (OfFloats, check_actions_lie_in_the_space, "must be an int64 array"),
    (Unseeded, check_the_seed_decides, "same seed"),
    (DrawsWhenAsked, check_asking_twice, "asked again"),
    (CountsQuestions, check_replay_resumes, "replayed"),
    (LearnsFromGaps, check_spoilt_intervals_teach_nothing, "with a gap"),
    (NeedsTwoConfigurations, check_one_configuration, "does not lie in the grid"),
    (TrustsItsChoice, check_actions_of_the_guard, "does not lie in the grid"),
    (RecommendsNowhere, check_optional_answers, "neither None nor a configuration's number"),
]


def test_an_honest_agent_keeps_every_promise() -> None:
    check_agent(Honest)


@pytest.mark.parametrize(("agent", "promise", "breach"), BREACHES)
def test_a_broken_promise_is_told(agent: type[Honest], promise: Callable[..., None], breach: str) -> None:
    with pytest.raises(BrokenPromise, match=breach) as told:
        promise(agent, SPACE)
    assert "\n" not in str(told.value)
    with pytest.raises(BrokenPromise):
        check_agent(agent)


def test_every_promise_has_an_agent_here_that_breaks_it() -> None:
    assert {promise for _, promise, _ in BREACHES} == set(PROMISES)


def test_the_contract_needs_neither_a_test_framework_nor_our_agents() -> None:
    code = (
        "import sys, rrl.testing; "
        "print([m for m in ('pytest', 'baselines', 'envs', 'torch', 'grpc', 'numba') if m in sys.modules])"
    )
    project = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
