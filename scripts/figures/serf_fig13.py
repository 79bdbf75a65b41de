"""SERF, Fig. 13: latency under a load that goes from moderate to low and back, against fixed configurations.

The workload is the one with interference (ImageNet-22K), on the whole grid of its knobs, with one machine for
each seed.

| fixed | by the model |
|---|---|
| low, mod | the best configuration at the low, and at the moderate load |
| other | better than fixed-low at the moderate load, and than fixed-mod at the low load, if there is one |

Every agent sees the same arrivals. SERF looks at the load of the interval just ended, so that it is one
interval late at every change.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from baselines.serf import SERF
from envs.scenarios.workloads import PerIntervalPoisson
from envs.simulated import SimulatedServing
from rrl.agent import Task
from rrl.queueing.interference import capacity_per_s
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_band, bootstrap_change
from scripts.figures.result import FAILS, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.serf_workloads import CORES, DNN, IMAGENET_22K, name_of

LOW, MODERATE = 0.1, 0.6  # shares of the largest capacity, which the paper does not give
INTERVALS = 40  # in each of the three phases
REQUESTS = 100  # in an interval
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
    for seed in range(seeds):
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
            f"{intervals} intervals of {REQUESTS} requests each, on {seeds} machines."
        ),
        seeds=seeds,
        claims=_claims(curves, intervals),
        pictures=("serf-fig13.png",),
        tables=("serf-fig13.csv",),
    )


def _space(workload: DNN) -> ConfigurationSpace:
    return ConfigurationSpace.of(
        instances=range(1, CORES + 1),
        inter_op_threads=workload.inter,
        intra_op_threads=range(1, CORES + 1),
    )


def _one_machine(workload: DNN, seed: int, intervals: int) -> dict[str, tuple[list[int], np.ndarray]]:
    """For each agent the configurations in force and the mean latency in ms, interval by interval."""
    machine = workload.machine(seed)
    serf = SERF(Task(_space(workload), machine=machine))
    capacity = capacity_per_s(serf.service_time_s, serf.instances).max()
    shares = np.repeat([MODERATE, LOW, MODERATE], intervals)
    rates_per_s = np.append(shares[0], shares) * capacity  # the first is the reset's interval
    fixed = _fixed(serf, LOW * capacity, MODERATE * capacity)
    agents: dict[str, SERF | int] = {
        "SERF": serf,
        "fixed-low": fixed.low,
        "fixed-mod": fixed.mod,
        "fixed-other": fixed.other,
    }
    return {name: _run(machine, serf.space, agent, rates_per_s, seed) for name, agent in agents.items()}


def _fixed(serf: SERF, low_per_s: float, moderate_per_s: float) -> FixedConfigurations:
    """The fixed configurations. `other` has the lowest worst excess of those that lose to neither."""
    low_s, moderate_s = (serf.predicted(rate).mean_latency_s for rate in (low_per_s, moderate_per_s))
    low, mod = int(low_s.argmin()), int(moderate_s.argmin())
    between = (low_s < low_s[mod]) & (moderate_s < moderate_s[low])
    worst = np.maximum(low_s / low_s.min(), moderate_s / moderate_s.min())
    worst[[low, mod]] = np.inf
    other = int(np.where(between, worst, np.inf).argmin() if between.any() else worst.argmin())
    return FixedConfigurations(*(int(serf.numbers[k]) for k in (low, mod, other)))


def _run(
    machine: Machine, space: ConfigurationSpace, agent: SERF | int, rates_per_s: np.ndarray, seed: int
) -> tuple[list[int], np.ndarray]:
    env = SimulatedServing(
        machine, space, arrivals=PerIntervalPoisson(rates_per_s, REQUESTS), requests_per_interval=REQUESTS
    )
    start = agent.best(rates_per_s[0]) if isinstance(agent, SERF) else agent
    observation, _ = env.reset(seed=seed, options={"configuration": space.configuration(start)})
    numbers, latencies_ms = [], []
    for _ in range(len(rates_per_s) - 1):
        action = agent.act(observation) if isinstance(agent, SERF) else space.action(agent)
        observation, _, _, _, info = env.step(action)
        numbers.append(space.number_of_action(action))
        latencies_ms.append(info["measurement"].latency.mean_ms)
    return numbers, np.array(latencies_ms)


def _claims(curves: dict[str, np.ndarray], intervals: int) -> tuple[Claim, ...]:
    low = np.zeros(3 * intervals, dtype=bool)
    low[intervals : 2 * intervals] = True
    claims = []
    for what, phase in (("low load", low), ("moderate load", ~low), ("whole run", low | ~low)):
        means = {agent: each[:, phase].mean(axis=1) for agent, each in curves.items()}
        for agent in ("fixed-low", "fixed-mod", "fixed-other"):
            change = bootstrap_change(means["SERF"], means[agent])
            equal = agent == {"low load": "fixed-low", "moderate load": "fixed-mod"}.get(what)
            good = change.estimate < (0.02 if equal else 0.0)
            text = "{:+.1f} % [{:+.1f}, {:+.1f}]".format(*(100 * x for x in change))
            claims.append(
                Claim(
                    f"mean latency of SERF against {agent}, {what}",
                    "equal" if equal else "lower",
                    text,
                    REPRODUCES if good else PARTLY if change.low < 0.02 else FAILS,
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
