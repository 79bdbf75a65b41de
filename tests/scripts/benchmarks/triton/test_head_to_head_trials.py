"""How the runs of a comparison on a stock Triton are made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from envs.live import LiveServing
from rrl.agent import Agent, Transition
from rrl.space import ConfigurationSpace
from scripts.benchmarks.triton.head_to_head_trials import TrialPlan, _finalists, _tuned, contenders
from scripts.serving import served_agents
from scripts.serving.in_turns import InTurns
from scripts.serving.served_agents import Served
from tests.support.client_requests import rounds
from tests.support.runs.fake_target import FakeClock, FakeTarget, live
from tests.support.runs.trials import BAD, BEST, NEARLY, SPACE, START, case, trial


def test_finalists_are_chosen_before_anything_was_measured_in_turns() -> None:
    seen = case(trial("sweep", [START, NEARLY, BAD, BEST], left=BEST), finals=())
    assert _finalists(seen, 2) == sorted({START, NEARLY, BEST})


@pytest.mark.parametrize("guarded", [True, False])
def test_the_guard_ends_what_a_peer_overloads_and_refuses_it_from_then_on(
    guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One instance answers 50 of 80 requests a second, and the peer proposes nothing else."""

    class Reckless(Agent):
        def act(self, observation: np.ndarray) -> np.ndarray:
            return SPACE.action(START)

        def update(self, transition: Transition) -> None: ...

    monkeypatch.setattr(served_agents, "LiveServing", live_by_its_clock)
    target = FakeTarget(FakeClock(), rate_per_s=80.0)
    served = Served(target, SPACE, {"instances": 2}, 0, 5.0, 1.0, tmp_path)  # type: ignore[arg-type]
    plan = TrialPlan(14, 5.0, guarded=guarded)
    found = _tuned("quick-search", Reckless(), served, plan, lambda: False)
    tried = [each for each in found.tuning if each.number == START]
    assert bool(tried[0].measurement.aborted) is guarded
    assert len(tried) == (1 if guarded else len(found.tuning))
    assert {each.decision for each in found.tuning[1:]} == ({"rollback", "refused"} if guarded else {"agent"})


def live_by_its_clock(
    target: FakeTarget, space: ConfigurationSpace, objective: object, interval_s: float, settle_s: float
) -> LiveServing:
    return live(target, space, interval_s=interval_s, settle_s=settle_s)


def test_those_that_may_still_be_the_best_are_measured_in_more_rounds() -> None:
    seen = InTurns(rounds({START: (40.0, 40.0), BEST: (10.0, 10.0), NEARLY: (12.0, 12.0), BAD: (13.0, 13.0)}))
    assert contenders(seen) == [BEST, NEARLY]
    assert contenders(InTurns(rounds({START: (40.0, 40.0), BEST: (10.0, 10.0)}))) == []
