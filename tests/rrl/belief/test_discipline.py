"""Whether batches share processors is told apart by what intervals cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from envs.scenarios.families import family_cores, family_machine
from envs.simulated import SimulatedServing
from rrl.belief.belief import Belief
from rrl.measurement import Measurement
from rrl.objective import MeanLatency
from rrl.queueing.simulator import Discipline
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(
    instances=[1, 2, 3, 4, 6, 8], intra_op_threads=[1, 2, 4], inter_op_threads=[1, 2]
)


MACHINES = (2, 4, 6, 7)


def lived(seed: int, discipline: Discipline, told: Callable[[int], bool] = lambda interval: True) -> Belief:
    """What is believed of a machine of the family after 40 intervals of many configurations.

    `told`: whether an interval tells how many instances were busy on average.
    """
    env = SimulatedServing(
        family_machine(seed), SPACE, arrivals=14.0, requests_per_interval=100, discipline=discipline
    )
    env.reset(seed=1)
    belief = Belief(SPACE, MeanLatency(), family_cores(seed))
    for interval, number in enumerate(np.random.default_rng(1).choice(len(SPACE), 40)):
        if not belief.known or belief.bears(np.array([number]), 0.8)[0]:
            seen = env.step(SPACE.action(int(number)))[4]["measurement"]
            belief.learn(int(number), seen if told(interval) else untold(seen))
    return belief


def untold(measurement: Measurement) -> Measurement:
    rows = tuple(row._replace(mean_busy=float("nan")) for row in measurement.telemetry)
    return replace(measurement, telemetry=rows)


@pytest.mark.parametrize(("discipline", "found"), [("fcfs", range(1)), ("ps", range(2, 5))])
def test_where_processors_are_shared_that_is_found_and_never_where_they_are_not(
    discipline: Discipline, found: range
) -> None:
    assert sum(lived(seed, discipline).sharing for seed in MACHINES) in found


def test_where_the_instances_busy_on_average_are_not_told_nothing_is_shared() -> None:
    assert not lived(2, "ps", told=lambda interval: False).sharing


def test_an_interval_that_does_not_tell_them_is_learned_from_as_well() -> None:
    belief = lived(MACHINES[-1], "ps", told=lambda interval: interval < 30)
    assert belief.sharing
    assert np.isfinite(belief.service_times.expected_s(SPACE.configuration(0), 1)).all()
