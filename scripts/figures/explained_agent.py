"""Draws what the default agent believes, decision by decision: `python -m scripts.figures.explained_agent`.

One simulated machine shares its processors between batches from moment to moment, which the queueing model
does not know. So the replay is wrong in places, and there is a model error to learn. Two pictures are made:

| picture | what it shows |
|---|---|
| `agent-beliefs.png` | the latency expected of every configuration on the way, and the true one |
| `agent-run.png` | the latency under what was chosen, and the model error learned by the end |
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import RATE_PER_S, scenarios
from rrl.agent import Task, live
from rrl.guided.agent import Guided
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from rrl.views.figure_style import BLUE, GRID, INK, SOFT, VERMILION, blank_figure, plain
from serving_adapter.flags.parsing import parse
from serving_adapter.load.arrivals import make_arrivals

SPACE = ConfigurationSpace.of(instances=range(1, 9), intra_op_threads=range(1, 9))
SHOWN = (1, 5, 40)  # decisions after which the beliefs are drawn
LONGEST_SHOWN = 8.0  # times the best latency: all above is drawn alike


@dataclass(frozen=True)
class Options:
    """Draws what the default agent believes over a simulated run."""

    machine: str = "family:5"
    """The machine, as rrl-compare takes it."""
    truth: str = "processor-sharing"
    """How it departs from the queueing model."""
    seed: int = 0
    """Of the agent and the arrivals."""
    out: Path = Path("docs/explanation")
    """Folder of the pictures."""


class Snapshot(NamedTuple):
    """What the agent expects after so many decisions."""

    decisions: int
    latency_ms: np.ndarray  # (size,) of the load to come: replayed latency times exp(model error)
    model_error: np.ndarray  # (size,) ln of observed over replayed latency


class Run(NamedTuple):
    """A simulated run and the truth beside it."""

    beliefs: list[Snapshot]
    chosen: np.ndarray  # (decisions,) numbers
    observed_ms: np.ndarray  # (decisions,)
    true_ms: np.ndarray  # (size,)


def simulate(options: Options) -> Run:
    """Lets the agent tune the machine, and looks into it on the way."""
    scenario = scenarios(options.machine, options.truth)[0]
    env = scenario.environment(SPACE, MeanLatency(), make_arrivals("poisson", RATE_PER_S))
    agent = Guided(Task(SPACE), seed=options.seed)
    beliefs, chosen, observed_ms = [], [], []
    for decisions, transition in enumerate(live(agent, env, max(SHOWN), options.seed), 1):
        chosen.append(SPACE.number_of_action(transition.action))
        observed_ms.append(transition.measurement.latency.mean_ms)
        if decisions in SHOWN:
            beliefs.append(belief(agent, decisions))
    agent.close()
    true_ms = ExpectedCosts(scenario, SPACE, MeanLatency()).mean_latency_ms(RATE_PER_S)
    return Run(beliefs, np.array(chosen), np.array(observed_ms), true_ms)


def belief(agent: Guided, decisions: int) -> Snapshot:
    everything = np.arange(len(SPACE))
    logs, _ = agent.belief.log_costs_ahead(everything)
    return Snapshot(decisions, np.exp(logs), agent.belief.model_error.log_ratio)


def draw_beliefs(run: Run, path: Path) -> None:
    """One map a moment, of the same colours, with the configurations tried until then."""
    figure = blank_figure(11.0, 3.5)
    best_ms = float(run.true_ms.min())
    colours = LogNorm(best_ms, LONGEST_SHOWN * best_ms)
    maps = [(f"believed after {b.decisions}", b.latency_ms, b.decisions) for b in run.beliefs]
    axes = figure.subplots(1, len(maps) + 1, sharey=True)
    for ax, (title, latency_ms, decisions) in zip(axes, [*maps, ("true", run.true_ms, 0)], strict=True):
        ax.set_title(title, fontsize=10, color=INK, loc="left")
        image = ax.pcolormesh(*_grid(latency_ms), norm=colours, cmap="viridis", shading="nearest")
        _mark(ax, run.chosen[:decisions], "o", "white")
        _mark(ax, np.array([run.true_ms.argmin()]), "*", VERMILION)
        _map_axes(ax)
    axes[0].set_ylabel("intra-op threads", fontsize=9, color=SOFT)
    bar = figure.colorbar(image, ax=axes, pad=0.015, fraction=0.03, extend="max")
    bar.set_label("mean latency (ms)", fontsize=9, color=SOFT)
    bar.ax.tick_params(colors=SOFT, labelsize=8)
    bar.set_ticks([t for t in (200, 300, 500, 1000, 2000, 3000) if best_ms <= t <= LONGEST_SHOWN * best_ms])
    bar.minorticks_off()
    bar.ax.yaxis.set_major_formatter("{x:.0f}")
    figure.savefig(path, bbox_inches="tight")


def draw_run(run: Run, path: Path) -> None:
    """What was observed, what is true of what was chosen, and the best there is."""
    figure = blank_figure(11.0, 3.2)
    ax, error_ax = figure.subplots(1, 2, width_ratios=(2.6, 1.0))
    plain(ax)
    _draw_model_error(error_ax, run)
    decisions = np.arange(1, len(run.chosen) + 1)
    ax.plot(decisions, run.observed_ms, "o", color=SOFT, markersize=3.5, label="observed in the interval")
    ax.step(decisions, run.true_ms[run.chosen], where="mid", color=BLUE, label="true mean of what was chosen")
    ax.axhline(run.true_ms.min(), color=VERMILION, linewidth=1.2, label="the best there is")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("decision", fontsize=9, color=SOFT)
    ax.set_ylabel("mean latency (ms)", fontsize=9, color=SOFT)
    ax.legend(frameon=False, fontsize=9, labelcolor=INK)
    figure.tight_layout()
    figure.savefig(path, bbox_inches="tight")


def _draw_model_error(ax: Axes, run: Run) -> None:
    """How many percent slower than replayed the agent takes each configuration to be."""
    percent = 100 * np.expm1(run.beliefs[-1].model_error)
    largest = float(np.abs(percent).max())
    ax.set_title("model error at the end (%)", fontsize=10, color=INK, loc="left")
    image = ax.pcolormesh(*_grid(percent), vmin=-largest, vmax=largest, cmap="RdBu_r", shading="nearest")
    _mark(ax, run.chosen, "o", "white")
    _map_axes(ax)
    ax.set_ylabel("intra-op threads", fontsize=9, color=SOFT)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
    bar.ax.tick_params(colors=SOFT, labelsize=8)


def _map_axes(ax: Axes) -> None:
    """The look of a map; what is not painted is expected to be unstable."""
    ax.set_facecolor(GRID)
    ax.set_xlabel("instances", fontsize=9, color=SOFT)
    ax.tick_params(colors=SOFT, labelsize=8, length=0)


def _grid(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values of both knobs, and the map over them."""
    instances, threads = (np.asarray(knob.values) for knob in SPACE.knobs)
    return instances, threads, values.reshape(SPACE.shape).T


def _mark(ax: Axes, numbers: np.ndarray, marker: str, colour: str) -> None:
    instances, threads = SPACE.values[numbers].T
    ax.plot(
        instances, threads, marker, color=colour, markeredgecolor=INK, markersize=6 if marker == "o" else 12
    )


def main(argv: list[str] | None = None) -> None:
    options = parse(Options, argv)
    run = simulate(options)
    options.out.mkdir(parents=True, exist_ok=True)
    draw_beliefs(run, options.out / "agent-beliefs.png")
    draw_run(run, options.out / "agent-run.png")
    best, last = int(run.true_ms.argmin()), int(run.chosen[-1])
    print(f"best {SPACE.configuration(best)}: {run.true_ms[best]:.0f} ms")
    print(f"last {SPACE.configuration(last)}: {run.true_ms[last]:.0f} ms")
    print(f"largest model error {max(abs(b.model_error).max() for b in run.beliefs):.2f}")


if __name__ == "__main__":
    main()
