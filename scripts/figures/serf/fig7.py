"""SERF, Fig. 7 and Table I: service time, waiting time and latency of six configurations by load.

Simulated testbed: ImageNet-22K, one machine for each seed. The configurations are Table I's. Their cluster
gets the same arrivals at 10 loads, shares of the largest capacity among the six. Above 95 % of its own
capacity a configuration has no point. Whether service times vary shows the law of the interference, so that
is not judged. `scripts/bench serf-model` has such loads on the real server.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from scripts.figures import drawing
from scripts.figures.result import FAILS, NOT_COMPARABLE, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.serf.loads import HIGHEST_UTILISATION
from scripts.figures.serf.profiling import AS_THE_RANGES, exact_times_s
from scripts.figures.serf.workloads import (
    IMAGENET_22K,
    LOADS,
    enough_requests,
    measured_means_s,
    name_of,
    node_capacities_per_s,
    unit_loads_of,
)

TABLE_I = tuple(
    {"instances": service, "nodes_per_unit": inter, "intra_op_threads": intra}
    for service, inter, intra in ((1, 1, 8), (2, 1, 4), (4, 1, 2), (1, 4, 8), (2, 4, 4), (4, 4, 2))
)
VARIES = 0.05  # by so much of its highest value, at least, over the loads
QUANTITIES = ("service time", "waiting time", "latency")


class ByLoad(NamedTuple):
    """Of one machine."""

    rates_per_s: np.ndarray  # (loads,) by node
    means_s: np.ndarray  # (QUANTITIES, loads, configurations); infinite where not measured


def run(out: Path, seeds: int, loads: np.ndarray = LOADS) -> FigureResult:
    machines = [_by_load(seed, loads) for seed in range(seeds)]
    write_csv(
        out / "serf-fig7.csv",
        [
            {
                "seed": seed,
                "load": float(loads[row]),
                "rate_per_s": float(each.rates_per_s[row]),
                "configuration": f"Config{k + 1} {name_of(TABLE_I[k])}",
            }
            | {
                f"{what.split()[0]}_ms": 1e3 * float(each.means_s[q, row, k])
                for q, what in enumerate(QUANTITIES)
            }
            for seed, each in enumerate(machines)
            for row in range(len(loads))
            for k in range(len(TABLE_I))
            if np.isfinite(each.means_s[0, row, k])
        ],
    )
    _draw(out / "serf-fig7.png", loads, machines[0])
    return FigureResult(
        title="SERF, Fig. 7 and Table I: six configurations by load",
        setting=(
            f"Simulated testbed: ImageNet-22K under Table I's six configurations at {len(loads)} loads up to "
            f"{loads[-1]:g} of their largest capacity, on {seeds} machines."
        ),
        seeds=seeds,
        claims=_claims(machines),
        pictures=("serf-fig7.png",),
        tables=("serf-fig7.csv",),
    )


def _by_load(seed: int, loads: np.ndarray) -> ByLoad:
    machine = IMAGENET_22K.machine(seed)
    capacities_per_s = node_capacities_per_s(exact_times_s(TABLE_I, machine), TABLE_I)
    unit_loads = unit_loads_of(TABLE_I)
    rates_per_s = loads * capacities_per_s.max()
    means_s = np.full((len(QUANTITIES), len(loads), len(TABLE_I)), np.inf)
    for row, rate_per_s in enumerate(rates_per_s):
        for k, configuration in enumerate(TABLE_I):
            utilisation = float(rate_per_s / capacities_per_s[k])
            if utilisation <= HIGHEST_UTILISATION:
                scv = AS_THE_RANGES.scv(configuration["nodes_per_unit"])
                requests = enough_requests(utilisation)
                unit_per_s = float(unit_loads[k] * rate_per_s)
                found = measured_means_s(machine, configuration, unit_per_s, requests, seed, scv=scv)
                means_s[:, row, k] = found.service_s, found.wait_s, found.latency_s
    return ByLoad(rates_per_s, means_s)


def _claims(machines: list[ByLoad]) -> tuple[Claim, ...]:
    """The paper says that all three quantities can vary with the load, for the same configuration."""
    claims = []
    for q, what in enumerate(QUANTITIES):
        spans = np.mean([_span(each.means_s[q]) for each in machines], axis=0)  # (configurations,)
        varying = [f"Config{k + 1}" for k in np.flatnonzero(spans >= VARIES)]
        is_law = what == "service time"
        verdict = REPRODUCES if len(varying) == len(TABLE_I) else PARTLY if varying else FAILS
        claims.append(
            Claim(
                f"configurations of six whose {what} varies by {100 * VARIES:.0f} % or more over the loads"
                + is_law * " (its law)",
                "it can vary",
                f"{len(varying)}" + (f" ({', '.join(varying)})" if len(varying) < len(TABLE_I) else ""),
                NOT_COMPARABLE if is_law else verdict,
            )
        )
    changes = [len(set(each.means_s[2].argmin(axis=1).tolist())) > 1 for each in machines]
    claims.append(
        Claim(
            "machines on which the best of the six changes with the load",
            "it changes",
            f"{100 * np.mean(changes):.0f} %",
            REPRODUCES if all(changes) else PARTLY if np.mean(changes) > 0.5 else FAILS,
        )
    )
    return tuple(claims)


def _span(means_s: np.ndarray) -> np.ndarray:
    """(configurations,) from the lowest to the highest of the loads measured, over the highest."""
    finite = np.where(np.isfinite(means_s), means_s, np.nan)
    highest_s = np.nanmax(finite, axis=0)
    change_s = highest_s - np.nanmin(finite, axis=0)
    return np.divide(change_s, highest_s, out=np.zeros_like(change_s), where=highest_s > 0)


def _draw(path: Path, loads: np.ndarray, machine: ByLoad) -> None:
    figure, axes = drawing.new_figure(
        1,
        3,
        width=3.5,
        height=3.1,
        title="Six configurations by load (SERF, Fig. 7)",
        subtitle="Machine 0; the configurations are Table I's: (service, inter-node, intra-node)",
    )
    for ax, means_s, what in zip(axes[0], machine.means_s, QUANTITIES, strict=True):
        for colour, configuration, column in zip(drawing.SEQUENCE, TABLE_I, means_s.T, strict=True):
            shown = np.where(np.isfinite(column), 1e3 * column, np.nan)
            ax.plot(loads, shown, color=colour, marker="o", markersize=3, label=name_of(configuration))
        drawing.names(ax, "load (share of the largest capacity)", f"{what} (ms)", what)
    axes[0, 0].legend(fontsize=7, frameon=False)
    drawing.save(figure, path)
