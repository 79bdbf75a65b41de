"""`rrl-train --prior FILE` learns what the default agent expects of service times before it has seen any.

    rrl-train --prior prior.npz
    rrl-train --prior prior.npz --machines one.npz,two.npz

| kind | machines | cores |
|---|---|---|
| `family` | of the comparisons (`envs.scenarios.families`), seeds 100 .. 499 | their own |
| `invented` | `Machine.invent`, seeds 0 .. 299, batches of up to 16 | 8, 10, 12, 16, 24, 32 in turn |
| `small` | `envs.scenarios.small_machines.varied_machine`, seeds 0 .. 699 | 1 to 4 |
| `measured` | the files of `--machines` | `--cores`, or the most threads or instances of their tables |

Without files it writes the very prior that comes with the package. Machines that judge agents have other
seeds, or come from other generators: none of them is learned from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path

from rich.table import Table

from envs.scenarios import small_machines
from envs.scenarios.families import family_cores, family_machine
from rrl.belief.learned_prior import Kind, learned
from rrl.queueing.machine import Machine

FAMILY_SEEDS, INVENTED_SEEDS, SMALL_SEEDS = range(100, 500), range(300), range(700)
INVENTED_CORES = (8, 10, 12, 16, 24, 32)
INVENTED_BATCH_SIZES = (1, 2, 4, 8, 16)
MEASURED = "measured"

WithCores = tuple[Machine, int]


def generated(each: int | None = None) -> dict[str, list[WithCores]]:
    """The invented machines by kind, all of them or the first few of `each`."""
    return {
        "family": [(family_machine(seed), family_cores(seed)) for seed in FAMILY_SEEDS[:each]],
        "invented": list(_invented(INVENTED_SEEDS[:each])),
        "small": [small_machines.varied_machine(seed) for seed in SMALL_SEEDS[:each]],
    }


def measured(paths: Sequence[str], cores: Sequence[int]) -> list[WithCores]:
    """The machines of files, with the cores given; ValueError with one sentence where they do not suit."""
    if len(paths) < 2:
        raise ValueError(f"--machines needs two files or more to tell how machines differ, got {len(paths)}")
    if len(cores) not in (0, 1, len(paths)):
        raise ValueError(
            f"--cores must be one number, or one for each of the {len(paths)} machines, got {len(cores)}"
        )
    machines = [Machine.load(path) for path in paths]
    known = cycle(cores) if cores else map(_largest, machines)
    return list(zip(machines, known, strict=False))


def kinds_of(machines: Mapping[str, Sequence[WithCores]]) -> list[Kind]:
    """The learned prior, a kind for each name."""
    return [learned(name, of_kind) for name, of_kind in machines.items()]


def table_of(kinds: Sequence[Kind], machines: Mapping[str, Sequence[WithCores]], path: Path) -> Table:
    """What was learned, for a terminal."""
    table = Table(title=f"{path}", header_style="dim")
    for heading in ("kind", "machines", "left unexplained"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for kind in kinds:
        table.add_row(kind.name, str(len(machines[kind.name])), f"{kind.field_sd:.1%} of a service time")
    return table


def _invented(seeds: Sequence[int]) -> Iterator[WithCores]:
    for seed in seeds:
        cores = INVENTED_CORES[seed % len(INVENTED_CORES)]
        yield Machine.invent(seed, cores=cores, batch_size=INVENTED_BATCH_SIZES), cores


def _largest(machine: Machine) -> int:
    """The most threads or instances of its table, as an agent takes it that is told no cores."""
    return int(max(machine.intra_op_threads[-1], machine.busy_instances[-1]))
