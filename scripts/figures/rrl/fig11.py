"""RRL, Fig. 11: how the region's size changes convergence time and distance from the optimum (section 6.2).

| symbol | here | meaning |
|---|---|---|
| δ | `RADII` | the region's radius, in grid steps; δ = 0 is point-based Q-learning |
| Q_t(c) | `Perception.q` | perceived cost of a configuration after t decisions |
| Q*(c) | `optimal_q` | its expected cost, by long simulation |
| d_t | `distance` | mean over all configurations of min(1, abs(Q_t - Q*) / Q*) |
| t_c | `converged_after` | the first t from which on d_t stays within 0.05 of where the run ends |

The agent is the paper's, at a stationary load: α = 1/n, Q_0 = 1/|C| of the first cost, estimator as in
section 5.1. The paper does not give two settings.

| setting | why |
|---|---|
| γ = 0 | a configuration hardly changes the next load; with γ = 0.9, Q approaches Q* no faster than n^-0.1 |
| one load level | at 14/s chance in the measured rate would split the visits of one load among two levels |
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from baselines.comparison.workers import Workers
from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import FIRST_FOR_JUDGING, RATE_PER_S, family_machine
from envs.scenarios.scenario import Scenario
from envs.scenarios.workloads import PerIntervalPoisson
from envs.simulated import PAPER_SPACE
from rrl.agent import Task, live
from rrl.objective import MeanLatency
from rrl.region.estimator import EstimatorSettings
from rrl.region.q_learning import PAPER, RegionQLearning, RRLSettings
from rrl.space import ConfigurationSpace
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import BootstrapInterval, bootstrap_band, bootstrap_mean, bootstrap_median
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES, Claim, FigureResult, write_csv

NAME = "rrl-fig11"
RADII = (0, 1, 2, 3, 4, 5)
PAPER_TIMES_FASTER = {1: ("5", 5.0), 2: ("roughly 10", 10.0)}  # by δ, than δ = 0
AS_MUCH_FASTER = 0.8  # of the paper's factor
NEAR_ITS_END = 0.05  # of the distance
END = 0.1  # of the decisions: where a run ends is the mean over its last ones


@dataclass(frozen=True)
class Figure11Setting:
    radii: tuple[int, ...] = RADII
    decisions: tuple[int, ...] = (1500, 600, 300, 300, 300, 300)  # with each radius; enough to converge
    knobs: str = PAPER_SPACE


class Learning(NamedTuple):
    """One run."""

    distance: np.ndarray  # (decisions,) d_t
    greedy_ratio: np.ndarray  # (decisions,) expected latency where Q is lowest / the lowest there is


@dataclass(frozen=True, eq=False)
class LearningJob:
    """One run of the paper's agent with one radius."""

    radius: int
    machine: int
    seed: int
    decisions: int
    space: ConfigurationSpace
    optimal_q: np.ndarray  # (size,)

    def __call__(self) -> Learning:
        scenario = Scenario(family_machine(self.machine), f"family-{self.machine}")
        arrivals = PerIntervalPoisson(np.full(self.decisions + 1, RATE_PER_S))
        env = scenario.environment(self.space, MeanLatency(), arrivals)
        agent = RegionQLearning(Task(self.space), settings_with(self.radius), self.seed)
        learning = Learning(np.empty(self.decisions), np.empty(self.decisions))
        for t, _ in enumerate(live(agent, env, self.decisions, self.seed)):
            q = agent.perceptions[0].q
            learning.distance[t] = np.minimum(1.0, np.abs(q - self.optimal_q) / self.optimal_q).mean()
            greedy = agent.best_configuration(0)
            learning.greedy_ratio[t] = self.optimal_q[greedy] / self.optimal_q.min()
        return learning


def runs_of(seeds: int) -> tuple[int, int]:
    """(machines, seeds for each) of a number of runs: two for each machine, unless there is only one run."""
    per_machine = min(2, seeds)
    return math.ceil(seeds / per_machine), per_machine


def settings_with(radius: int) -> RRLSettings:
    """The paper's agent with this δ. With δ = 0 the network is never asked, so it is hardly trained."""
    settings = replace(PAPER, radius=float(radius), discount=0.0, load_levels=None)
    if radius > 0:
        return settings
    return replace(settings, estimator=EstimatorSettings(hidden=(1,), minibatch=1, max_steps=1))


