"""`rrl-train --reference-table`: fills SERF's reference table from a profile and writes it (SERF, Fig. 8).

The table has a row for each load level from light load to near the largest capacity that the model predicts.
It "only needs to be built once, provided that DNN workload characteristics and system hardware remain the
same" (SERF, SC 2016, section IV-A). `rrl-tune --advise --reference-table FILE` reads it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from baselines.serf import SERF
from rrl.agent import Task
from rrl.load_levels import LoadLevels
from rrl.objective import Objective
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace
from rrl.views.reference_table import ReferenceTable
from serving_adapter.whole_files import check_place

LIGHTEST, HEAVIEST = 0.05, 0.95  # shares of the largest capacity


def space_of(machine: Machine) -> ConfigurationSpace:
    """Every number of instances up to the profile's largest, with every number of threads that it has."""
    return ConfigurationSpace.of(
        instances=range(1, int(machine.busy_instances[-1]) + 1),
        inter_op_threads=machine.inter_op_threads.tolist(),
        intra_op_threads=machine.intra_op_threads.tolist(),
    )


def levels_between(levels: LoadLevels, low_per_s: float, high_per_s: float) -> list[float]:
    """The central rate of every level from that of one rate to that of another."""
    first, last = levels.level(low_per_s), levels.level(high_per_s)
    return [levels.rate_per_s(level) for level in range(first, last + 1)]


def filled_table(
    machine: Machine,
    model: str,
    objective: Objective,
    named: str,
    space: ConfigurationSpace | None = None,
    cores: int | None = None,
) -> ReferenceTable:
    """The table of a profile; `named` is the objective's name. ValueError where SERF can choose nothing.

    `cores` bounds instances times intra-op threads, as section IV-C has it; None leaves all of the space.
    """
    serf = SERF(Task(space or space_of(machine), objective, cores=cores, machine=machine))
    largest_per_s = float(np.max(serf.capacities_per_s))
    rates_per_s = levels_between(serf.settings.levels, LIGHTEST * largest_per_s, HEAVIEST * largest_per_s)
    return serf.reference_table(rates_per_s, named, model)


def write_table(table: ReferenceTable, path: Path) -> str:
    """Writes it and says so in one line."""
    check_place(path)
    table.write(path)
    configurations = {tuple(entry.configuration.items()) for entry in table.levels.values()}
    return f"wrote {path}: {len(table.levels)} load levels, {len(configurations)} configurations"
