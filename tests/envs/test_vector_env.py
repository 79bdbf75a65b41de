"""The vector environment gives what the single environments give."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from envs.scenarios.families import family_machine
from envs.scenarios.workloads import PerIntervalPoisson
from envs.simulated import SimulatedServing
from envs.vector import SimulatedServingVector
from rrl.objective import LeastResources, StrictSLO
from rrl.queueing.inter_node import InterNodeCost, over_nodes
from rrl.queueing.machine import Machine
from serving_adapter.load.arrivals import Bursts, Uniform
from serving_adapter.load.sizes import LognormalSizes

ID = "rrl/SimulatedServing-v0"
BATCHES = "instances=1:4,intra_op_threads=1,2,4,max_batch_size=1,2,8,max_queue_delay_us=0,20000,200000"

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "empty starts": {"carry_backlog": False, "arrivals": 30.0},
    "shared processors": {"discipline": "ps", "space": BATCHES, "arrivals": 20.0},
    "shared, empty starts": {"discipline": "ps", "space": BATCHES, "carry_backlog": False},
    "two-sizes and variation": {
        "sizes": LognormalSizes(32, 0.6),
        "size_of_table": 32,
        "service_variation": 0.4,
        "padded_batches": True,
        "space": BATCHES,
        "objective": StrictSLO(400.0),
    },
    "bursts by time": {"arrivals": Bursts(20.0), "interval_s": 3.0, "objective": LeastResources(500.0)},
    "slowdown": {"slowdown": (3, 1.5), "machine": family_machine(3), "carry_backlog": False},
    "several nodes": {
        "machine": over_nodes(Machine.invent(1), (1, 2, 4), InterNodeCost(0.05)),
        "space": "instances=1:3,intra_op_threads=1,4,nodes_per_unit=1,2,4",
    },
    "one instance": {"space": "intra_op_threads=1,2,4", "arrivals": 2.0},
    "nothing arrives for long": {"arrivals": 0.2, "interval_s": 1.0},
    "all at once": {"arrivals": Uniform(1e12), "requests_per_interval": 4},
    "it ends": {"arrivals": PerIntervalPoisson(np.linspace(8.0, 20.0, 5), 30), "requests_per_interval": 30},
    "it ends in an interval": {"arrivals": PerIntervalPoisson(np.full(3, 9.0)), "requests_per_interval": 70},
}


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        if isinstance(expected, dict):
            assert_same(ours[name], expected)
        elif name == "measurement":
            for one, other in zip(ours[name], expected, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    assert_close(one.to_json(), other.to_json())
        else:
            np.testing.assert_allclose(ours[name], expected, rtol=1e-9, err_msg=name)


def assert_close(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_close(one[name], other[name])
    elif isinstance(one, list):
        assert np.shape(one) == np.shape(other)
        assert np.ravel(one).tolist() == pytest.approx(np.ravel(other).tolist(), rel=1e-9)
    else:
        assert type(one) is type(other)
        assert one == (other if isinstance(one, str | None) else pytest.approx(other, rel=1e-9))


@pytest.mark.parametrize("name", SETTINGS)
def test_it_gives_what_gymnasiums_vector_of_single_environments_gives(name: str) -> None:
    ours = gym.make_vec(ID, num_envs=3, **SETTINGS[name])
    theirs = gym.make_vec(ID, num_envs=3, vectorization_mode="sync", **SETTINGS[name])
    assert isinstance(ours, SimulatedServingVector)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    rng = np.random.default_rng(1)
    sizes = np.array(theirs.single_action_space.nvec)  # type: ignore[attr-defined]
    seed: Any  # a list is one for each: Gymnasium's annotation lags behind its code
    for seed in (5, None, [2, 9, 4]):
        one, other = ours.reset(seed=seed), theirs.reset(seed=seed)
        if seed is None:
            continue  # without a seed each goes on with the generator it has, from the same state
        np.testing.assert_allclose(one[0], other[0], rtol=1e-6)
        assert_same(one[1], other[1])
        for _ in range(14):
            actions = rng.integers(sizes, size=(3, len(sizes)))
            told, expected = ours.step(actions), theirs.step(actions)
            for got, wanted in zip(told[:4], expected[:4], strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-6)
            assert ours.observation_space.contains(told[0])
            assert_same(told[4], expected[4])


def test_a_workload_that_ends_resets_itself_at_the_next_step() -> None:
    env = SimulatedServingVector(2, **SETTINGS["it ends"])
    assert env.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    env.reset(seed=0)
    ends = [env.step(np.zeros((2, 3), int))[1:4] for _ in range(5)]
    assert [bool(truncated.all()) for _, _, truncated in ends] == [False, False, False, True, False]
    assert ends[4][0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("mode", [None, "sync"])
def test_episodes_are_truncated_after_as_many_steps_as_asked(mode: str | None) -> None:
    env = gym.make_vec(ID, num_envs=2, vectorization_mode=mode, max_episode_steps=3)
    env.reset(seed=0)
    truncated = [env.step(np.zeros((2, 3), int))[3].tolist() for _ in range(8)]
    assert [each[0] for each in truncated] == [False, False, True, False, False, False, True, False]
    assert all(one == other for one, other in truncated)


@pytest.mark.parametrize("mode", [None, "sync"])
def test_a_workload_that_ends_within_the_first_interval_can_not_be_stepped(mode: str | None) -> None:
    arrivals = PerIntervalPoisson(np.full(1, 9.0), 30)
    env = gym.make_vec(ID, num_envs=2, vectorization_mode=mode, arrivals=arrivals, requests_per_interval=30)
    env.reset(seed=0)
    with pytest.raises(gym.error.ResetNeeded, match="the workload"):
        env.step(np.zeros((2, 3), int))


def test_it_tells_the_seeds_and_generators_as_gymnasiums_vector_does() -> None:
    ours, theirs = (gym.make_vec(ID, num_envs=2, vectorization_mode=mode) for mode in (None, "sync"))
    for seed in (5, [3, None], None):  # None: its random numbers go on
        for env in (ours, theirs):
            env.reset(seed=seed)  # type: ignore[arg-type]
        assert ours.np_random_seed == theirs.np_random_seed
    generators: Any = [env.np_random for env in (ours, theirs)]  # Gymnasium declares a single one
    drawn = [[generator.random() for generator in each] for each in generators]
    assert drawn[0] == drawn[1]


def test_only_those_of_the_mask_are_reset() -> None:
    env = SimulatedServingVector(3, arrivals=5.0)
    before, _ = env.reset(seed=1)
    env.step(np.zeros((3, 3), int))
    mask = np.array([False, True, False])
    after, info = env.reset(seed=1, options={"reset_mask": mask})
    assert after[1].tolist() == before[1].tolist()
    assert after[0].tolist() != before[0].tolist()
    assert info["_cost"].tolist() == mask.tolist()
    assert info["measurement"][0] is None


def test_reset_puts_the_asked_configuration_in_force() -> None:
    env = SimulatedServingVector(2, space="instances=1:4,intra_op_threads=1,2")
    asked = {"instances": 3, "intra_op_threads": 2}
    _, info = env.reset(seed=1, options={"configuration": asked})
    assert info["number"].tolist() == [SimulatedServing(space=env._one.space).space.number(asked)] * 2
    assert info["configuration"]["instances"].tolist() == [3, 3]


def test_wrong_use_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="num_envs must be at least 1"):
        SimulatedServingVector(0)
    with pytest.raises(ValueError, match="max_episode_steps must be at least 1"):
        SimulatedServingVector(2, max_episode_steps=0)
    with pytest.raises(ValueError, match="requests_per_interval"):
        SimulatedServingVector(2, requests_per_interval=0)
    env = SimulatedServingVector(2)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros((2, 3), int))
    with pytest.raises(ValueError, match="one seed for each"):
        env.reset(seed=[1])
    for mask in (np.array([True]), np.zeros(2, bool), np.ones(2)):
        with pytest.raises(ValueError, match="reset_mask must be 2 booleans"):
            env.reset(options={"reset_mask": mask})
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"inter_op_threads 0 to 9.*, got array"):
        env.step(np.full((2, 3), 10))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros(1, int), "give a row for each environment"),
        (np.zeros((1, 1), int), "give 3 actions, one for each environment, got 1"),
        (np.zeros((3, 2), int), "give a row for each environment"),
        (np.full((3, 1), 4), "instances 0 to 3"),
        (np.full((3, 1), -1), "instances 0 to 3"),
        (np.full((3, 1), 0.5), "whole number of each knob's value"),
        (np.full((3, 1), np.nan), "whole number of each knob's value"),
        (None, "give a row for each environment"),
    ],
)
def test_what_is_no_action_of_each_environment_is_refused(actions: Any, message: str) -> None:
    servers = SimulatedServingVector(num_envs=3, space="instances=1:4")
    servers.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        servers.step(actions)


def test_options_that_reset_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown options config; reset takes configuration and reset_mask"):
        SimulatedServingVector(num_envs=2).reset(options={"config": {}})
