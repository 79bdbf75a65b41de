"""RRL's figures share this: the agents, how they are drawn, and runs of all of them side by side.

A run of the paper lasts some 2,000 minutes, and the time between decisions is not given. The x axis here
counts decisions. So the two are compared by their share of the run.

| decisions in a run | minutes of the paper for each |
|---|---|
| 100 | 20 |
| 200 | 10 |

In simulated time an interval of 100 requests at 14/s lasts 7 s. Each figure has as many decisions as 10 runs
of every agent can make in about 4 minutes on 2 cores.

Every two runs are on a machine of their own, and every run has a load and a seed of its own. So an interval
covers machines as well as chance. `rrl-released` is the authors' script with its network trained on from the
last one, 30 steps for each decision. `rrl-released-exact` trains it anew, for seconds in every decision.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from baselines.comparison import ComparisonSettings, run_comparison
from baselines.comparison.summary import decisions_until_within
from baselines.comparison.workers import SilentProgress
from envs.scenarios.families import FIRST_FOR_JUDGING
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import BootstrapInterval, bootstrap_band, bootstrap_change
from scripts.figures.result import FAILS, PARTLY, REPRODUCES


@dataclass(frozen=True)
class Look:
    """An agent's name and line in the pictures."""

    label: str
    colour: str
    linestyle: str = "-"


LOOKS = {
    "guided": Look("our default", figure_style.BLUE),
    "rrl-paper": Look("RRL (paper)", figure_style.GREEN),
    "rrl-released": Look("RRL (script)", figure_style.GREEN, ":"),
    "capes": Look("CAPES", figure_style.VERMILION),
    "capes-tuned": Look("CAPES, tuned", figure_style.VERMILION, ":"),
    "deeprm": Look("DeepRM", figure_style.ORANGE),
    "deeprm-tuned": Look("DeepRM, tuned", figure_style.ORANGE, ":"),
    "best-fixed": Look("best fixed", figure_style.GREY, "--"),
    "oracle": Look("oracle", figure_style.BLACK, "--"),
}

AGENTS = ("guided", "rrl-paper", "capes", "capes-tuned", "deeprm", "deeprm-tuned", "best-fixed", "oracle")
WITH_RELEASED = (*AGENTS[:2], "rrl-released", *AGENTS[2:])


def runs_of(seeds: int) -> tuple[int, int]:
    """(machines, seeds for each) of a number of runs: two for each machine, unless there is only one run."""
    per_machine = min(2, seeds)
    return math.ceil(seeds / per_machine), per_machine


def family_machines(count: int) -> list[str]:
    """The first machines for judging, each as `rrl-compare --machine` takes it."""
    return [f"family:{FIRST_FOR_JUDGING + k}" for k in range(count)]


def family(count: int) -> str:
    """The first machines for judging in one text, as `rrl-compare --machine` takes them."""
    return f"family:{FIRST_FOR_JUDGING}-{FIRST_FOR_JUDGING + count - 1}"


def compared(settings: ComparisonSettings) -> np.ndarray:
    """The table of decisions of a comparison on all cores, which prints nothing and keeps no files."""
    with tempfile.TemporaryDirectory(prefix="rrl-figure-") as folder:
        return run_comparison(
            settings, Path(folder), os.cpu_count() or 1, progress=SilentProgress(), warn=lambda text: None
        )


def announce(settings: ComparisonSettings, machines: int) -> None:
    """Prints a line for a part of a figure that takes a minute or so."""
    print(
        f"{settings.workload} load, truth {settings.truth!r}, objective {settings.objective}: "
        f"{len(settings.agents)} agents, {machines * settings.seeds} runs of {settings.decisions} decisions",
        flush=True,
    )


def curves(decisions: np.ndarray, agent: str, field: str) -> np.ndarray:
    """(runs, decisions): one field of an agent's runs, in the order of machines and seeds."""
    rows = decisions[decisions["agent"] == agent]
    length = int(rows["decision"].max()) + 1
    values: np.ndarray = rows[field].reshape(-1, length)
    return values


def ratio_to_oracle(decisions: np.ndarray, agent: str) -> np.ndarray:
    """(runs, decisions) expected cost of what was chosen, divided by the lowest possible."""
    ratio: np.ndarray = curves(decisions, agent, "expected_ms") / curves(decisions, agent, "oracle_ms")
    return ratio


def converged_at(ratios: np.ndarray) -> np.ndarray:
    """(runs,) decisions until (runs, decisions) ratios are within 10 % and stay so; infinity for never."""
    return np.array([decisions_until_within(ratio) for ratio in ratios])


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """(runs, decisions): the mean over the last `window` decisions, fewer at the start."""
    sums = np.cumsum(np.pad(values.astype(float), ((0, 0), (1, 0))), axis=1)
    last = np.arange(1, values.shape[1] + 1)
    first = np.maximum(0, last - window)
    result: np.ndarray = (sums[:, last] - sums[:, first]) / (last - first)
    return result


def draw_load(ax: Axes, rates_per_s: np.ndarray, title: str) -> None:
    """Draws the (runs, decisions) arrival rates, with the first run's in front."""
    for k, rates in reversed(list(enumerate(rates_per_s))):
        colour, width = (figure_style.INK, 1.2) if k == 0 else ("#d5dae0", 0.7)
        ax.plot(np.arange(1, len(rates) + 1), rates, color=colour, linewidth=width, drawstyle="steps-mid")
    ax.set_ylim(0, 1.1 * rates_per_s.max())
    drawing.names(ax, "", "requests/s", f"{title} (black: run 1)")


def draw_over_time(ax: Axes, values: Mapping[str, np.ndarray], name: str, window: int) -> None:
    """Draws each agent's (runs, decisions): the mean over runs and `window` decisions, on a log axis.

    The papers' agents and ours have their interval as a band. The other lines are dotted or dashed.
    """
    figure_style.log_axis(ax, "y")
    for agent, each in values.items():
        look = LOOKS[agent]
        mean, low, high = bootstrap_band(smoothed(each, window))
        x = np.arange(1, len(mean) + 1)
        if look.linestyle == "-":
            drawing.band(ax, x, mean, low, high, look.colour, look.label)
        else:
            ax.plot(x, mean, color=look.colour, linewidth=1.4, linestyle=look.linestyle, label=look.label)
    drawing.names(ax, "", name)
    drawing.label_lines_at_end(ax, gap=0.08)


def percent_change(ours: np.ndarray, theirs: np.ndarray) -> BootstrapInterval:
    """The change of the mean of (runs,) values in percent, for pairs of runs on the same seeds."""
    return BootstrapInterval(*(100 * value for value in bootstrap_change(ours, theirs)))


def verdict_of_reduction(paper_percent: float, change: BootstrapInterval) -> str:
    """Reproduces: surely lower, by at least three quarters as much. Partly: surely lower, but by less."""
    if change.high >= 0:
        return FAILS
    return REPRODUCES if change.estimate <= 0.75 * paper_percent else PARTLY
