"""Arrivals of one's own are checked as they are read, and go along where an environment is copied."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from envs.arrival_chunks import ArrivalChunks
from envs.simulated import SimulatedServing
from envs.vector import SimulatedServingVector
from serving_adapter.load.arrivals import ARRIVALS_PER_CHUNK, Bursts
from serving_adapter.load.sizes import LognormalSizes

STEPS = 2 * ARRIVALS_PER_CHUNK // 100  # more than a chunk of arrivals
SETTINGS: dict[str, Any] = {
    "space": "instances=1:4,max_batch_size=1,2,4",
    "arrivals": Bursts(20.0),
    "sizes": LognormalSizes(32, 0.6),
    "size_of_table": 320,
    "service_variation": 0.3,
}


@dataclass(frozen=True)
class Chunks:
    """Arrivals as they stand there."""

    chunks: tuple[Any, ...]
    mean_rate_per_s: float = math.nan

    def times_s(self, rng: np.random.Generator) -> Iterator[Any]:
        return iter(self.chunks)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize(
    ("env", "action"),
    [
        (SimulatedServing(**SETTINGS), np.array([2, 1])),
        (SimulatedServingVector(num_envs=2, **SETTINGS), np.array([[2, 1], [0, 2]])),
    ],
    ids=["one", "many"],
)
def test_a_copy_of_an_environment_goes_on_as_it_would(
    env: Any, action: np.ndarray, again: Callable[[Any], Any]
) -> None:
    env.reset(seed=3)
    for _ in range(STEPS):
        env.step(action)
    copied = again(env)
    steps = [(env.step(action), copied.step(action)) for _ in range(STEPS)]
    assert all(np.array_equal(one[0], other[0]) for one, other in steps)
    assert all(np.array_equal(one[1], other[1]) for one, other in steps)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (([3.0, 1.0],), "ascend from 0, got 3, 1 after 0"),
        (([1.0, 2.0], [0.5]), "ascend from 0, got 0.5 after 2"),
        (([-1.0],), "ascend from 0, got -1 after 0"),
        (([1.0, math.nan, 3.0, 4.0],), r"got 1, nan, 3, \.\.\. after 0"),
        (([1.0, math.inf],), "finite seconds"),
        ((1.0, 2.0), "one-dimensional arrays of seconds, got one of shape"),
        ((["a"],), "one-dimensional arrays of seconds"),
    ],
)
def test_arrivals_that_do_not_ascend_are_refused(chunks: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(ArrivalChunks(Chunks(chunks), np.random.default_rng(0)))


def test_arrivals_may_come_at_one_moment_and_chunks_may_be_empty() -> None:
    chunks: tuple[list[float], ...] = ([0.0, 0.0], [], [0.0, 2.0])
    read = list(ArrivalChunks(Chunks(chunks), np.random.default_rng(0)))
    assert [chunk.tolist() for chunk in read] == list(chunks)


def test_both_environments_refuse_arrivals_that_do_not_ascend() -> None:
    for env in (
        SimulatedServing(arrivals=Chunks(([3.0, 1.0],))),
        SimulatedServingVector(2, arrivals=Chunks(([3.0, 1.0],))),
    ):
        with pytest.raises(ValueError, match="ascend from 0"):
            env.reset(seed=0)
