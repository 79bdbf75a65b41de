"""The agents as data: for each name what it is, where its class lies, what it needs and how long it takes.

These follow from `AGENTS`: `make_agent`, the choice, help text and refusals of `rrl-tune --agent`, the order
of a comparison's runs, and the documentation's table of agents (`markdown_table`). A method's libraries are
imported when an agent of it is made. Installed packages add agents of theirs (`installed_agents`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from inspect import isabstract, signature
from typing import Any, Literal, Protocol

from baselines.installed_agents import installed_agents
from rrl.agent import Agent, Task
from rrl.agent_names import FORMER_NAMES, present_name, taken_for
from rrl.joint import is_joint
from rrl.seeding import Seed, whole_seed

Need = Literal["hindsight", "machine"]
"""What a task must hold beside its space: the truth of a simulation, or service times profiled beforehand."""

NEEDS_IN_WORDS: dict[Need, str] = {"hindsight": "a simulation", "machine": "a machine file"}
FLAGS: dict[Need, str] = {"machine": "--machine"}
"""The flag of `rrl-tune` that gives what an agent needs. Nothing gives it hindsight."""


OURS = "rrl-tune"
UNKNOWN_DECIDE_MS = 1000.0
"""Taken for agents that `AGENTS` does not list, and for those of other packages."""


class LibraryMissing(ImportError, ValueError):
    """An agent's own library is not installed here: one sentence, which says how to get it."""


class AgentFactory(Protocol):
    """Makes agents of one kind; every entry of `AGENTS` is one."""

    def __call__(self, task: Task, seed: int, background_training: bool = False) -> Agent:
        """An agent; ValueError with one sentence if it cannot act on this task.

        Training in the background costs no waiting. Inline training repeats exactly.
        """
        ...


@dataclass(frozen=True)
class AgentEntry:
    """One agent that can be named on a command line."""

    agent: str  # "module:class"
    method: str  # in a few words
    paper: str  # or library that the method comes from; empty if it needs no source
    typical_decide_ms: float  # with 1,000 configurations on one core; the slowest runs start first
    settings: str | None = None  # "module:constant" for the class's `settings`; None keeps its defaults
    arguments: Mapping[str, object] = field(default_factory=dict)  # further arguments of the class
    needs: tuple[Need, ...] = ()
    libraries: tuple[str, ...] = ()  # distributions that make its numbers, beside those of all agents
    joint: str | None = None  # "module:class" for several models together; None: the same class
    origin: str = OURS  # the installed package that it is from

    def __call__(
        self, task: Task, seed: Seed, background_training: bool = False, settings: object = None
    ) -> Agent:
        """An agent of this entry, with its own settings or those given.

        The class takes what it wants of the arguments task, space, seed, background_training and settings.
        ValueError if it is of another package and cannot be imported, or if a library of its own is missing.
        """
        offered = {
            "task": task,
            "space": task.space,
            "seed": whole_seed(seed),
            "background_training": background_training,
        }
        settings = self.load_settings() if settings is None else settings
        if settings is not None:
            offered["settings"] = settings
        make = self._load_class(self.joint if self.joint and is_joint(task.space) else self.agent)
        wanted = signature(make).parameters
        given = {name: v for name, v in offered.items() if name in wanted} | dict(self.arguments)
        self._check_contract(make, given)
        agent = make(**given)
        if not isinstance(agent, Agent):
            raise ValueError(f"{self.agent} of {self.origin} is no subclass of rrl.Agent: make it one")
        return agent

    def _check_contract(self, make: Any, given: Mapping[str, object]) -> None:
        """ValueError for a class that lacks a method of every agent, or asks for what no agent is given."""
        if isabstract(make):
            lacking = ", ".join(sorted(make.__abstractmethods__))
            raise ValueError(f"{self.agent} of {self.origin} lacks the method {lacking} of every rrl.Agent")
        try:
            signature(make).bind(**given)
        except TypeError as error:
            raise ValueError(
                f"{self.agent} of {self.origin} cannot be made ({error}): an agent is given what it names of "
                "task, space, seed and background_training"
            ) from error

    def _load_class(self, path: str) -> Any:
        try:
            return _imported(path)
        except (ImportError, AttributeError) as error:
            if isinstance(error, ModuleNotFoundError) and self.libraries:
                needed = _needed_by(path.partition(":")[2], self.libraries)
                raise LibraryMissing(f"{needed} ({error})") from error
            if self.origin == OURS:
                raise
            raise ValueError(f"{path} of {self.origin} cannot be imported: {error}") from error

    def load_settings(self) -> Any:
        """The hyper-parameters of the entry; None where those are the class's defaults."""
        return None if self.settings is None else _imported(self.settings)


