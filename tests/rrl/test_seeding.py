"""Anything that NumPy takes as a seed is one, everywhere; the rest is refused in a sentence."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from baselines import AGENTS, make_agent
from envs.simulated import SimulatedServing
from envs.vector import SimulatedServingVector
from rrl.agent import live
from rrl.seeding import whole_seed
from rrl.testing import SPACE, Server, full_task
from tests.support import CHECKOUT

SEEDS = [
    np.int64(7),
    np.uint8(7),
    True,
    2**80,
    [1, 2],
    (3,),
    np.array([1, 2]),
    np.random.SeedSequence(5),
    None,
]


def test_a_whole_number_is_itself_and_whatever_else_is_always_the_same() -> None:
    assert [whole_seed(seed) for seed in (0, 7, np.int64(7), 2**32 - 1)] == [0, 7, 7, 2**32 - 1]
    assert whole_seed([1, 2]) == whole_seed((1, 2)) == whole_seed(np.array([1, 2])) != whole_seed([2, 1])
    assert whole_seed(2**80) == whole_seed(2**80) < 2**32
    assert whole_seed(2**80, below=None) == 2**80
    assert whole_seed(None) != whole_seed(None)


@pytest.mark.parametrize("seed", [-1, 1.5, "seven", [1, -2], [0.5], object()])
def test_what_is_no_seed_is_refused_in_a_sentence(seed: Any) -> None:
    with pytest.raises(ValueError, match="a seed must be a whole number from 0 up, a sequence of such"):
        whole_seed(seed)
    with pytest.raises(ValueError, match="a seed must be"):
        make_agent("random", full_task(SPACE), seed)
    with pytest.raises(ValueError, match="a seed must be"):
        SimulatedServing().reset(seed=seed)


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_every_agent_takes_every_seed(name: str) -> None:
    make_agent(name, full_task(SPACE), [1, 2]).close()


@pytest.mark.parametrize("seed", [np.int64(7), [1, 2]])
def test_an_agent_decides_the_same_under_the_same_seed(seed: Any) -> None:
    decided = [
        [t.action.tolist() for t in live(make_agent("random", full_task(SPACE), seed), Server(SPACE), 9)]
        for _ in range(2)
    ]
    assert decided[0] == decided[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_environments_take_every_seed(seed: Any) -> None:
    one, many = SimulatedServing(), SimulatedServingVector(2)
    one.reset(seed=seed)
    many.reset(seed=[seed, None])
    if np.ndim(np.asarray(seed, object)) == 0:
        many.reset(seed=seed)


def test_environments_of_the_same_seed_are_the_same_whatever_kind_of_number_it_is() -> None:
    many = SimulatedServingVector(2)
    expected = many.reset(seed=7)[0]
    for seed in (np.int64(7), [7, 8], (np.int32(7), 8), np.array([7, 8])):
        np.testing.assert_array_equal(many.reset(seed=seed)[0], expected)
    np.testing.assert_array_equal(expected[0], SimulatedServing().reset(seed=7)[0])
    np.testing.assert_array_equal(many.reset(seed=[7, None])[0][0], expected[0])


@pytest.mark.parametrize("seed", [[1], [1, 2, 3], np.array(7)])
def test_a_wrong_number_of_seeds_is_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match="give one seed for each of the 2 environments, got"):
        SimulatedServingVector(2).reset(seed=seed)


def test_numbers_of_numpys_are_numbers_for_an_environment() -> None:
    ours = SimulatedServing(machine=np.int64(3), arrivals=np.float32(14))  # type: ignore[arg-type]
    same = SimulatedServing(machine=3, arrivals=14.0)
    np.testing.assert_array_equal(ours.reset(seed=1)[0], same.reset(seed=1)[0])


def test_an_environment_is_found_in_a_process_that_has_imported_nothing() -> None:
    """As in the processes of a vector environment that are started anew."""
    code = "import gymnasium; print(gymnasium.make('envs:rrl/SimulatedServing-v0').spec.id)"
    said = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=CHECKOUT, capture_output=True, text=True
    )
    assert said.stdout == "rrl/SimulatedServing-v0\n"
    assert gym.spec("rrl/SimulatedServing-v0").entry_point is not None
