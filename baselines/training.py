"""`rrl-train`: trains an agent offline on a simulated machine, and writes what `rrl-tune` starts from.

    rrl-profile --target HOST:PORT --out machine.npz
    rrl-train --machine machine.npz --rate 40 --out runs/trained
    rrl-tune --target HOST:PORT --agent-from runs/trained

What an agent learns from is the journal, so that is all that is written: the simulated intervals, telemetry
included, in the format of a live run's. There is no guard, as nobody waits for these requests.

With `--prior FILE` no agent is trained. What many machines have in common is learned (`prior_learning`).
With `--reference-table FILE` none is either. SERF's table is filled from the machine file (`serf_table`).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from baselines import called_now, make_agent, prior_learning
from baselines.comparison.settings import default_space
from baselines.one_thread import use_one_thread
from baselines.serf_table import filled_table, write_table
from baselines.training_options import OfflineTrainingOptions
from envs.scenarios.families import scenarios
from envs.scenarios.scenario import Scenario
from envs.scenarios.workloads import PerIntervalPoisson, make_workload
from envs.serving import ServingEnv
from rrl.agent import Agent, Task, Transition
from rrl.belief.learned_prior import save
from rrl.journal import FILE_NAME, Journal
from rrl.measurement import Measurement
from rrl.objective import Objective, make_objective, unit_of
from rrl.records import SIMULATION, Decision, Header, Kind, Record
from rrl.space import ConfigurationSpace
from serving_adapter.flags.parsing import fail, in_a_sentence, parse
from serving_adapter.standard_streams import say
from serving_adapter.whole_files import check_place

TRUTH = "model"  # The service times are those of the table.
FAILED, INTERRUPTED = 1, 130  # exit codes; wrong use is 2


def main(argv: list[str] | None = None) -> None:
    options = parse(OfflineTrainingOptions, argv)
    options = replace(options, agent=called_now(options.agent))
    use_one_thread()
    if options.prior is not None:
        _learn_prior(options.prior, options)
        return
    if options.reference_table is not None:
        _fill_table(options.reference_table, options)
        return
    log: Journal | None = None
    try:
        training = OfflineTraining.of(options)
        use_one_thread()
        log = training.journal
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("decisions", total=options.decisions)
            training.run(lambda: progress.advance(task))
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        if log is None:
            fail(in_a_sentence(error))
        print(f"{in_a_sentence(error)}; {_so_far(log)}", file=sys.stderr)
        raise SystemExit(FAILED) from None
    except KeyboardInterrupt:
        print("interrupted" if log is None else f"interrupted; {_so_far(log)}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    finally:
        if log is not None:
            log.close()
    _print_result(training.journal, options.out)


def _so_far(log: Journal) -> str:
    return f"{log.path} holds what was learned so far"


def _learn_prior(path: Path, options: OfflineTrainingOptions) -> None:
    try:
        check_place(path)
        paths = [name for name in options.machines.split(",") if name]
        files = {prior_learning.MEASURED: prior_learning.measured(paths, options.cores)} if paths else {}
        machines = prior_learning.generated() | files
        kinds = prior_learning.kinds_of(machines)
        save(kinds, path)
    except (OSError, ValueError) as error:
        fail(in_a_sentence(error))
    Console(markup=False).print(prior_learning.table_of(kinds, machines, path))


def _fill_table(path: Path, options: OfflineTrainingOptions) -> None:
    try:
        (scenario,) = _one(options.machine)
        space = ConfigurationSpace.parse(options.knobs) if options.knobs else None
        objective = make_objective(options.objective, options.slo_p95_ms)
        cores = options.cores[0] if options.cores else None
        table = filled_table(scenario.machine, scenario.name, objective, options.objective, space, cores)
        say(write_table(table, path))
    except (OSError, ValueError) as error:
        fail(in_a_sentence(error))


def _one(machine: str) -> list[Scenario]:
    found = scenarios(machine, TRUTH)
    if len(found) != 1:
        raise ValueError(f"an agent is trained on one machine, got {len(found)}: {machine}")
    return found


@dataclass(frozen=True)
class OfflineTraining:
    """An agent, the simulated server that it is trained on, and the journal of it."""

    agent: Agent
    env: ServingEnv
    episode_seed: int
    space: ConfigurationSpace
    objective: Objective
    decisions: int
    journal: Journal

    @classmethod
    def of(cls, options: OfflineTrainingOptions) -> OfflineTraining:
        """ValueError with one sentence, and nothing written, if the options do not go together."""
        (scenario,) = found = _one(options.machine)
        space = ConfigurationSpace.parse(options.knobs) if options.knobs else default_space(found, TRUTH)
        objective = make_objective(options.objective, options.slo_p95_ms)
        load_rng, episode_rng = np.random.default_rng(options.seed).spawn(2)
        workload = make_workload(options.workload, options.rate, options.requests_per_interval)
        rates_per_s = workload.rates_per_s(1 + options.decisions, load_rng)
        arrivals = PerIntervalPoisson(rates_per_s, options.requests_per_interval)
        env = scenario.environment(space, objective, arrivals, options.requests_per_interval)
        episode_seed = int(episode_rng.integers(2**31))
        agent = make_agent(options.agent, Task(space, objective), options.seed)
        if (options.out / FILE_NAME).exists():
            raise ValueError(f"{options.out} holds a journal already: name another --out")
        header = _header(options, scenario, space, space.configuration(env.start))
        journal = Journal.create(options.out, header, synced=False)
        return cls(agent, env, episode_seed, space, objective, options.decisions, journal)

    def run(self, decided: Callable[[], object] = lambda: None) -> None:
        """Takes all decisions, each written down before the next, and calls `decided` after each."""
        observation, info = self.env.reset(seed=self.episode_seed)
        self._learn(observation, observation, info, "baseline", "schedule", math.nan)
        for _ in range(self.decisions):
            began_s = time.perf_counter()
            action = self.agent.act(observation)
            decision_ms = 1e3 * (time.perf_counter() - began_s)
            before = observation
            observation, _, _, _, info = self.env.step(action)
            self._learn(before, observation, info, "tune", "agent", decision_ms)
            decided()
        self.agent.close()

    @property
    def _now_s(self) -> float:
        """Unix time by the simulated server's clock, which begins when the training does."""
        if self.journal.records:
            return self.journal.records[-1].wall_time_s
        return datetime.fromisoformat(self.journal.header.started_at).timestamp()

    def _learn(
        self,
        before: np.ndarray,
        after: np.ndarray,
        info: dict[str, Any],
        kind: Kind,
        decision: Decision,
        decision_ms: float,
    ) -> None:
        number, cost = int(info["number"]), float(info["cost"])
        measurement: Measurement = info["measurement"]
        record = Record(
            kind=kind,
            number=number,
            configuration=self.space.configuration(number),
            transition=Transition(before, self.space.action(number), cost, after, measurement),
            decision=decision,
            reason="",
            verdict="",
            rollback=False,
            learned=math.isfinite(cost),
            wall_time_s=self._now_s + measurement.duration_s,
            decision_ms=decision_ms,
        )
        self.journal.append(record)
        self.agent.update(record.lesson)


def _header(
    options: OfflineTrainingOptions, scenario: Scenario, space: ConfigurationSpace, start: dict[str, int]
) -> Header:
    return Header(
        space=space,
        objective=options.objective,
        slo_p95_ms=options.slo_p95_ms,
        agent=options.agent,
        seed=options.seed,
        target=SIMULATION,
        model=scenario.name,
        found=start,
        start=start,
        interval_s=options.requests_per_interval / options.rate,
        settle_s=0.0,
        intervals=options.decisions,
        load={"rate": options.rate, "arrivals": options.workload},
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _print_result(log: Journal, out: Path) -> None:
    costs = [r.cost for r in log.records if r.kind == "tune" and r.learned]
    unit = unit_of(log.header.objective)
    if costs:
        tenth = math.ceil(len(costs) / 10)
        first, last = fmean(costs[:tenth]), fmean(costs[-tenth:])
        say(f"mean cost of the first {tenth} decisions {first:.4g} {unit}, of the last {last:.4g} {unit}")
    say(f"start from it with: rrl-tune --agent-from {out}")


if __name__ == "__main__":
    main()