AGENTS: dict[str, AgentEntry] = {
    "guided": AgentEntry(
        "rrl.guided.agent:Guided",
        "the default: a queueing model learned from telemetry, arrivals replayed; it has no network",
        "ours, after SERF (Yan et al., SC'16)",
        typical_decide_ms=10.0,
        settings="rrl.guided.agent:GUIDED",
        joint="rrl.guided.joint_agent:JointGuided",
    ),
    "rrl-tuned": AgentEntry(
        "rrl.region.q_learning:RegionQLearning",
        "region-based Q-learning, with settings for tens of decisions",
        "RRL",
        typical_decide_ms=60.0,
        settings="rrl.region.q_learning:TUNED",
    ),
    "rrl-paper": AgentEntry(
        "rrl.region.q_learning:RegionQLearning",
        "region-based Q-learning, Algorithm 1; what the paper leaves open is ours",
        "RRL",
        typical_decide_ms=60.0,
        settings="rrl.region.q_learning:PAPER",
    ),
    "rrl-released": AgentEntry(
        "rrl.region.q_learning:RegionQLearning",
        "what the script of RRL's authors does, its network trained on from the last one",
        "RRL",
        typical_decide_ms=20.0,
        settings="rrl.region.q_learning:RELEASED",
    ),
    "rrl-released-exact": AgentEntry(
        "rrl.region.q_learning:RegionQLearning",
        "the same script, its network trained anew at every decision, for seconds",
        "RRL",
        typical_decide_ms=8000.0,
        settings="rrl.region.q_learning:RELEASED_EXACT",
    ),
    "point-q": AgentEntry(
        "rrl.region.q_learning:RegionQLearning",
        "Q-learning without regions (δ = 0)",
        "RRL, section 4.1",
        typical_decide_ms=1.0,
        settings="baselines.point_q_learning:POINT_BASED",
    ),
    "capes": AgentEntry(
        "baselines.capes:CAPES",
        "a deep Q-network that moves one knob by a step, with its repository's settings",
        "CAPES (Li et al., SC'17)",
        typical_decide_ms=11.0,
        settings="baselines.capes:PAPER",
    ),
    "capes-tuned": AgentEntry(
        "baselines.capes:CAPES",
        "the same network, with settings for tens of decisions",
        "CAPES",
        typical_decide_ms=11.0,
        settings="baselines.capes:TUNED",
    ),
    "deeprm": AgentEntry(
        "baselines.deeprm:DeepRM",
        "policy gradient, with its paper's settings",
        "DeepRM (Mao et al., HotNets'16)",
        typical_decide_ms=0.1,
        settings="baselines.deeprm:PAPER",
    ),
    "deeprm-tuned": AgentEntry(
        "baselines.deeprm:DeepRM",
        "policy gradient, with settings for tens of decisions",
        "DeepRM",
        typical_decide_ms=1.0,
        settings="baselines.deeprm:TUNED",
    ),
    "dqn": AgentEntry(
        "baselines.stable_baselines:StableBaselinesDQN",
        "a deep Q-network from a library",
        "Stable-Baselines3",
        typical_decide_ms=20.0,
        libraries=("stable-baselines3",),
    ),
    "ppo": AgentEntry(
        "baselines.stable_baselines:StableBaselinesPPO",
        "proximal policy optimisation from a library",
        "Stable-Baselines3",
        typical_decide_ms=3.0,
        libraries=("stable-baselines3",),
    ),
    "optuna-tpe": AgentEntry(
        "baselines.optuna_search:OptunaSearch",
        "tree-structured Parzen estimators: a study for each load, then the best found",
        "Optuna",
        typical_decide_ms=1.0,
        arguments={"sampler": "tpe"},
        libraries=("optuna",),
    ),
    "optuna-gp": AgentEntry(
        "baselines.optuna_search:OptunaSearch",
        "Gaussian processes: a study for each load, then the best found",
        "Optuna",
        typical_decide_ms=60.0,
        arguments={"sampler": "gp"},
        libraries=("optuna",),
    ),
    "quick-search": AgentEntry(
        "baselines.quick_search:QuickSearch",
        "hill climbing over instances and batch size",
        "Triton Model Analyzer's quick search",
        typical_decide_ms=0.1,
    ),
    "quick-search-all": AgentEntry(
        "baselines.quick_search:QuickSearch",
        "hill climbing over all knobs",
        "Triton Model Analyzer's quick search",
        typical_decide_ms=0.1,
        settings="baselines.quick_search:EVERY_KNOB",
    ),
    "gp-bandit": AgentEntry(
        "baselines.gaussian_process:GaussianProcessBandit",
        "Gaussian process over (load, configuration), lower confidence bound",
        "GP-UCB (Srinivas et al., ICML 2010), scikit-learn",
        typical_decide_ms=10.0,
        libraries=("scikit-learn",),
    ),
    "serf": AgentEntry(
        "baselines.serf:SERF",
        "the M/D_interf/c model over a profiled machine, a reference table",
        "SERF (Yan et al., SC'16)",
        typical_decide_ms=0.1,
        needs=("machine",),
    ),
    "aimd": AgentEntry(
        "baselines.aimd:AIMD",
        "additive increase and multiplicative decrease of the batch size alone",
        "Clipper (Crankshaw et al., NSDI 2017)",
        typical_decide_ms=0.1,
    ),
    "rule": AgentEntry(
        "baselines.rule_of_thumb:RuleOfThumb",
        "the rule of thumb, never tuned: an instance a core, one thread each, batches of up to 8",
        "",
        typical_decide_ms=0.1,
    ),
    "random": AgentEntry(
        "baselines.random_search:RandomSearch",
        "a configuration drawn anew for every interval",
        "",
        typical_decide_ms=0.1,
    ),
    "sweep": AgentEntry(
        "baselines.exhaustive_sweep:ExhaustiveSweep",
        "every configuration in turn, then the best",
        "",
        typical_decide_ms=0.1,
    ),
    "best-fixed": AgentEntry(
        "baselines.hindsight:BestFixed",
        "the one configuration that is best over all loads to come",
        "",
        typical_decide_ms=0.1,
        needs=("hindsight",),
    ),
    "oracle": AgentEntry(
        "baselines.hindsight:Oracle",
        "the best configuration for each load to come",
        "",
        typical_decide_ms=0.1,
        needs=("hindsight",),
    ),
}
"""The agents that `rrl-compare --agents` knows; `rrl-tune --agent` takes those that need no hindsight."""

