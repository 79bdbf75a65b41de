"""`joint`: two models of one machine tuned together, against in turn, and Optuna over the joint grid.

The machines are simulated (`envs.scenarios.joint_machines`): both models share the cores, and batches slow
each other down. Everybody has the same guard and validation, and the same budget: a thread a core. Service
times of single batches vary by 10 %, those of an interval by 3 %.

- `guided` is the default agent over the joint grid (`rrl.guided.joint_agent`).
- `in turn` is the default agent as it tunes the first model, then the second, each for half of the intervals
  and within the cores that the other leaves.
- `optuna-tpe` and any other `--agents` propose joint configurations.

What stays is compared with the best of the joint grid, by long simulations of all of it.

| word | meaning |
|---|---|
| *measurements* | intervals until the best known is within 5 % of the best, and nine in ten from then on |
| *latency* | request-seconds of the whole run over those of the best configuration |

    scripts/bench joint [--machines 20] [--intervals 40] [--agents guided optuna-tpe] [--out FILE.jsonl]

With `--out`, each run is a line of that file as soon as it is over, and what the file has is not run again.
The table says of which commits the runs are.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any, NamedTuple

import numpy as np

from baselines import make_agent
from baselines.comparison.workers import Workers
from envs.joint_simulated import JointSimulatedServing, true_costs
from envs.scenarios.joint_machines import JointScenario, random_joint_machine
from rrl.agent import Agent, Task, Transition, observe
from rrl.belief.several_models.joint import belief_of
from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.interval import UNWATCHED, Interval, Watch
from rrl.joint import JointSpace
from rrl.journal import Journal
from rrl.objective import MeanLatency
from rrl.records import SIMULATION, Header, Record
from rrl.space import ConfigurationSpace
from rrl.tuning.environment import Environment
from rrl.tuning.listener import Listener
from rrl.tuning.loop import Tuning
from rrl.tuning.settings import TuningSettings
from scripts.kept_rows import KeptRows, Row, commit_of
from scripts.serving.served_agents import settled_after
from serving_adapter.flags.parsing import parse

TOGETHER, IN_TURN = "guided", "in turn"
REACH = 1.05
INTERVAL_S = 4.0
DRIFT_SD = 0.03
FIRST_DECISIONS = 2  # of a process, which compile what is compiled


@dataclass(frozen=True)
class Options:
    """Tunes two models together on simulated machines."""

    machines: int = 20
    """Random machines, with a run of each agent."""
    first_machine: int = 1000
    """The seed of the first of them."""
    intervals: int = 40
    """Decisions of a run, before its validation."""
    agents: tuple[str, ...] = (TOGETHER, IN_TURN, "optuna-tpe")
    """Which agents."""
    out: Path | None = None
    """A file that gets a line a run; runs that it has are not run again."""

    def __post_init__(self) -> None:
        if self.machines < 1 or self.intervals < 4:
            raise ValueError("--machines must be at least 1, and --intervals 4")
        if TOGETHER not in self.agents:
            raise ValueError(f"give {TOGETHER} among the --agents")


class JointRun(NamedTuple):
    """What a run of one agent on one machine came to."""

    machine: int
    agent: str
    intervals: int
    final: float  # latency of what is kept over the best's
    measurements: int
    latency: float
    failed: int
    decision_ms: float  # the slowest but one in a hundred; NaN of a run in turn

    @classmethod
    def of(cls, row: Row) -> JointRun:
        return cls(**{name: row[name] for name in cls._fields})


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    seeds = range(options.first_machine, options.first_machine + options.machines)
    rows = KeptRows(options.out, ("machine", "agent", "intervals"))
    wanted: list[dict[str, Any]] = [
        {"machine": seed, "agent": agent, "intervals": options.intervals}
        for seed in seeds
        for agent in options.agents
    ]
    jobs = [partial(tuned, *each.values()) for each in wanted if each not in rows]
    with Workers(os.cpu_count() or 1) as workers:
        workers.run(jobs, lambda _, answer: rows.add(answer._asdict()))
    print(f"{'agent':14} final / best  within 5%  measurements  latency / best  failed")
    by_agent = {}
    for agent in options.agents:
        by_agent[agent] = runs = [JointRun.of(rows[each]) for each in wanted if each["agent"] == agent]
        print(_row(agent, runs), flush=True)
    commits = list(dict.fromkeys(commit_of(rows[each]) for each in wanted))
    print(f"commit {', '.join(commits)}")
    return outcome(by_agent) | {"commits": commits}


def outcome(by_agent: dict[str, list[JointRun]]) -> dict[str, Any]:
    """The default agent beside the best of its peers."""
    ours = geometric_mean(each.final for each in by_agent[TOGETHER])
    peers = {name: runs for name, runs in by_agent.items() if name != TOGETHER}
    finals = {name: geometric_mean(each.final for each in runs) for name, runs in peers.items()}
    needed = {name: mean(each.measurements for each in runs) for name, runs in by_agent.items()}
    peer = min(finals.values(), default=math.nan)
    failed = sum(each.failed for each in by_agent[TOGETHER])
    fewer = all(needed[TOGETHER] < needed[name] for name in peers)
    return {
        "value": round(ours, 3),
        "unit": "latency of what is kept over the joint sweep's best, geometric mean of the machines",
        "peer": round(peer, 3),
        "ratio": round(ours / peer, 3),
        "reach": REACH,
        "holds": ours <= REACH and fewer and failed == 0,
        "measurements": {name: round(count, 1) for name, count in needed.items()},
        "finals": {name: round(final, 3) for name, final in finals.items()},
        "failed": failed,
        "decision_ms_p99": round(max(each.decision_ms for each in by_agent[TOGETHER]), 1),
        "configurations": round(mean(len(random_joint_machine(e.machine).space) for e in by_agent[TOGETHER])),
    }


def _row(agent: str, runs: Sequence[JointRun]) -> str:
    return (
        f"{agent:14} {geometric_mean(e.final for e in runs):12.3f}"
        f" {mean(e.final <= REACH for e in runs):10.0%}"
        f" {median(e.measurements for e in runs):13.0f} {geometric_mean(e.latency for e in runs):15.2f}"
        f" {sum(e.failed for e in runs):7d}"
    )


# --- one run ---------------------------------------------------------------------------------------


def simulated(scenario: JointScenario, seed: int) -> JointSimulatedServing:
    """A scenario as an environment."""
    env = JointSimulatedServing(
        scenario.machines,
        scenario.rates,
        scenario.space,
        contention=scenario.contention,
        interval_s=INTERVAL_S,
        drift_sd=DRIFT_SD,
        start=scenario.start,
    )
    env.np_random = np.random.default_rng(seed)
    return env


def tuned(seed: int, agent: str, intervals: int) -> JointRun:
    """One agent on one machine."""
    scenario = random_joint_machine(seed)
    env = CountedRequests(simulated(scenario, seed))
    allowed = np.flatnonzero(scenario.space.threads <= max(scenario.cores, _threads(env.env)))
    costs_ms = np.full(len(scenario.space), math.inf)
    costs_ms[allowed] = true_costs(env.env, allowed.tolist())
    excluded = frozenset(range(len(scenario.space))) - set(allowed.tolist())
    if agent == IN_TURN:
        seen = _in_turn(env, scenario, intervals, seed)
    else:
        task = Task(scenario.space, cores=scenario.cores, excluded=excluded, found=scenario.start)
        seen = _tuned(env, task, agent, env.env.start, intervals, seed)
    best_ms = float(costs_ms.min())
    near = [bool(costs_ms[number] <= REACH * best_ms) for number in seen.best]
    return JointRun(
        seed,
        agent,
        intervals,
        final=float(costs_ms[seen.kept] / best_ms),
        measurements=settled_after(near) or len(near),
        latency=env.request_ms / env.requests / best_ms,
        failed=sum(record.failures for record in seen.records),
        decision_ms=float(np.percentile(seen.decisions_ms, 99)) if seen.decisions_ms else math.nan,
    )


def _threads(env: JointSimulatedServing) -> int:
    return int(env.space.threads[env.start])


class SeenRun(NamedTuple):
    """What a run did."""

    best: list[int]  # the best known after each interval, by its joint number
    kept: int
    records: list[Record]
    decisions_ms: list[float]  # of the agent, what it learns included


class AgentInTime(Agent):
    """An agent, and how long each of its decisions takes."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.decisions_ms: list[float] = []

    def act(self, observation: np.ndarray) -> np.ndarray:
        return self._agent.act(observation)

    def update(self, transition: Transition) -> None:
        began_s = time.perf_counter()
        self._agent.update(transition)
        self.decisions_ms.append(1e3 * (time.perf_counter() - began_s))

    def recommended(self) -> int | None:
        return self._agent.recommended()

    def explain(self) -> str:
        return self._agent.explain()

    def refused(self, number: int) -> None:
        self._agent.refused(number)

    def keep_off(self, numbers: frozenset[int]) -> None:
        self._agent.keep_off(numbers)

    def close(self) -> None:
        self._agent.close()


