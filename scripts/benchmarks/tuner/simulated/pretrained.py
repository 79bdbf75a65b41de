"""`pretrained`: live decisions until within 10 % of the best, pre-trained on a profiled machine and not.

The live servers are simulated machines of the family kept for judging. Each is first profiled lightly: every
second or third value of the table's axes, each entry with a lognormal error. `rrl-train` trains an agent on
that profile, and `--agent-from`'s replay starts a new agent from its journal.
Both this agent and one that starts from nothing then tune the true machine, under the same requests.
"""

from __future__ import annotations

import math
import multiprocessing
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import torch

from baselines import DEFAULT_AGENT, make_agent
from baselines.comparison.summary import decisions_until_within
from baselines.training import OfflineTraining
from baselines.training_options import OfflineTrainingOptions
from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import RATE_PER_S, scenarios
from envs.scenarios.scenario import Scenario
from envs.scenarios.workloads import PerIntervalPoisson
from rrl.agent import Agent, Task, live
from rrl.objective import MeanLatency
from rrl.queueing.machine import AXES, Machine
from rrl.space import ConfigurationSpace
from rrl.tuning.pretraining import Pretraining

MACHINES = range(1000, 1010)  # seeds of the family
AGENTS = {DEFAULT_AGENT: 100, "rrl-tuned": 100, "deeprm-tuned": 1000}
"""Agents, and the decisions each is trained for."""
LIVE_DECISIONS = 40
EARLY = 20  # live decisions whose costs are compared
PROFILED = {
    "inter_op_threads": (1, 3, 6, 10),
    "intra_op_threads": (1, 3, 6, 10),
    "busy_instances": (1, 2, 4, 7, 10),
    "batch_size": (1, 4, 16),
}
PROFILE_ERROR = 0.05  # σ of the logarithm


class LearningSpeed(NamedTuple):
    """How an agent did on the true machine."""

    decisions: float  # until within 10 % of the best, as rrl-compare counts them; infinite: not yet
    early_ratio: float  # expected latency of the first decisions' configurations by the best's


def run() -> dict[str, Any]:
    jobs = [(name, seed) for seed in MACHINES for name in AGENTS]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        pairs = dict(zip(jobs, pool.map(_with_and_without, *zip(*jobs, strict=True)), strict=True))
    by_agent = {name: [pairs[name, seed] for seed in MACHINES] for name in AGENTS}
    print(f"medians over {len(MACHINES)} machines, without and with pre-training")
    print(f"{'agent':12} {'trained for':>11} {'until within 10 %':>18} {f'latency/best, first {EARLY}':>26}")
    for name, decisions in AGENTS.items():
        trained, untrained = zip(*by_agent[name], strict=True)
        print(f"{name:12} {decisions:11} {_until(untrained):>11} -> {_until(trained):>3} "
              f"{_early(untrained):18.2f} -> {_early(trained):4.2f}")  # fmt: skip
        print(f"{'':12} each: {_each(untrained)} -> {_each(trained)}")
    trained, untrained = zip(*by_agent[DEFAULT_AGENT], strict=True)
    value, peer = (median(lived.decisions for lived in those) for those in (trained, untrained))
    return {
        "value": value if math.isfinite(value) else None,
        "unit": "live decisions until within 10 % of the best",
        "peer": peer if math.isfinite(peer) else None,
        "ratio": round(value / peer, 3) if value < math.inf and 0 < peer < math.inf else None,
        "reach": 1.0,
        "holds": value < peer,
    }


def _with_and_without(name: str, seed: int) -> tuple[LearningSpeed, LearningSpeed]:
    """One agent on one machine: started from a training on the machine's profile, and from nothing."""
    (scenario,) = scenarios(f"family:{seed}")
    with tempfile.TemporaryDirectory() as folder:
        profile, out = Path(folder) / "profile.npz", Path(folder) / "trained"
        profiled(scenario.machine, seed).save(profile)
        training = OfflineTraining.of(
            OfflineTrainingOptions(str(profile), out, name, decisions=AGENTS[name], seed=seed)
        )
        training.run()
        training.journal.close()
        live = TrueMachine(scenario, training.space)
        task = Task(training.space, live.objective)
        trained = make_agent(name, task, seed)
        Pretraining.read(out).replay(trained, training.space, limit_s=math.inf)
    return live.tuned_by(trained, seed), live.tuned_by(make_agent(name, task, seed), seed)


def profiled(machine: Machine, seed: int) -> Machine:
    """The machine as a light profile would know it."""
    rng = np.random.default_rng(seed)
    axes = [getattr(machine, name) for name in AXES]
    kept = [np.isin(axis, PROFILED[name]) for name, axis in zip(AXES, axes, strict=True)]
    times_s = machine.service_time_s[np.ix_(*kept)]
    errors = np.exp(PROFILE_ERROR * rng.standard_normal(times_s.shape))
    inter, intra, busy, batch = (axis[keep] for axis, keep in zip(axes, kept, strict=True))
    return Machine(inter, intra, busy, batch, times_s * errors)


class TrueMachine:
    """A true machine under a stationary load, and what its configurations cost there."""

    def __init__(self, scenario: Scenario, space: ConfigurationSpace) -> None:
        self.objective = MeanLatency()
        self._scenario, self._space = scenario, space
        costs = ExpectedCosts(scenario, space, self.objective).costs(RATE_PER_S)
        self._ratios = costs / costs.min()

    def tuned_by(self, agent: Agent, seed: int) -> LearningSpeed:
        arrivals = PerIntervalPoisson(np.full(1 + LIVE_DECISIONS, RATE_PER_S))
        env = self._scenario.environment(self._space, self.objective, arrivals)
        ratios = [
            float(self._ratios[self._space.number_of_action(transition.action)])
            for transition in live(agent, env, LIVE_DECISIONS, seed)
        ]
        agent.close()
        return LearningSpeed(decisions_until_within(np.asarray(ratios)), fmean(ratios[:EARLY]))


def _until(lived: Sequence[LearningSpeed]) -> str:
    return _count(median(each.decisions for each in lived))


def _early(lived: Sequence[LearningSpeed]) -> float:
    return median(each.early_ratio for each in lived)


def _each(lived: Sequence[LearningSpeed]) -> str:
    return " ".join(_count(each.decisions) for each in lived)


def _count(decisions: float) -> str:
    return "-" if math.isinf(decisions) else f"{decisions:g}"
