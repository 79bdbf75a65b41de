"""What a network is given of an observation, and that GPUs are part of it only where there are some."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baselines import make_agent
from baselines.scaling import Scaling
from rrl.agent import OBSERVATION_FIELDS, Task, Transition, observe, with_gpus
from rrl.measurement import LatencySummary, Measurement
from rrl.testing import SPACE, Server

MEASUREMENT = Measurement(5.0, 100, 100, 0, LatencySummary(20.0, 18.0, 40.0, 60.0), gpu_utilisation=0.5)
FIELDS = len(OBSERVATION_FIELDS)


def scaling(observes_gpus: bool) -> Scaling:
    """That has taken its units from an interval in which the GPUs rested."""
    found = Scaling(Task(SPACE, observes_gpus=observes_gpus))
    at_rest = observe(replace(MEASUREMENT, gpu_utilisation=0.0), SPACE, 0)
    found.see(Transition(at_rest, SPACE.action(0), 20.0, at_rest, MEASUREMENT))
    return found


def test_gpus_are_an_input_where_the_target_tells_of_them() -> None:
    observation = observe(MEASUREMENT, SPACE, 1)
    with_them, without = (scaling(each).inputs(observation) for each in (True, False))
    assert (len(with_them), len(without)) == (FIELDS + len(SPACE.knobs), FIELDS - 1 + len(SPACE.knobs))
    assert with_them[FIELDS - 1] == pytest.approx(np.log(1.5))
    np.testing.assert_array_equal(np.delete(with_them, FIELDS - 1), without)


def test_latencies_stay_apart_where_nothing_was_answered_before_the_first_cost() -> None:
    found = Scaling(Task(SPACE))
    idle, busy = (observe(each, SPACE, 0) for each in (Measurement(5.0, 0, 0, 0), MEASUREMENT))
    found.see(Transition(idle, SPACE.action(0), 200.0, busy, MEASUREMENT))
    slower = replace(MEASUREMENT, latency=LatencySummary(2000.0, 1800.0, 4000.0, 6000.0))
    inputs = found.inputs(observe(slower, SPACE, 0))
    np.testing.assert_allclose(inputs[:3], [0.0, np.log(2001 / 21), np.log(4001 / 41)], rtol=1e-6)


@pytest.mark.parametrize("name", ["capes", "deeprm", "dqn", "ppo"])
def test_agents_tell_gpu_use_apart_only_where_there_are_gpus(name: str) -> None:
    """With them the first layer has one input more for each observation that it is given."""
    agents = [make_agent(name, Task(SPACE, observes_gpus=each), 0) for each in (False, True)]
    for agent in agents:
        server = Server(SPACE)
        server.reset()
        assert SPACE.number_of_action(agent.act(server.observation)) in range(len(SPACE))
        assert agent._scaling.size == FIELDS - 1 + len(SPACE.knobs) + (agent is agents[1])  # type: ignore[attr-defined]


def test_an_observation_of_before_gpus_gets_an_entry_for_them() -> None:
    observation = observe(replace(MEASUREMENT, gpu_utilisation=0.0), SPACE, 5)
    older = np.delete(observation, FIELDS - 1)
    np.testing.assert_array_equal(with_gpus(older, SPACE), observation)
    assert with_gpus(observation, SPACE) is observation