class CountedRequests:
    """The environment of all models, and the requests that it has answered."""

    def __init__(self, env: JointSimulatedServing) -> None:
        self.env, self.space = env, env.space
        self.requests, self.request_ms = 0, 0.0

    def run(self, number: int, watch: Watch = UNWATCHED) -> Interval:
        interval = self.env.run(number, watch)
        seen = interval.measurement
        if seen.completions:
            self.requests += seen.completions
            self.request_ms += seen.completions * seen.latency.mean_ms
        return interval


class _BestKnown(Listener):
    """Notes the best that the guard knows after each interval."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.best: list[int] = []
        self.records: list[Record] = []

    def measured(self, record: Record) -> None:
        self.best.append(self._guard.choice.best_to_keep)
        self.records.append(record)


def _tuned(
    env: Environment, task: Task, agent: str, start: int, intervals: int, seed: int, validation: int = 2
) -> SeenRun:
    """One run behind guard and validation."""
    space = env.space
    guard = Guard(
        start,
        GuardSettings(),
        task.excluded,
        belief_of(space, task.objective, task.cores, task.found),
    )
    header = Header(
        space=space, objective="latency", slo_p95_ms=None, agent=agent, seed=seed, target=SIMULATION,
        model="joint", found=dict(task.found), start=space.configuration(start), interval_s=INTERVAL_S,
        intervals=intervals, started_at="2026-01-01T00:00:00+00:00", validation=validation, cores=task.cores,
    )  # fmt: skip
    listener = _BestKnown(guard)
    with tempfile.TemporaryDirectory(prefix="rrl-joint-") as folder:
        journal = Journal.create(Path(folder), header, synced=False)
        settings = TuningSettings(intervals=intervals, validation=validation)
        made = AgentInTime(make_agent(agent, task, seed))
        kept = Tuning(env, made, guard, journal, settings, [listener]).run()
        made.close()
        journal.close()
    return SeenRun(listener.best, kept.number, listener.records, made.decisions_ms[FIRST_DECISIONS:])


def _in_turn(env: CountedRequests, scenario: JointScenario, intervals: int, seed: int) -> SeenRun:
    """The default agent on one model after the other, as `rrl-tune --model a,b` tunes them."""
    joint = JointSpace.of(scenario.space)
    parts = joint.parts(np.array([env.env.start]))[0]
    best: list[int] = []
    records: list[Record] = []
    for k, (model, member) in enumerate(joint.members.items()):
        found = member.configuration(int(parts[k]))
        used = sum(int(space.threads[parts[j]]) for j, space in enumerate(joint.members.values()) if j != k)
        left = max(scenario.cores - used, int(member.threads[parts[k]]))
        excluded = frozenset(np.flatnonzero(member.threads > left).tolist())
        task = Task(member, cores=scenario.cores, excluded=excluded, found=found)
        alone = OneModel(env, joint, parts, k, model)
        seen = _tuned(alone, task, TOGETHER, int(parts[k]), intervals // len(joint.models), seed)
        best += [alone.joined(number) for number in seen.best]
        records += seen.records
        parts = parts.copy()
        parts[k] = seen.kept
    return SeenRun(best, int(joint.joined(parts[None])[0]), records, [])


class OneModel:
    """One of the models of a joint environment, the others as they are."""

    def __init__(
        self, env: CountedRequests, joint: JointSpace, parts: np.ndarray, k: int, model: str
    ) -> None:
        self.space: ConfigurationSpace = list(joint.members.values())[k]
        self._env, self._joint, self._parts, self._k, self._model = env, joint, parts, k, model

    def joined(self, number: int) -> int:
        """The joint configuration with this one of the model."""
        parts = self._parts.copy()
        parts[self._k] = number
        return int(self._joint.joined(parts[None])[0])

    def run(self, number: int, watch: Watch = UNWATCHED) -> Interval:
        interval = self._env.run(self.joined(number), watch)
        own = interval.measurement.models[self._model]
        return Interval(
            measurement=own,
            number=number,
            cost=MeanLatency().cost(own, self.space.configuration(number)),
            observation=observe(own, self.space, number),
        )