DEFAULT_AGENT = "guided"
"""The agent of who names none."""

OUR_AGENTS = tuple(AGENTS)

AGENTS |= {
    name: AgentEntry(
        found.path, f"of {found.origin}", "", typical_decide_ms=UNKNOWN_DECIDE_MS, origin=found.origin
    )
    for name, found in installed_agents().items()
    if name not in AGENTS
}


def origin(name: str) -> str:
    """The package that the agent of this name is from; empty where `AGENTS` does not list it."""
    return AGENTS[name].origin if name in AGENTS else ""


def needs_of(name: str) -> tuple[Need, ...]:
    """What the agent of this name needs; nothing where `AGENTS` does not list it."""
    return AGENTS[name].needs if name in AGENTS else ()


def libraries_of(name: str) -> tuple[str, ...]:
    """The libraries that this agent alone is made of; nothing where `AGENTS` does not list it."""
    return AGENTS[name].libraries if name in AGENTS else ()


def typical_decide_ms(name: str) -> float:
    """How long the agent of this name decides and learns; a long guess where `AGENTS` does not list it."""
    return AGENTS[name].typical_decide_ms if name in AGENTS else UNKNOWN_DECIDE_MS


NEED_HINDSIGHT = tuple(name for name in AGENTS if "hindsight" in needs_of(name))
"""The agents that must be told the load to come and the true cost of every configuration: bounds."""

NEED_MACHINE = tuple(name for name in AGENTS if "machine" in needs_of(name))
"""The agents that must be told the service times, profiled beforehand."""


def make_agent(name: str, task: Task, seed: Seed = 0, background_training: bool = False) -> Agent:
    """The agent of this name; ValueError that lists the known ones, or says why it cannot act on the task."""
    if name in FORMER_NAMES:
        warnings.warn(taken_for(name), DeprecationWarning, stacklevel=2)
        name = present_name(name)
    if name not in AGENTS:
        raise ValueError(unknown_agent(name, AGENTS))
    return AGENTS[name](task, whole_seed(seed), background_training)


def unknown_agent(name: str, known: Iterable[str]) -> str:
    """What a user reads who names an agent that is not among the known ones."""
    return f"unknown agent {name!r}; known: {', '.join(known)}"


def called_now(name: str) -> str:
    """The present name of an agent that a command is given. A former name is told of on standard error."""
    if name in FORMER_NAMES:
        print(taken_for(name), file=sys.stderr)
    return present_name(name)


def agents_for_tuning() -> str:
    """The agents that a live run can have, in a sentence's words: `guided, serf (needs --machine), aimd`."""
    return ", ".join(name + _flags_needed(name) for name in AGENTS if name not in NEED_HINDSIGHT)


def _flags_needed(name: str) -> str:
    flags = [FLAGS[need] for need in needs_of(name)]
    return f" (needs {' and '.join(flags)})" if flags else ""


def markdown_table() -> str:
    """The table of agents for the documentation."""
    rows = [
        (f"`{name}`", each.method, each.paper, " and ".join(NEEDS_IN_WORDS[need] for need in each.needs))
        for name, each in AGENTS.items()
        if name in OUR_AGENTS
    ]
    lines = ["| agent | method | after | needs |", "|---|---|---|---|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _needed_by(agent: str, libraries: tuple[str, ...]) -> str:
    return f"the agent {agent} needs {' and '.join(libraries)}: pip install {' '.join(libraries)}"


def _imported(path: str) -> Any:
    """What "module:name" stands for."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
