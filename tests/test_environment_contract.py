"""What every environment promises, simulated or live."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs  # noqa: F401 (registers the environments)
from rrl.agent import observe
from rrl.interval import Watch
from rrl.objective import LeastResources, MeanLatency, StrictSLO
from tests.support.runs.fake_target import FakeClock, FakeTarget

SPACE = "instances=1:4,max_batch_size=1,2,4"


def simulated(objective):
    workload: dict[str, Any] = {"machine": 0, "arrivals": 10.0}
    return gym.make("rrl/SimulatedServing-v0", space=SPACE, objective=objective, **workload).unwrapped


def live(objective):
    clock = FakeClock()
    fake: dict[str, Any] = {"target": FakeTarget(clock), "clock": clock, "sleep": clock.sleep}
    return gym.make("rrl/LiveServing-v0", space=SPACE, objective=objective, **fake).unwrapped


OBJECTIVES = [MeanLatency(), StrictSLO(500.0), LeastResources(500.0)]


@pytest.fixture(params=[simulated, live])
def make(request):
    return request.param


@pytest.fixture(params=OBJECTIVES, ids=lambda objective: type(objective).__name__)
def env(make, request):
    return make(request.param)


def test_gymnasiums_checker_is_content(env):
    check_env(env, skip_render_check=True)


def test_a_step_tells_what_the_contract_names(env):
    env.reset(seed=1)
    for number in (0, len(env.space) - 1):
        observation, reward, terminated, _, info = env.step(env.space.action(number))
        assert info["number"] == number
        assert info["configuration"] == env.space.configuration(number)
        assert info["cost"] == env.objective.cost(info["measurement"], info["configuration"])
        assert reward == -info["cost"]
        assert not terminated
        np.testing.assert_array_equal(observation, observe(info["measurement"], env.space, number))


def test_both_kinds_have_the_same_spaces():
    one, other = simulated(MeanLatency()), live(MeanLatency())
    assert one.observation_space == other.observation_space
    assert one.action_space == other.action_space


def test_reset_puts_the_asked_configuration_in_force(env):
    asked = env.space.configuration(5)
    _, info = env.reset(seed=1, options={"configuration": asked})
    assert info["configuration"] == asked
    assert math.isfinite(info["cost"])


def test_a_reason_to_interrupt_ends_the_interval_and_stands_in_the_measurement(env):
    env.reset(seed=1)
    watch = Watch(lambda progress: "enough" if progress.arrivals >= 10 else "")
    assert env.run(0, watch).measurement.aborted == "enough"
    assert env.step(env.space.action(0))[4]["measurement"].aborted == ""