def converged_after(distance: np.ndarray) -> int:
    """t_c, from the (decisions,) distances d_t."""
    end = distance[-max(1, round(END * len(distance))) :].mean()
    outside = np.flatnonzero(np.abs(distance - end) > NEAR_ITS_END)
    return int(outside[-1]) + 1 if len(outside) else 0


def run(out: Path, seeds: int, setting: Figure11Setting | None = None) -> FigureResult:
    """Writes rrl-fig11.png and its CSVs."""
    setting = setting or Figure11Setting()
    learned = _learn(seeds, setting)
    times = {δ: np.array([converged_after(run.distance) for run in runs]) for δ, runs in learned.items()}
    ends = {δ: np.array([run.distance[-1] for run in runs]) for δ, runs in learned.items()}
    ratios = {δ: np.array([run.greedy_ratio[-1] for run in runs]) for δ, runs in learned.items()}
    _draw(out / f"{NAME}.png", learned, times, ends, seeds)
    return FigureResult(
        title="RRL, Fig. 11: the region's size",
        setting="The paper's agent (γ = 0) at 14 requests/s on simulated machines, two runs each. 1,000 "
        f"configurations, {', '.join(map(str, setting.decisions))} decisions with δ = "
        f"{', '.join(map(str, setting.radii))}. Distance: mean of |Q - Q*| / Q*, at most 1 each. Converged: "
        "within 0.05 of its end.",
        seeds=seeds,
        claims=tuple(_claims(times, ends, ratios)),
        pictures=(f"{NAME}.png",),
        tables=_write_tables(out, learned, times, ends, ratios),
    )


def _learn(seeds: int, setting: Figure11Setting) -> dict[int, list[Learning]]:
    """The runs of each radius, all on the same machines and seeds."""
    space = ConfigurationSpace.parse(setting.knobs)
    machines, per_machine = runs_of(seeds)
    optimal_q = [_optimal_q(FIRST_FOR_JUDGING + k, space) for k in range(machines)]
    jobs = [
        LearningJob(radius, FIRST_FOR_JUDGING + k, seed, decisions, space, optimal_q[k])
        for radius, decisions in zip(setting.radii, setting.decisions, strict=True)
        for k in range(machines)
        for seed in range(per_machine)
    ]
    done: dict[int, Learning] = {}
    with Workers(os.cpu_count() or 1) as workers:
        workers.run(jobs, lambda job, learning: done.update({jobs.index(job): learning}))
    return {
        radius: [done[k] for k, job in enumerate(jobs) if job.radius == radius] for radius in setting.radii
    }


def _optimal_q(machine: int, space: ConfigurationSpace) -> np.ndarray:
    """(size,) Q*, which with γ = 0 is the expected costs."""
    scenario = Scenario(family_machine(machine), f"family-{machine}")
    return ExpectedCosts(scenario, space, MeanLatency()).costs(RATE_PER_S)


def _draw(
    path: Path,
    learned: Mapping[int, list[Learning]],
    times: Mapping[int, np.ndarray],
    ends: Mapping[int, np.ndarray],
    seeds: int,
) -> None:
    figure, axes = drawing.new_figure(
        1,
        3,
        width=4.3,
        height=3.7,
        title="RRL, Fig. 11: larger regions converge sooner and end farther from the optimum",
        subtitle=f"median (left) and mean over {seeds} runs; 95 % bootstrap intervals",
    )
    time_ax, end_ax, course_ax = axes[0]
    _points(time_ax, {δ: bootstrap_median(values) for δ, values in times.items()}, figure_style.BLUE)
    figure_style.log_axis(time_ax, "y")
    drawing.names(time_ax, "δ, radius of the region", "decisions", "until Q has converged")
    _points(end_ax, {δ: bootstrap_mean(values) for δ, values in ends.items()}, figure_style.VERMILION)
    end_ax.set_ylim(0, None)
    drawing.names(
        end_ax, "δ, radius of the region", "mean |Q - Q*| / Q*", "distance from the optimal Q, at the end"
    )
    shades = dict(zip(learned, drawing.SEQUENCE, strict=False))
    for δ, runs in learned.items():
        curves = np.stack([run.distance for run in runs])
        x = np.arange(1, curves.shape[1] + 1)
        drawing.band(course_ax, x, *bootstrap_band(curves), shades[δ], f"δ = {δ}")
    figure_style.log_axis(course_ax, "x", subs=(1.0,))
    course_ax.set_ylim(0, 1)
    drawing.names(course_ax, "decision", "mean |Q - Q*| / Q*", "the distance over time")
    course_ax.legend(fontsize=8, frameon=False, labelcolor="linecolor", loc="lower left")
    drawing.save(figure, path)


