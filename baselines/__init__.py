"""Agents to compare with RRL, and the names of all agents."""

from __future__ import annotations

from typing import Protocol

from baselines.exhaustive_sweep import ExhaustiveSweep
from baselines.random_search import RandomSearch
from rrl.agent import Agent
from rrl.region_q_learning import LIVE, PAPER, RELEASED, RegionQLearning, RRLSettings
from rrl.space import ConfigurationSpace


class AgentFactory(Protocol):
    def __call__(self, space: ConfigurationSpace, seed: int, background_training: bool = False) -> Agent:
        """An agent. Training in the background costs no waiting, inline it is exactly repeatable."""
        ...


def _rrl(settings: RRLSettings) -> AgentFactory:
    def make(space: ConfigurationSpace, seed: int, background_training: bool = False) -> Agent:
        return RegionQLearning(space, settings, seed, background_training)

    return make


def _random(space: ConfigurationSpace, seed: int, background_training: bool = False) -> Agent:
    return RandomSearch(space, seed)


def _sweep(space: ConfigurationSpace, seed: int, background_training: bool = False) -> Agent:
    return ExhaustiveSweep(space, seed)


AGENTS: dict[str, AgentFactory] = {
    "rrl": _rrl(LIVE),
    "rrl-paper": _rrl(PAPER),
    "rrl-released": _rrl(RELEASED),
    "random": _random,
    "sweep": _sweep,
}
"""The agents that `--agent` knows."""
