"""Agents to compare with RRL, and the names of all agents.

A method's libraries are imported when an agent of it is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rrl.agent import Agent, Task


class AgentFactory(Protocol):
    def __call__(self, task: Task, seed: int, background_training: bool = False) -> Agent:
        """An agent; ValueError with one sentence if it cannot act on this task.

        Training in the background costs no waiting, inline it is exactly repeatable.
        """
        ...


def make_agent(name: str, task: Task, seed: int = 0, background_training: bool = False) -> Agent:
    """The agent of this name; ValueError that lists the known ones, or says why it cannot act on the task."""
    if name not in AGENTS:
        raise ValueError(unknown_agent(name, AGENTS))
    return AGENTS[name](task, seed, background_training)


def unknown_agent(name: str, known: Iterable[str]) -> str:
    """What a user is told who names none of the agents known where it was named."""
    return f"unknown agent {name!r}; known: {', '.join(known)}"


def _rrl(task: Task, seed: int, background_training: bool = False) -> Agent:
    from rrl.guided.agent import GUIDED, GuidedRRL

    return GuidedRRL(task, GUIDED, seed, background_training)


def _rrl_tuned(task: Task, seed: int, background_training: bool = False) -> Agent:
    from rrl.region.q_learning import TUNED, RegionQLearning

    return RegionQLearning(task.space, TUNED, seed, background_training)


def _rrl_paper(task: Task, seed: int, background_training: bool = False) -> Agent:
    from rrl.region.q_learning import PAPER, RegionQLearning

    return RegionQLearning(task.space, PAPER, seed, background_training)


def _rrl_released(task: Task, seed: int, background_training: bool = False) -> Agent:
    from rrl.region.q_learning import RELEASED, RegionQLearning

    return RegionQLearning(task.space, RELEASED, seed, background_training)


def _rrl_released_exact(task: Task, seed: int, background_training: bool = False) -> Agent:
    from rrl.region.q_learning import RELEASED_EXACT, RegionQLearning

    return RegionQLearning(task.space, RELEASED_EXACT, seed, background_training)


def _point_q(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.point_q_learning import POINT_BASED
    from rrl.region.q_learning import RegionQLearning

    return RegionQLearning(task.space, POINT_BASED, seed, background_training)


def _capes(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.capes import CAPES, PAPER

    return CAPES(task, PAPER, seed)


def _capes_tuned(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.capes import CAPES, TUNED

    return CAPES(task, TUNED, seed)


def _deeprm(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.deeprm import PAPER, DeepRM

    return DeepRM(task, PAPER, seed)


def _deeprm_tuned(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.deeprm import TUNED, DeepRM

    return DeepRM(task, TUNED, seed)


def _dqn(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.stable_baselines import StableBaselinesDQN

    return StableBaselinesDQN(task, seed)


def _ppo(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.stable_baselines import StableBaselinesPPO

    return StableBaselinesPPO(task, seed)


def _optuna_tpe(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.optuna_search import OptunaSearch

    return OptunaSearch(task, "tpe", seed)


def _optuna_gp(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.optuna_search import OptunaSearch

    return OptunaSearch(task, "gp", seed)


def _quick_search(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.quick_search import QuickSearch

    return QuickSearch(task)


def _quick_search_all(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.quick_search import QuickSearch, QuickSearchSettings

    return QuickSearch(task, QuickSearchSettings(every_knob=True))


def _gp_bandit(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.gaussian_process import GaussianProcessBandit

    return GaussianProcessBandit(task, seed)


def _serf(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.serf import SERF

    return SERF(task)


def _aimd(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.aimd import AIMD

    return AIMD(task)


def _random(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.random_search import RandomSearch

    return RandomSearch(task.space, seed)


def _sweep(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.exhaustive_sweep import ExhaustiveSweep

    return ExhaustiveSweep(task.space, seed)


def _best_fixed(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.hindsight import BestFixed

    return BestFixed(task)


def _oracle(task: Task, seed: int, background_training: bool = False) -> Agent:
    from baselines.hindsight import Oracle

    return Oracle(task)


AGENTS: dict[str, AgentFactory] = {
    "rrl": _rrl,
    "rrl-tuned": _rrl_tuned,
    "rrl-paper": _rrl_paper,
    "rrl-released": _rrl_released,
    "rrl-released-exact": _rrl_released_exact,
    "point-q": _point_q,
    "capes": _capes,
    "capes-tuned": _capes_tuned,
    "deeprm": _deeprm,
    "deeprm-tuned": _deeprm_tuned,
    "dqn": _dqn,
    "ppo": _ppo,
    "optuna-tpe": _optuna_tpe,
    "optuna-gp": _optuna_gp,
    "quick-search": _quick_search,
    "quick-search-all": _quick_search_all,
    "gp-bandit": _gp_bandit,
    "serf": _serf,
    "aimd": _aimd,
    "random": _random,
    "sweep": _sweep,
    "best-fixed": _best_fixed,
    "oracle": _oracle,
}
"""The agents that `rrl-compare --agents` knows; `rrl-tune --agent` takes those that need no hindsight."""

NEED_HINDSIGHT = ("best-fixed", "oracle")
"""The agents that must be told the load to come and the true cost of every configuration: bounds."""

NEED_MACHINE = ("serf",)
"""The agents that must be told the service times, profiled beforehand."""
