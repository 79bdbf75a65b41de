"""The rows of the tables of reach, ablation and calibration: which simulated machines under which load.

| rows | machines | truth | load |
|---|---|---|---|
| home | `family` | the queueing model | stationary, wiki, dynamic |
| another truth | `family` | processor sharing, variation, two sizes | stationary |
| out of family | `usl`, `roofline` | the queueing model | stationary |
| served models | `profiled` | the queueing model, with the knobs of batching | stationary |

The expected costs of a machine at a load take long simulations. They are kept in `--folder` by the machine's
table of service times, as they do not depend on any agent.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from baselines import AgentFactory
from baselines.comparison.landscapes import FOLDER, Load
from baselines.comparison.run import RunJob, read_run
from baselines.comparison.settings import ComparisonSettings, default_space
from baselines.comparison.workers import Workers
from envs.scenarios.scenario import Scenario
from rrl.space import ConfigurationSpace


class SimulatedRow(NamedTuple):
    """Machines of one source, how they depart from the queueing model, and their load."""

    source: str
    truth: str
    workload: str

    def __str__(self) -> str:
        return "/".join(self)

    def settings(self, seeds: str, decisions: int) -> ComparisonSettings:
        machines = f"{self.source}:{seeds}"
        return ComparisonSettings(
            ("oracle",), machines, truth=self.truth, workload=self.workload, decisions=decisions
        )


ROWS = (
    SimulatedRow("family", "model", "stationary"),
    SimulatedRow("family", "model", "wiki"),
    SimulatedRow("family", "model", "dynamic"),
    SimulatedRow("family", "processor-sharing", "stationary"),
    SimulatedRow("family", "variation", "stationary"),
    SimulatedRow("family", "two-sizes", "stationary"),
    SimulatedRow("usl", "model", "stationary"),
    SimulatedRow("roofline", "model", "stationary"),
    SimulatedRow("profiled", "batches", "stationary"),
)


class SimulatedRun(NamedTuple):
    """One machine of a row, and the load that every agent meets there."""

    row: SimulatedRow
    settings: ComparisonSettings
    scenario: Scenario
    space: ConfigurationSpace
    load: Load

    def job(self, agent: str, factory: AgentFactory, cores_told: bool, label: str) -> RunJob:
        """A run of this agent. The label tells it from others on this machine."""
        settings = replace(self.settings, cores=self.scenario.cores) if cores_told else self.settings
        path = self.load.folder / f"{self.row.workload}-{label}-{os.getpid()}.npy"
        return RunJob(path, agent, factory, 0, self.load, self.space, settings)


def rows_named(prefixes: Sequence[str]) -> list[SimulatedRow]:
    """The rows whose names begin with one of these, all where none is given; ValueError if there are none."""
    found = [row for row in ROWS if not prefixes or str(row).startswith(tuple(prefixes))]
    if not found:
        raise ValueError(
            f"--rows: none begins with {', '.join(prefixes)}; known: {', '.join(map(str, ROWS))}"
        )
    return found


def runs_of(row: SimulatedRow, seeds: str, decisions: int, folder: Path) -> list[SimulatedRun]:
    """One for each machine of the row."""
    settings = row.settings(seeds, decisions)
    found = settings.make_scenarios()
    space = default_space(found, row.truth)
    return [
        SimulatedRun(row, settings, each, space, Load.of(_own(folder, row, each), 0, each, 0, settings))
        for each in found
    ]


def find_expected_costs(runs: Sequence[SimulatedRun], workers: Workers) -> None:
    """Simulates what is not known yet."""
    jobs = {path: job for run in runs for path, job in run.load.jobs(run.space, run.settings).items()}
    missing = [job for path, job in jobs.items() if not path.exists()]
    for run in runs:
        (run.load.folder / FOLDER).mkdir(parents=True, exist_ok=True)
    if missing:
        print(f"expected costs: {len(missing)} machines and loads to simulate", flush=True)
    workers.run(missing, lambda job, answer: None)


def lived(jobs: Sequence[RunJob], workers: Workers) -> list[np.ndarray]:
    """(jobs,) the decisions of each, lived anew."""
    for job in jobs:
        job.path.unlink(missing_ok=True)
    workers.run(jobs, lambda job, ratio: None)
    found = []
    for job in jobs:
        rows = read_run(job.path, job.settings.decisions, job.space.names)
        assert rows is not None
        found.append(rows)
        job.path.unlink()
    return found


def changes_of(rows: np.ndarray, knobs: Sequence[str]) -> int:
    """How often the configuration of a run was changed."""
    return int(np.any([np.diff(rows[name]) != 0 for name in knobs], axis=0).sum())


def _own(folder: Path, row: SimulatedRow, scenario: Scenario) -> Path:
    table = zlib.crc32(scenario.machine.service_time_s.tobytes())
    return folder / f"{scenario.name}-{row.truth}-{table:08x}"
