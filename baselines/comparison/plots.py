"""The pictures of a comparison: how agents approach the oracle, what that costs, and where each ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from baselines.comparison.settings import ComparisonSettings
from baselines.comparison.summary import WARM_UP, WITHIN, by_agent, by_run, ratio_of_sums
from rrl.views.figure_style import BLUE, COLOURS, FAINT, GRID, INK, SOFT, blank_figure, plain, spread

RATIO, EXCESS, MACHINES = "ratio.png", "excess.png", "machines.png"
OWN = BLUE
DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)))
RATIO_TICKS = (1, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 3)
WIDE_RATIO_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
COLUMNS = 4  # panels beside each other
LABEL_HEIGHT = 0.045  # share of the axes' height
BINS_A_DECADE = 8  # on the logarithmic axis of decisions


@dataclass(frozen=True)
class Curves:
    """One agent's runs, by decision."""

    agent: str
    machines: tuple[str, ...]  # (runs,)
    runs: np.ndarray  # (runs, decisions) rows

    @property
    def excess(self) -> np.ndarray:
        """(runs, decisions) excess cost summed up to each decision."""
        return np.cumsum(self.runs["expected_ms"] - self.runs["oracle_ms"], axis=1)

    def ratios(self, edges: np.ndarray) -> np.ndarray:
        """(runs, bins) expected cost divided by the oracle's, both summed over the decisions of a bin."""
        sums = [np.add.reduceat(self.runs[name], edges[:-1], axis=1) for name in ("expected_ms", "oracle_ms")]
        return np.asarray(sums[0] / sums[1])

    def by_machine(self) -> dict[str, float]:
        """The ratio after the warm-up, for each machine over its seeds."""
        first = min(WARM_UP, self.runs.shape[1] // 2)
        of = np.asarray(self.machines)
        return {m: ratio_of_sums(self.runs[of == m][:, first:].ravel()) for m in dict.fromkeys(self.machines)}


def draw(folder: Path, decisions: np.ndarray, settings: ComparisonSettings) -> list[Path]:
    """Writes the PNG files and answers where they are."""
    curves = [_curves(agent, rows) for agent, rows in by_agent(decisions)]
    curves = [each for each in curves if each.agent != "oracle"] or curves
    curves.sort(key=lambda each: float(np.mean(each.excess[:, -1])))
    unit = settings.make_objective().unit
    what = _setting(settings, curves)
    paths = [folder / name for name in (RATIO, EXCESS, MACHINES)]
    _draw_ratio(paths[0], curves, what)
    _draw_excess(paths[1], curves, what, unit)
    _draw_machines(paths[2], curves, what)
    return paths


def _curves(agent: str, rows: np.ndarray) -> Curves:
    runs = list(by_run(rows))
    return Curves(agent, tuple(machine for machine, _, _ in runs), np.stack([run for _, _, run in runs]))


def _setting(settings: ComparisonSettings, curves: Sequence[Curves]) -> str:
    machines = len(set(curves[0].machines))
    words = [
        f"{machines} machine{'s' * (machines > 1)} ({settings.machine})",
        f"{settings.seeds} seed{'s' * (settings.seeds > 1)}",
        f"{settings.workload} load of {settings.rate_per_s:g}/s",
        f"intervals of {settings.requests_per_interval} requests",
    ]
    words += [f"truth: {settings.truth}"] * (settings.truth != "model")
    words += [f"objective: {settings.objective}"] * (settings.objective != "latency")
    words += [f"p95 limit {settings.slo_p95_ms or 0:g} ms"] * (settings.slo_p95_ms is not None)
    return ", ".join(words)


def _draw_ratio(path: Path, curves: Sequence[Curves], what: str) -> None:
    """Draws a panel for each agent, with the others in grey behind it."""
    edges = decision_bins(curves[0].runs.shape[1])
    middles = (edges[:-1] + 1 + edges[1:]) / 2  # decisions are counted from 1 on a logarithmic axis
    quartiles = {each.agent: np.quantile(each.ratios(edges), [0.25, 0.5, 0.75], axis=0) for each in curves}
    top = max(1.5, 1.3 * max(float(q[2].max()) for q in quartiles.values()))
    rows = math.ceil(len(curves) / COLUMNS)
    columns = math.ceil(len(curves) / rows)
    figure = blank_figure(2.2 + 2.6 * columns, 1.25 + 2.15 * rows)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for ax in axes.flat[len(curves) :]:
        ax.set_visible(False)
    for ax, each in zip(axes.flat, curves, strict=False):
        plain(ax)
        for other in curves:
            if other is not each:
                ax.plot(middles, quartiles[other.agent][1], color=FAINT, linewidth=0.9, zorder=1)
        low, median, high = quartiles[each.agent]
        ax.fill_between(middles, low, high, color=OWN, alpha=0.22, linewidth=0, zorder=2)
        ax.plot(middles, median, color=OWN, linewidth=2, zorder=3)
        ax.axhline(WITHIN, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=2)
        end = float(np.median(list(each.by_machine().values())))
        ax.set_title(each.agent, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=5)
        ax.set_title(f"{end:.3g} at the end", loc="right", fontsize=8.5, color=SOFT, pad=5)
        ax.set_yscale("log")
        _ratio_ticks(ax, top)
        _decision_ticks(ax, edges[-1])
    for ax in axes[:, 0]:
        ax.set_ylabel("cost / oracle's", color=INK, fontsize=9)
    for k in range(columns):
        lowest = max(r for r in range(rows) if r * columns + k < len(curves))
        axes[lowest, k].set_xlabel("decision", color=INK, fontsize=9)
        axes[lowest, k].tick_params(labelbottom=True)
    height, width = figure.get_figheight(), figure.get_figwidth()
    _titles(figure, "Expected cost of what each agent chose, by the oracle's",
            f"median and middle half of the runs, others in grey, dashed: within 10 %; {what}")  # fmt: skip
    figure.subplots_adjust(left=0.75 / width, right=1 - 0.2 / width, top=1 - 1.0 / height,
                           bottom=0.55 / height, hspace=0.34, wspace=0.1)  # fmt: skip
    figure.savefig(path)


def decision_bins(decisions: int) -> np.ndarray:
    """Edges of bins of decisions. At first each decision is a bin, then bins widen in proportion."""
    count = math.ceil(BINS_A_DECADE * math.log10(max(decisions, 2))) + 1
    edges = np.unique(np.rint(np.geomspace(1, decisions + 1, count + 1)).astype(int)) - 1
    return np.asarray(edges)


def _draw_excess(path: Path, curves: Sequence[Curves], what: str, unit: str) -> None:
    """Draws every agent's mean, named at its end."""
    figure = blank_figure(9.5, 5.6)
    ax = figure.subplots()
    plain(ax)
    decisions = np.arange(1, curves[0].runs.shape[1] + 1)
    ends = []
    for k, each in enumerate(curves):
        mean = np.mean(each.excess, axis=0)
        if mean[-1] <= 0:
            continue
        colour, dashes = COLOURS[k % len(COLOURS)], DASHES[k // len(COLOURS) % len(DASHES)]
        shown = np.where(mean > 0, mean, np.nan)
        ax.plot(decisions, shown, color=colour, linestyle=dashes, linewidth=1.9)
        ends.append((float(mean[-1]), each.agent, colour))
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    ax.yaxis.set_minor_locator(NullLocator())
    _decision_ticks(ax, len(decisions))
    ax.set_xlabel("decision", color=INK, fontsize=9.5)
    ax.set_ylabel(f"cost above the oracle's, summed so far ({unit})", color=INK, fontsize=9.5)
    figure.subplots_adjust(left=0.115, right=0.79, top=0.85, bottom=0.11)
    _name_ends(ax, ends)
    _titles(figure, "What learning cost: excess over the oracle, summed so far", f"mean of the runs; {what}")
    figure.savefig(path)


def _name_ends(ax: Axes, ends: Sequence[tuple[float, str, object]]) -> None:
    """Writes names and values beside the lines' ends, moved apart where they would overlap."""
    if not ends:
        ax.text(0.5, 0.5, "no agent differs from the oracle", ha="center", transform=ax.transAxes, color=SOFT)
        return
    leader = {"arrowstyle": "-", "linewidth": 0.7, "relpos": (0.0, 0.5), "shrinkA": 2, "shrinkB": 0}
    ordered = sorted(ends)
    low, high = (math.log10(value) for value in ax.get_ylim())
    wanted = np.array([(math.log10(value) - low) / (high - low) for value, _, _ in ordered])
    at = spread(wanted, LABEL_HEIGHT)
    for place, (value, agent, colour) in zip(at, ordered, strict=True):
        ax.annotate(
            f"{agent}  {value:,.3g}" if value < 1000 else f"{agent}  {value:,.0f}",
            xy=(1.0, (math.log10(value) - low) / (high - low)),
            xytext=(1.05, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            color=colour,
            arrowprops=leader | {"color": colour},
            annotation_clip=False,
        )


def _draw_machines(path: Path, curves: Sequence[Curves], what: str) -> None:
    """Draws a row for each agent, with a dot for each machine."""
    figure = blank_figure(9.5, 1.7 + 0.42 * len(curves))
    ax = figure.subplots()
    plain(ax)
    ax.grid(axis="x", color=GRID, linewidth=0.8)
    top = 1.5
    for k, each in enumerate(curves):
        ratios = each.by_machine()
        values = np.array(list(ratios.values()))
        top = max(top, 1.3 * values.max())
        rows = k + np.resize([0.0, -0.13, 0.13], len(values))
        ax.scatter(values, rows, s=22, color=OWN, alpha=0.55, linewidths=0, zorder=3)
        ax.plot([np.median(values)] * 2, [k - 0.32, k + 0.32], color=INK, linewidth=2, zorder=4)
        worst = max(ratios, key=lambda name: ratios[name])
        if len(values) > 1 and ratios[worst] > WITHIN:
            at = (ratios[worst], rows[list(ratios).index(worst)])
            ax.annotate(worst, at, xytext=(6, 0), textcoords="offset points", va="center",
                        fontsize=7.5, color=SOFT, parse_math=False)  # fmt: skip
    ax.axvline(WITHIN, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=2)
    ax.set_xscale("log")
    ax.set_xlim(0.98, 1.25 * top)
    ticks = RATIO_TICKS if top < 3 else WIDE_RATIO_TICKS
    ax.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if tick <= 1.2 * top]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_yticks(range(len(curves)), [each.agent for each in curves])
    ax.tick_params(axis="y", labelcolor=INK, labelsize=9.5)
    ax.set_ylim(len(curves) - 0.5, -0.5)
    first = min(WARM_UP, curves[0].runs.shape[1] // 2)
    ax.set_xlabel(f"expected cost / oracle's after decision {first}", color=INK, fontsize=9.5)
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.15, right=0.97, top=1 - 0.95 / height, bottom=0.6 / height)
    _titles(figure, "Where the agents end, by machine",
            f"a dot a machine, the bar their median, dashed: within 10 %; {what}")  # fmt: skip
    figure.savefig(path)


def _titles(figure: Figure, title: str, line: str) -> None:
    height, width = figure.get_figheight(), figure.get_figwidth()
    left, per_line = 0.2 / width, int(14.5 * width)
    figure.text(left, 1 - 0.28 / height, title, fontsize=13.5, fontweight="bold", color=INK, va="center")
    at = (left, 1 - 0.48 / height)
    figure.text(*at, _wrapped(line, per_line), fontsize=8.5, color=SOFT, va="top", parse_math=False)


def _wrapped(text: str, width: int) -> str:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) + 1 > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _ratio_ticks(ax: Axes, top: float) -> None:
    ax.set_ylim(0.97, top)
    ticks = RATIO_TICKS if top < 3 else WIDE_RATIO_TICKS
    ax.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if tick <= top]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _decision_ticks(ax: Axes, decisions: int) -> None:
    ax.set_xscale("log")
    ax.set_xlim(1, max(2, decisions))
    ax.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
