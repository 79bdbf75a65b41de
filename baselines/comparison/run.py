"""One run: one agent on one machine with one seed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import quote

import numpy as np

from baselines import DEFAULT_AGENT, AgentFactory, make_agent, needs_of
from baselines.comparison.decisions import run_dtype
from baselines.comparison.landscapes import Landscape, Load, seed_sequence
from baselines.comparison.settings import ComparisonSettings
from baselines.comparison.workers import FiledJob
from envs.scenarios.families import RATE_PER_S, scenarios
from envs.scenarios.workloads import PerIntervalPoisson
from envs.serving import ServingEnv
from rrl.agent import Agent, Hindsight, Task, Transition, live
from rrl.objective import MeanLatency, slo_violated
from rrl.space import ConfigurationSpace
from serving_adapter.whole_files import written_whole

FOLDER = "runs"
SMALL_SPACES = ("instances=1:2,intra_op_threads=1:2", "instances=1:2,max_batch_size=1,4,32")
"""The spaces of `compile_kernels`: one without batches, one whose batch sizes leave others out."""


def folder_name(agent: str) -> str:
    """A folder's name that is no other agent's, whatever both are called."""
    return quote(agent, safe="+")


class FaultInRun(RuntimeError):
    """What was raised after an agent was made; its cause is the fault."""


@dataclass(frozen=True, eq=False)
class RunJob(FiledJob):
    """Lives one run, keeps its rows in a file, and answers the ratio of expected to lowest costs."""

    path: Path
    agent: str
    factory: AgentFactory
    seed: int
    load: Load
    space: ConfigurationSpace
    settings: ComparisonSettings

    def brought(self) -> list[Landscape]:
        """(decisions,) that of each decision; those of the same load are one, also when they are pickled."""
        return self.load.landscapes(len(self.space))

    def work(self, brought: list[Landscape]) -> np.ndarray:
        """(decisions,) the rows of the run."""
        compile_kernels()
        agent = self.make_agent(self.load.hindsight(brought))
        try:
            return self._lived(agent, brought)
        except Exception as error:
            raise FaultInRun(f"the run of {self} failed") from error
        finally:
            agent.close()

    def keep(self, result: np.ndarray) -> float:
        with written_whole(self.path) as file:
            np.save(file, result)
        return ratio(result)

    def __str__(self) -> str:
        return f"{self.agent} on {self.load.scenario.name}, seed {self.seed}"

    def make_agent(self, hindsight: Hindsight) -> Agent:
        """The run's agent; ValueError that names it where it cannot act here."""
        scenario, settings, needs = self.load.scenario, self.settings, needs_of(self.agent)
        task = Task(
            self.space,
            settings.make_objective(),
            scenario.cores if settings.tell_cores else settings.cores,
            machine=scenario.machine if "machine" in needs else None,
            hindsight=hindsight if "hindsight" in needs else None,
        )
        seed = int(np.random.SeedSequence(seed_sequence(scenario, self.seed)).generate_state(1)[0])
        try:
            return self.factory(task, seed, False)
        except ImportError:  # A node of a cluster may lack what this machine has.
            raise
        except ValueError as error:
            raise ValueError(f"agent {self.agent!r} cannot act here: {error}") from error

    def make_environment(self) -> ServingEnv:
        """The run's environment; ValueError where the machine cannot serve the space."""
        requests = self.settings.requests_per_interval
        arrivals = PerIntervalPoisson(self.load.rates_per_s, requests)
        objective = self.settings.make_objective()
        return self.load.scenario.environment(self.space, objective, arrivals, requests)

    def _lived(self, agent: Agent, landscapes: list[Landscape]) -> np.ndarray:
        """(decisions,) the rows of the run. The same seed sends every agent the same requests."""
        objective, space, load = self.settings.make_objective(), self.space, self.load
        env = self.make_environment()
        seed = int(np.random.SeedSequence(seed_sequence(load.scenario, self.seed)).generate_state(2)[1])
        timed = TimedAgent(agent)
        rows = np.zeros(load.decisions, dtype=run_dtype(space.names))
        for decision, transition in enumerate(live(timed, env, load.decisions, seed)):
            row, landscape, measurement = rows[decision], landscapes[decision], transition.measurement
            number = space.number_of_action(transition.action)
            row["decision"] = decision
            row["arrival_rate_per_s"] = load.rates_per_s[decision + 1]
            for name, value in space.configuration(number).items():
                row[name] = value
            row["cost_ms"] = transition.cost
            row["expected_ms"], row["oracle_ms"] = landscape.costs[number], landscape.best_cost
            row["slo_violated"] = slo_violated(measurement, objective.slo_p95_ms)
            row["decide_ms"] = 1e3 * timed.decide_s
            row["mean_latency_ms"] = measurement.latency.mean_ms
            row["p95_ms"] = measurement.latency.p95_ms
            row["expected_p95_ms"], row["best_p95_ms"] = landscape.p95_ms[number], landscape.best_p95_ms
            row["cpu_utilisation"] = measurement.cpu_utilisation
        return rows


class TimedAgent(Agent):
    """An agent whose last decision, learning included, is timed."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.decide_s = 0.0  # CPU time of `act` and the `update` after it

    def act(self, observation: np.ndarray) -> np.ndarray:
        began_s = time.process_time()
        action = self.agent.act(observation)
        self.decide_s = time.process_time() - began_s
        return action

    def update(self, transition: Transition) -> None:
        began_s = time.process_time()
        self.agent.update(transition)
        self.decide_s += time.process_time() - began_s


@cache
def compile_kernels() -> None:
    """Lets the default agent decide twice, once a process, so that none is charged for compiling."""
    (scenario,) = scenarios("family:0")
    objective = MeanLatency()
    for text in SMALL_SPACES:
        space = ConfigurationSpace.parse(text)
        agent = make_agent(DEFAULT_AGENT, Task(space, objective))
        env = scenario.environment(space, objective, PerIntervalPoisson(np.full(3, RATE_PER_S)))
        for _ in live(agent, env, decisions=2, seed=0):
            pass
        agent.close()


@dataclass(frozen=True, eq=False)
class CheckJob:
    """Makes an agent on a flat landscape, to learn whether it can act before hours are spent."""

    run: RunJob

    def __call__(self) -> None:
        self.run.make_environment()
        rates_per_s = self.run.load.rates_per_s[1:]
        size = len(self.run.space)
        agent = self.run.make_agent(Hindsight(rates_per_s, lambda rate_per_s: np.ones(size)))
        agent.close()

    def __str__(self) -> str:
        return f"{self.run.agent} can act"


def read_run(path: Path, decisions: int, knobs: tuple[str, ...]) -> np.ndarray | None:
    """The rows of a finished run; None where no run of this length and these knobs is kept."""
    try:
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return rows if rows.shape == (decisions,) and rows.dtype == run_dtype(knobs) else None


def ratio(rows: np.ndarray) -> float:
    """The expected cost of what was chosen, divided by the lowest possible, over some decisions."""
    return float(rows["expected_ms"].sum() / rows["oracle_ms"].sum())
