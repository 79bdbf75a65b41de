"""RRL, Fig. 14: how latency is distributed under a strict SLO, and how often the SLO is broken (section 6.5).

The runs are those of Figs. 12 and 13 under WiKi. So every agent minimises the mean latency, where the paper's
were told the limit. The limit is the strict one of `slo`. The curves show the share of requests that took
longer than x times the limit, over all intervals, those of the search included. Where the p95 is kept, a
curve passes below 5 % at 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from envs.scenarios.families import RATE_PER_S
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_band, bootstrap_mean
from scripts.figures.result import NO_CLAIM, Claim, FigureResult, write_csv
from scripts.figures.rrl import courses, fig12, fig13, rules
from scripts.figures.rrl.contenders import PAPERS_RRL, Contender, contenders, in_the_pictures
from scripts.figures.rrl.long_runs import WIKI, LongRunsSetting, Panel, run_panel
from scripts.figures.rrl.slo import STRICT, RunsWithLimits

NAME = "rrl-fig14"
CPU, GPU = "CPU", "GPU stand-in"
LATENCIES = np.geomspace(0.1, 100.0, 121)  # where the curves are drawn, divided by the limit
LEAST = 1e-4  # the lowest share shown
AT_THE_LIMIT = int(np.argmin(np.abs(LATENCIES - 1.0)))

GUARANTEE = "can offer SLO guarantee"  # "even under strict targets", section 6.5
PAPER_PERCENT = {"capes": -49.9, "deeprm": -43.4}  # "up to", of CPU and GPU alike

Panels = Mapping[str, RunsWithLimits]


def run(out: Path, seeds: int, setting: LongRunsSetting | None = None) -> FigureResult:
    """Writes rrl-fig14.png and its CSVs."""
    setting = setting or LongRunsSetting()
    looks = contenders(RATE_PER_S)
    panels = {
        CPU: _with_limits(fig12.cpu_panel(WIKI, fig12.INCEPTION, seeds, setting), setting),
        GPU: _with_limits(fig13.gpu_panel(WIKI, seeds, setting), setting),
    }
    names = in_the_pictures(looks)
    exceeded = {(panel, name): _exceeded(runs, name) for panel, runs in panels.items() for name in names}
    figure, axes = drawing.new_figure(
        1,
        len(panels),
        width=5.8,
        height=4.4,
        title="RRL, Fig. 14: latency of all requests under a strict SLO",
        subtitle=f"share of requests above x; limit: p95 at most {STRICT:g} times the lowest possible; "
        f"{seeds} runs, band: 95 % bootstrap interval",
        sharey=True,
    )
    for ax, panel in zip(axes[0], panels, strict=True):
        _draw(ax, {name: exceeded[panel, name] for name in names}, looks, panel)
    drawing.save(figure, out / f"{NAME}.png")
    return FigureResult(
        title="RRL, Fig. 14: latency CCDF under a strict SLO",
        setting=f"The runs of Figs. 12 and 13 under WiKi, {setting.decisions} decisions each. Limit: p95 at "
        f"most {STRICT:g} times the lowest that any configuration has at the mean load. A violation is an "
        "interval over it.",
        seeds=seeds,
        claims=tuple(_claims(panels, exceeded, looks)),
        pictures=(f"{NAME}.png",),
        tables=_write_tables(out, panels, exceeded),
    )


def _with_limits(panel: Panel, setting: LongRunsSetting) -> RunsWithLimits:
    return RunsWithLimits(run_panel(panel, contenders(panel.rate_per_s), setting), panel.limits_ms(STRICT))


def _exceeded(runs: RunsWithLimits, name: str) -> np.ndarray:
    """(runs, latencies): the share of a run's requests that took longer than each of `LATENCIES`."""
    samples = runs.request_latencies(name)
    return np.stack([1 - np.searchsorted(np.sort(s), LATENCIES, side="right") / len(s) for s in samples])


