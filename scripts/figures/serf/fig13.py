"""SERF, Fig. 13: latency under a load that goes from moderate to low and back, against fixed configurations.

The workload is the one with interference (ImageNet-22K). SERF has a light profile
(`profiling`). The fixed configurations are those that exhaustive profiling finds: they are by the exact
service times.

| fixed | as the paper defines it (section V-E) |
|---|---|
| low, mod | the best configuration at the low, and at the moderate load |
| other | better than fixed-low at the moderate load, and than fixed-mod at the low load |

Not every machine has such an other. The machines are the first, by seed, that have one which is better by 1 %
at least in both. Of several, the one whose worst excess over the best is the least is taken. With c·a at most
8, as section IV-C has it, no machine has one: nothing lies between one instance of 8 threads and two of 4. So
here the threads may be more than the cores.

Every agent sees the same arrivals by node. What a unit of several nodes gets comes so many times as fast.
So its queue is simulated under the arrivals of a node, in a time that runs slower by that. SERF looks at the
load of the interval just ended, so that it is one interval late at every change.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from baselines.serf import SERF
from envs.scenarios.workloads import PerIntervalPoisson
from envs.simulated import SimulatedServing
from rrl.agent import Task
from rrl.queueing.machine import Machine
from rrl.queueing.serving_units import unit_loads, unit_rate_per_s
from rrl.space import ConfigurationSpace
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_band, bootstrap_change
from scripts.figures.result import FAILS, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.serf.profiling import AS_THE_RANGES, light_profile
from scripts.figures.serf.workloads import CORES, DNN, IMAGENET_22K, NODES, name_of

LOW, MODERATE = 0.1, 0.5  # shares of the largest capacity, which the paper does not give
INTERVALS = 40  # in each of the three phases
REQUESTS = 100  # in an interval
MOST_TRIED = 20  # machines for each that is wanted
BETTER = 0.99  # times the latency that fixed-other must stay below, in both
EQUAL_WITHIN = 0.02  # of the latency of what it is to be equal to
LOOKS = {
    "SERF": figure_style.BLUE,
    "fixed-low": figure_style.ORANGE,
    "fixed-mod": figure_style.GREEN,
    "fixed-other": figure_style.GREY,
}


class FixedConfigurations(NamedTuple):
    """Numbers of the configurations that never change."""

    low: int
    mod: int
    other: int


def run(out: Path, seeds: int, workload: DNN = IMAGENET_22K, intervals: int = INTERVALS) -> FigureResult:
    latencies_ms: dict[str, list[np.ndarray]] = {agent: [] for agent in LOOKS}
    rows: list[dict[str, object]] = []
    chosen = machines_with_other(workload, seeds)
    for seed in chosen:
        for agent, (numbers, each_ms) in _one_machine(workload, seed, intervals).items():
            latencies_ms[agent].append(each_ms)
            rows += [
                {
                    "seed": seed,
                    "agent": agent,
                    "interval": k + 1,
                    "phase": "low" if intervals <= k < 2 * intervals else "moderate",
                    "configuration": name_of(_space(workload).configuration(number)),
                    "mean_latency_ms": float(each_ms[k]),
                }
                for k, number in enumerate(numbers)
            ]
    write_csv(out / "serf-fig13.csv", rows)
    curves = {agent: np.array(each) for agent, each in latencies_ms.items()}  # (seeds, intervals)
    _draw(out / "serf-fig13.png", curves)
    return FigureResult(
        title="SERF, Fig. 13: latency under a changing load",
        setting=(
            f"A simulated {workload.name} at {MODERATE:g}, {LOW:g} and {MODERATE:g} of the largest capacity, "
            f"{intervals} intervals of {REQUESTS} requests each, on the first "
            f"{seeds} machines that have a fixed-other, of {chosen[-1] + 1}."
        ),
        seeds=seeds,
        claims=_claims(curves, intervals),
        pictures=("serf-fig13.png",),
        tables=("serf-fig13.csv",),
    )


def machines_with_other(workload: DNN, count: int) -> list[int]:
    """The first seeds whose machines have all three fixed configurations; ValueError where few have."""
    found = []
    for seed in range(MOST_TRIED * count):
        serf = _by(workload, workload.machine(seed))
        if _fixed(serf, *_rates_per_s(serf)) is not None:
            found.append(seed)
        if len(found) == count:
            return found
    raise ValueError(f"of {MOST_TRIED * count} machines {len(found)} have a fixed-other, of {count} wanted")


def _by(workload: DNN, machine: Machine) -> SERF:
    """The scheduler by these service times."""
    return SERF(Task(_space(workload), machine=machine, nodes=NODES))


def _rates_per_s(serf: SERF) -> tuple[float, float]:
    """The low and the moderate load, by node."""
    largest_per_s = float(serf.capacities_per_s.max())
    return LOW * largest_per_s, MODERATE * largest_per_s


def _space(workload: DNN) -> ConfigurationSpace:
    return ConfigurationSpace.of(
        instances=range(1, CORES + 1),
        intra_op_threads=range(1, CORES + 1),
        nodes_per_unit=workload.inter,
    )


def _one_machine(workload: DNN, seed: int, intervals: int) -> dict[str, tuple[list[int], np.ndarray]]:
    """For each agent the configurations in force and the mean latency in ms, interval by interval."""
    machine = workload.machine(seed)
    exhaustive = _by(workload, machine)
    low_per_s, moderate_per_s = _rates_per_s(exhaustive)
    fixed = _fixed(exhaustive, low_per_s, moderate_per_s)
    assert fixed is not None, "machines_with_other took this machine for that"
    everything = [exhaustive.space.configuration(number) for number in exhaustive.numbers]
    serf = _by(workload, light_profile(everything, machine, seed).machine)
    phases = np.repeat([moderate_per_s, low_per_s, moderate_per_s], intervals)
    rates_per_s = np.append(phases[0], phases)  # the first is the reset's interval
    agents: dict[str, SERF | int] = {
        "SERF": serf,
        "fixed-low": fixed.low,
        "fixed-mod": fixed.mod,
        "fixed-other": fixed.other,
    }
    return {name: _run(machine, serf.space, agent, rates_per_s, seed) for name, agent in agents.items()}


def _fixed(serf: SERF, low_per_s: float, moderate_per_s: float) -> FixedConfigurations | None:
    """The fixed configurations; None where nothing is a fixed-other."""
    low_s, moderate_s = (serf.predicted(rate).mean_latency_s for rate in (low_per_s, moderate_per_s))
    low, mod = int(low_s.argmin()), int(moderate_s.argmin())
    between = (low_s < BETTER * low_s[mod]) & (moderate_s < BETTER * moderate_s[low])
    between[[low, mod]] = False  # where the two are one, nothing is between
    if not between.any():
        return None
    worst = np.maximum(low_s / low_s.min(), moderate_s / moderate_s.min())
    other = int(np.where(between, worst, np.inf).argmin())
    return FixedConfigurations(*(int(serf.numbers[k]) for k in (low, mod, other)))


def _run(
    machine: Machine, space: ConfigurationSpace, agent: SERF | int, rates_per_s: np.ndarray, seed: int
) -> tuple[list[int], np.ndarray]:
    env = SimulatedServing(
        _in_time_of_a_node(machine),
        space,
        arrivals=PerIntervalPoisson(rates_per_s, REQUESTS),
        requests_per_interval=REQUESTS,
        service_variation=math.sqrt(math.log1p(AS_THE_RANGES.across_nodes)),
    )
    start = agent.best(rates_per_s[0]) if isinstance(agent, SERF) else agent
    observation, _ = env.reset(seed=seed, options={"configuration": space.configuration(start)})
    numbers, latencies_ms = [], []
    loads = unit_loads(space, NODES)
    for _ in range(len(rates_per_s) - 1):
        action = agent.act(observation) if isinstance(agent, SERF) else space.action(agent)
        observation, _, _, _, info = env.step(action)
        numbers.append(space.number_of_action(action))
        latencies_ms.append(info["measurement"].latency.mean_ms / loads[numbers[-1]])
    return numbers, np.array(latencies_ms)


def _in_time_of_a_node(machine: Machine) -> Machine:
    """The machine whose units take so many times as long as they get more requests than a node."""
    assert machine.nodes_per_unit is not None
    loads = unit_rate_per_s(float(NODES), NODES, machine.nodes_per_unit)
    return replace(machine, service_time_s=machine.service_time_s * loads)


def _claims(curves: dict[str, np.ndarray], intervals: int) -> tuple[Claim, ...]:
    low = np.zeros(3 * intervals, dtype=bool)
    low[intervals : 2 * intervals] = True
    claims = []
    for what, phase in (("low load", low), ("moderate load", ~low), ("whole run", low | ~low)):
        means = {agent: each[:, phase].mean(axis=1) for agent, each in curves.items()}
        for agent in ("fixed-low", "fixed-mod", "fixed-other"):
            change = bootstrap_change(means["SERF"], means[agent])
            equal = agent == {"low load": "fixed-low", "moderate load": "fixed-mod"}.get(what)
            most = EQUAL_WITHIN if equal else 0.0
            text = "{:+.1f} % [{:+.1f}, {:+.1f}]".format(*(100 * x for x in change))
            claims.append(
                Claim(
                    f"mean latency of SERF against {agent}, {what}",
                    "equal" if equal else "lower",
                    text,
                    REPRODUCES if change.estimate < most else PARTLY if change.low < most else FAILS,
                )
            )
    for phase, agent, what in ((~low, "fixed-low", "moderate load"), (low, "fixed-mod", "low load")):
        change = bootstrap_change(*(curves[name][:, phase].mean(axis=1) for name in ("fixed-other", agent)))
        claims.append(
            Claim(
                f"mean latency of fixed-other against {agent}, {what}",
                "lower",
                "{:+.1f} % [{:+.1f}, {:+.1f}]".format(*(100 * x for x in change)),
                REPRODUCES if change.high < 0 else PARTLY if change.estimate < 0 else FAILS,
            )
        )
    return tuple(claims)


def _draw(path: Path, curves: dict[str, np.ndarray]) -> None:
    figure, axes = drawing.new_figure(
        width=7.0,
        height=3.4,
        title="A load that changes (SERF, Fig. 13)",
        subtitle="Mean latency of each interval over that of fixed-low at low load; mean over machines, 95 %",
    )
    ax = axes[0, 0]
    third = curves["SERF"].shape[1] // 3
    unit_ms = curves["fixed-low"][:, third : 2 * third].mean(axis=1, keepdims=True)
    x = np.arange(1, 3 * third + 1)
    for agent, colour in LOOKS.items():
        drawing.band(ax, x, *bootstrap_band(curves[agent] / unit_ms), colour, agent)
    for k, text in enumerate(("moderate load", "low load", "moderate load")):
        ax.axvline(k * third + 0.5, color=figure_style.GRID)
        ax.annotate(text, ((k + 0.5) / 3, 1.0), xycoords="axes fraction", ha="center", fontsize=8)
    figure_style.log_axis(ax, "y")
    drawing.names(ax, "interval", "relative mean latency")
    drawing.label_lines_at_end(ax)
    drawing.save(figure, path)
