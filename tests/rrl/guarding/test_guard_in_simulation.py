"""The guard with a belief of its own, over a simulated server: slow machines, bursts, and who is to blame."""

from __future__ import annotations

import math

import numpy as np
import pytest

from envs.simulated import SimulatedServing
from rrl.belief.belief import Belief
from rrl.guarding.guard import Admission, Guard, Judgement
from rrl.interval import Watch
from rrl.objective import MeanLatency
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace
from serving_adapter.load.arrivals import Arrivals, Bursts, Poisson

SPACE = ConfigurationSpace.of(instances=[1, 2, 4], max_batch_size=[1, 4, 8])
START, GOOD, CROWDED, MANY, SMALLER, ONE_BY_ONE = (
    SPACE.number({"instances": n, "max_batch_size": b})
    for n, b in ((1, 1), (2, 8), (4, 1), (4, 8), (2, 4), (2, 1))
)
ONE = np.array([1])


class Guarded:
    """A run of intervals under a guard. Four instances hinder one another `crowding` times as much."""

    def __init__(self, arrivals: Arrivals | None = None, crowding: float = 1.0) -> None:
        times_s = np.array([[[[20, 40], [25, 50], [60 * crowding, 90 * crowding]]]]) / 1e3
        self.machine = Machine(ONE, ONE, np.array([1, 2, 4]), np.array([1, 8]), times_s)
        self.env = SimulatedServing(
            self.machine,
            SPACE,
            arrivals=arrivals or Poisson(40.0),
            interval_s=4.0,
            start=SPACE.configuration(START),
        )
        self.env.np_random = np.random.default_rng(0)
        belief = Belief(SPACE, MeanLatency(), cores=2)
        self.guard = Guard(self.env.start, expectation=belief)
        self.guard.enter(START)
        self._measured(START, baseline=True)

    def tried(self, number: int) -> tuple[Admission, Judgement]:
        admission = self.guard.admit(None if self.guard.takes_over else number)
        return admission, self._measured(admission.number)

    def slowed(self, factor: float) -> None:
        self.env._simulation.machine = self.machine.slower(factor)

    def _measured(self, number: int, baseline: bool = False) -> Judgement:
        interval = self.env.run(number, Watch(self.guard.watch))
        kind = "baseline" if baseline else "tune"
        return self.guard.judge(number, interval.cost, interval.measurement, kind)  # type: ignore[arg-type]


def test_a_machine_that_is_slow_for_a_while_brings_no_rollback_and_does_not_make_the_start_better() -> None:
    run = Guarded()
    for _ in range(4):
        run.tried(GOOD)
    assert run.guard.best == GOOD
    run.slowed(2.0)
    slow = [run.tried(GOOD) for _ in range(6)]
    assert {admission.number for admission, _ in slow} == {GOOD}
    assert not any(judgement.rollback for _, judgement in slow)
    assert run.guard.best == GOOD
    run.slowed(1.0)
    for _ in range(4):
        run.tried(GOOD)
    assert run.guard.best == run.guard.to_keep() == GOOD


@pytest.mark.parametrize(("number", "slower"), [(SMALLER, 1.9), (ONE_BY_ONE, 1.5)])
def test_what_is_tried_on_a_slow_machine_is_not_blamed_for_it(number: int, slower: float) -> None:
    """Where requests are taken one by one, all may take longer by itself: that is blamed sooner."""
    run = Guarded()
    for _ in range(4):
        run.tried(GOOD)
    run.slowed(slower)
    for _ in range(3):
        _, judgement = run.tried(number)
        assert not judgement.rollback


def test_bursts_bring_no_rollback_and_do_not_hide_what_is_better() -> None:
    """Requests come for 0.8 s, none for 3 s, on average. The start has met other minutes than the others."""
    run = Guarded(Bursts(30.0, burst_ratio=math.inf, mean_burst_s=0.8, mean_calm_s=3.0))
    for number in (GOOD, MANY) * 12:
        _, judgement = run.tried(number)
        assert not judgement.rollback
    assert run.guard.to_keep() in (GOOD, MANY)


@pytest.mark.parametrize("crowding", [5.0, 10.0])
def test_a_configuration_that_is_worse_by_itself_is_rolled_back(crowding: float) -> None:
    run = Guarded(crowding=crowding)
    for _ in range(3):
        run.tried(GOOD)
    _, judgement = run.tried(CROWDED)
    assert judgement.rollback
    admission, _ = run.tried(CROWDED)
    assert admission[:2] == (GOOD, "rollback")


def test_a_start_that_bears_the_load_no_more_is_not_returned_to() -> None:
    run = Guarded()
    for _ in range(3):
        run.tried(GOOD)
    run.slowed(1.6)  # one instance bears 31 requests a second now
    for number in (CROWDED, GOOD, CROWDED, GOOD):
        admission, _ = run.tried(number)
        assert admission.number != START
    assert run.guard.choice.start_is_overloaded
    assert run.guard.to_keep() != START