def _draw(ax: Axes, exceeded: Mapping[str, np.ndarray], looks: Mapping[str, Contender], panel: str) -> None:
    figure_style.log_axis(ax, "x", subs=(1.0, 3.0))
    figure_style.log_axis(ax, "y", subs=(1.0,))
    for name, shares in exceeded.items():
        mean, low, high = bootstrap_band(shares)
        mean, low = np.where(mean > 0, mean, np.nan), np.maximum(low, LEAST / 10)
        courses.draw_line(ax, looks[name], LATENCIES, mean, low, high)
    ax.axvline(1.0, color=figure_style.INK, linewidth=1.0)
    ax.axhline(0.05, color=figure_style.INK, linewidth=0.8, linestyle=(0, (1, 2)))
    ax.annotate(
        "limit",
        (1.0, 0.9),
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=8,
        color=figure_style.INK,
    )
    ax.annotate("5 %", (0.11, 0.054), fontsize=8, color=figure_style.INK)
    ax.set_ylim(LEAST, 1.2)
    ax.set_xlim(LATENCIES[0], LATENCIES[-1])
    ax.legend(fontsize=8, frameon=False, loc="lower left", labelcolor="linecolor")
    drawing.names(ax, "latency by the limit", "share of requests above" if panel == CPU else "", panel)


def _claims(
    panels: Panels, exceeded: Mapping[tuple[str, str], np.ndarray], looks: Mapping[str, Contender]
) -> list[Claim]:
    claims = []
    for panel, runs in panels.items():
        for against, paper_percent in PAPER_PERCENT.items():
            theirs = runs.violated_percent(against)
            for name in PAPERS_RRL:
                whole, later = (
                    rules.percent_change(ours, other)
                    for ours, other in zip(runs.violated_percent(name), theirs, strict=True)
                )
                verdict = rules.verdict_of_reduction(paper_percent, whole)
                pair = f"{looks[name].label} against {looks[against].label}"
                claims.append(
                    Claim(
                        f"intervals over the limit, {panel}: {pair}",
                        f"up to {paper_percent:+.1f} %",
                        f"{rules.percent_text(whole, runs.runs.count)}; after the search "
                        f"{rules.percent_text(later, runs.runs.count)}",
                        rules.judged(runs.runs.count, verdict),
                    )
                )
        claims.append(_default_claim(panel, runs, looks))
        for name in looks:
            if (panel, name) in exceeded:
                whole, later = (bootstrap_mean(percent) for percent in runs.violated_percent(name))
                above = 100 * exceeded[panel, name][:, AT_THE_LIMIT].mean()
                text = f"{whole.text('.1f', ' %')} of intervals, after the search {later.text('.1f', ' %')}"
                text += f"; {above:.1f} % of requests above it"
                is_rrl = name in PAPERS_RRL
                verdict = runs.verdict_of_guarantee(name) if is_rrl else NO_CLAIM
                claims.append(
                    Claim(
                        f"over the limit, {panel}: {looks[name].label}",
                        GUARANTEE if is_rrl else "–",
                        text,
                        verdict,
                    )
                )
    return claims


def _default_claim(panel: str, runs: RunsWithLimits, looks: Mapping[str, Contender]) -> Claim:
    """Our default agent beside all others, over whole runs and after the search."""
    violated = {name: runs.violated_percent(name) for name in looks}
    what = f"intervals over the limit, {panel}: our default against each (after the search)"
    return Claim(what, "–", rules.default_beside_each(violated, looks), NO_CLAIM)


def _write_tables(
    out: Path, panels: Panels, exceeded: Mapping[tuple[str, str], np.ndarray]
) -> tuple[str, ...]:
    drawn: list[dict[str, object]] = []
    violations: list[dict[str, object]] = []
    for (panel, name), shares in exceeded.items():
        drawn += [
            {"panel": panel, "agent": name, "latency_by_limit": float(x), "share_above": float(m),
             "low": float(lo), "high": float(hi)}
            for x, m, lo, hi in zip(LATENCIES, *bootstrap_band(shares), strict=True)
        ]  # fmt: skip
        whole, later = (bootstrap_mean(percent) for percent in panels[panel].violated_percent(name))
        violations.append(
            {"panel": panel, "agent": name, "percent_of_intervals_over": whole.estimate, "low": whole.low,
             "high": whole.high, "percent_after_search": later.estimate,
             "share_of_requests_over": float(shares[:, AT_THE_LIMIT].mean()),
             "limits_ms": " ".join(f"{limit_ms:.0f}" for limit_ms in panels[panel].limits_ms)}
        )  # fmt: skip
    write_csv(out / f"{NAME}.csv", drawn)
    write_csv(out / f"{NAME}-violations.csv", violations)
    return f"{NAME}.csv", f"{NAME}-violations.csv"
