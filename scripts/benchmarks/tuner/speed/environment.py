"""`environment`: simulated steps of 100 requests on one core, against gymnasium's vector of environments.

Both step the same environments with the same seeds and actions and must give the same rewards. Every interval
starts with an empty server, so that random actions pile up no backlog without end.
"""

from __future__ import annotations

from statistics import median
from time import process_time
from typing import Any

import gymnasium as gym
import numpy as np

import envs  # noqa: F401 (registers the environments)

ENVIRONMENTS = 64
STEPS = 300  # of each environment, through ours
PEER_STEPS = 40  # the first of the same, through gymnasium's
ROUNDS = 3
REACH_PER_S = 20_000
LARGEST_DIFFERENCE = 1e-9  # of any reward, relative


def run() -> dict[str, Any]:
    ours = gym.make_vec("rrl/SimulatedServing-v0", num_envs=ENVIRONMENTS, carry_backlog=False)
    peer = gym.make_vec(
        "rrl/SimulatedServing-v0", num_envs=ENVIRONMENTS, vectorization_mode="sync", carry_backlog=False
    )
    ours.action_space.seed(0)
    actions = [ours.action_space.sample() for _ in range(STEPS)]
    _rewards(ours, actions[:2])  # compiles
    _rewards(peer, actions[:2])

    ours_per_s, peer_per_s, differences = [], [], []
    print(f"{ENVIRONMENTS} environments of 1,000 configurations; processor time of one core")
    print(
        f"{'round':>5} {'ours':>9} {'gymnasium':>9} {'ratio':>6}   steps/s    largest difference of rewards"
    )
    for i in range(ROUNDS):
        ours_s, rewards = _rewards(ours, actions)
        peer_s, peer_rewards = _rewards(peer, actions[:PEER_STEPS])
        ours_per_s.append(ENVIRONMENTS * STEPS / ours_s)
        peer_per_s.append(ENVIRONMENTS * PEER_STEPS / peer_s)
        differences.append(float(np.max(np.abs(rewards[:PEER_STEPS] / peer_rewards - 1))))
        ratio = ours_per_s[-1] / peer_per_s[-1]
        print(f"{i:5} {ours_per_s[-1]:9,.0f} {peer_per_s[-1]:9,.0f} {ratio:6.1f} {differences[-1]:37.1e}")

    value = median(ours_per_s)
    print(f"reach: {REACH_PER_S:,}/s, the same rewards")
    return {
        "value": round(value),
        "unit": "steps/s",
        "peer": round(median(peer_per_s)),
        "ratio": round(median(a / b for a, b in zip(ours_per_s, peer_per_s, strict=True)), 1),
        "reach": REACH_PER_S,
        "holds": value >= REACH_PER_S and max(differences) <= LARGEST_DIFFERENCE,
    }


def _rewards(environments: gym.vector.VectorEnv, actions: list[np.ndarray]) -> tuple[float, np.ndarray]:
    """Processor seconds of these steps, and (steps, environments) the rewards."""
    environments.reset(seed=0)
    began = process_time()
    rewards = [environments.step(action)[1] for action in actions]
    return process_time() - began, np.stack(rewards)