def _points(ax: Axes, values: Mapping[int, BootstrapInterval], colour: str) -> None:
    x = np.array(list(values))
    estimate, low, high = np.array([list(value) for value in values.values()]).T
    ax.errorbar(
        x, estimate, [estimate - low, high - estimate], fmt="o-", color=colour, capsize=3, linewidth=1.5
    )
    ax.set_xticks(x)
    falling = estimate[-1] < estimate[0]
    for δ, value in zip(x, estimate, strict=True):
        ax.annotate(
            f"{value:.2g}" if value < 1 else f"{value:.0f}",
            (δ, value),
            xytext=(7, 6) if falling else (-6, 7),
            textcoords="offset points",
            ha="left" if falling else "right",
            fontsize=8,
            color=colour,
        )


def _claims(
    times: Mapping[int, np.ndarray], ends: Mapping[int, np.ndarray], ratios: Mapping[int, np.ndarray]
) -> list[Claim]:
    claims = []
    for δ, (words, factor) in PAPER_TIMES_FASTER.items():
        if {0, δ} <= set(times):
            speed = bootstrap_median(times[0] / np.maximum(1, times[δ]))
            enough = speed.estimate >= AS_MUCH_FASTER * factor
            verdict = REPRODUCES if enough else PARTLY if speed.low > 1 else FAILS
            what = f"δ = {δ} converges so many times faster than δ = 0"
            claims.append(Claim(what, words, speed.text(".1f"), verdict))
    medians = [bootstrap_median(values).estimate for values in times.values()]
    falls = bool(np.all(np.diff(medians) <= 0))
    text = ", ".join(f"{median:.0f}" for median in medians)
    claims.append(
        Claim(
            f"decisions until converged, δ = {', '.join(map(str, times))}",
            "falls with δ, quickly at first",
            text,
            REPRODUCES if falls else PARTLY if medians[-1] < medians[0] else FAILS,
        )
    )
    means = [float(values.mean()) for values in ends.values()]
    claims.append(
        Claim(
            f"distance from the optimal Q, δ = {', '.join(map(str, ends))}",
            "grows with δ, much more slowly",
            ", ".join(f"{mean:.2f}" for mean in means),
            REPRODUCES if np.all(np.diff(means) >= 0) else PARTLY if means[-1] > means[0] else FAILS,
        )
    )
    claims.append(
        Claim(
            f"latency of the lowest Q's configuration, by the lowest, δ = {', '.join(map(str, ratios))}",
            "–",
            ", ".join(f"{np.median(values):.2f}" for values in ratios.values()),
            NO_CLAIM,
        )
    )
    return claims


def _write_tables(
    out: Path,
    learned: Mapping[int, list[Learning]],
    times: Mapping[int, np.ndarray],
    ends: Mapping[int, np.ndarray],
    ratios: Mapping[int, np.ndarray],
) -> tuple[str, ...]:
    rows: list[dict[str, object]] = []
    courses: list[dict[str, object]] = []
    for δ, runs in learned.items():
        time, end, ratio = bootstrap_median(times[δ]), bootstrap_mean(ends[δ]), bootstrap_median(ratios[δ])
        rows.append(
            {"radius": δ, "decisions_until_converged": time.estimate, "low": time.low, "high": time.high,
             "distance": end.estimate, "distance_low": end.low, "distance_high": end.high,
             "greedy_latency_by_best": ratio.estimate, "greedy_low": ratio.low, "greedy_high": ratio.high}
        )  # fmt: skip
        band = bootstrap_band(np.stack([run.distance for run in runs]))
        courses += [
            {"radius": δ, "decision": t + 1, "distance": float(mean), "low": float(low), "high": float(high)}
            for t, (mean, low, high) in enumerate(zip(*band, strict=True))
        ]
    write_csv(out / f"{NAME}.csv", rows)
    write_csv(out / f"{NAME}-courses.csv", courses)
    return f"{NAME}.csv", f"{NAME}-courses.csv"
