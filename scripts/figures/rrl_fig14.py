"""RRL, Fig. 14: how latency is distributed under a strict SLO, and how often the SLO is broken (section 6.5).

The objective is `strict-slo` for every agent, and the load is WiKi-like. The limit is that of `rrl_slo`. A
violation is an interval whose measured p95 is above the limit. The curves show the share of requests that
took longer than x times the limit, over all intervals, those of the search included. Where the p95 is kept, a
curve passes below 5 % at 1. A run has `decisions` intervals for the paper's some 2,000 minutes. Of 100
intervals each stands for 20 minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import BootstrapInterval, bootstrap_band, bootstrap_mean
from scripts.figures.result import NO_CLAIM, Claim, FigureResult, write_csv
from scripts.figures.rrl_agents import (
    LOOKS,
    percent_change,
    verdict_of_reduction,
)
from scripts.figures.rrl_slo import (
    STRICT,
    LimitedRuns,
    LimitsSetting,
    benches,
    limited_runs,
    of_all,
    request_latencies_by_limit,
)

NAME = "rrl-fig14"
CPU, GPU = "CPU", "GPU stand-in"
LATENCIES = np.geomspace(0.1, 100.0, 121)  # where the curves are drawn, divided by the limit
LEAST = 1e-4  # the lowest share shown
AT_THE_LIMIT = int(np.argmin(np.abs(LATENCIES - 1.0)))

PAPER_PERCENT = {"capes": -49.9, "deeprm": -43.4}  # "up to", of CPU and GPU alike

Panels = Mapping[str, Sequence[LimitedRuns]]


def run(out: Path, seeds: int, setting: LimitsSetting | None = None) -> FigureResult:
    """Writes rrl-fig14.png and its CSVs."""
    setting = setting or LimitsSetting()
    panels = _panels(seeds, setting)
    exceeded = {
        (panel, agent): _exceeded(runs, agent) for panel, runs in panels.items() for agent in setting.agents
    }
    figure, axes = drawing.new_figure(
        1,
        len(panels),
        width=5.6,
        height=4.2,
        title="RRL, Fig. 14: latency of all requests under a strict SLO",
        subtitle=f"share of requests above x; limit: p95 at most {STRICT:g} times the lowest possible; "
        f"{seeds} runs, band: 95 % bootstrap interval",
        sharey=True,
    )
    for ax, panel in zip(axes[0], panels, strict=True):
        _draw(ax, {agent: exceeded[panel, agent] for agent in setting.agents}, panel)
    drawing.save(figure, out / f"{NAME}.png")
    return FigureResult(
        title="RRL, Fig. 14: latency CCDF under a strict SLO",
        setting=f"Simulated machines, two runs each, WiKi-like load, {setting.decisions} decisions. Limit: "
        f"p95 at most {STRICT:g} times the lowest that any configuration has at the mean load. A violation "
        "is an interval over it.",
        seeds=seeds,
        claims=tuple(_claims(panels, exceeded, setting.agents)),
        pictures=(f"{NAME}.png",),
        tables=_write_tables(out, panels, exceeded, setting.agents),
    )


def _panels(seeds: int, setting: LimitsSetting) -> dict[str, list[LimitedRuns]]:
    with benches(seeds, setting, workload="wiki", objective="strict-slo") as (cpu, gpu):
        return {CPU: limited_runs(cpu, STRICT), GPU: limited_runs(gpu, STRICT)}


def _exceeded(runs: Sequence[LimitedRuns], agent: str) -> np.ndarray:
    """(runs, latencies): the share of a run's requests that took longer than each of `LATENCIES`."""
    samples = [latencies for r in runs for latencies in request_latencies_by_limit(r, agent)]
    return np.stack([1 - np.searchsorted(np.sort(s), LATENCIES, side="right") / len(s) for s in samples])


def _draw(ax: Axes, exceeded: Mapping[str, np.ndarray], panel: str) -> None:
    figure_style.log_axis(ax, "x", subs=(1.0, 3.0))
    figure_style.log_axis(ax, "y", subs=(1.0,))
    for agent, shares in exceeded.items():
        look = LOOKS[agent]
        mean, low, high = bootstrap_band(shares)
        mean, low = np.where(mean > 0, mean, np.nan), np.maximum(low, LEAST / 10)
        if look.linestyle == "-":
            drawing.band(ax, LATENCIES, mean, low, high, look.colour, look.label)
        else:
            ax.plot(
                LATENCIES, mean, color=look.colour, linewidth=1.4, linestyle=look.linestyle, label=look.label
            )
    ax.axvline(1.0, color=figure_style.INK, linewidth=1.0)
    ax.axhline(0.05, color=figure_style.INK, linewidth=0.8, linestyle=(0, (1, 2)))
    ax.annotate(
        "limit",
        (1.0, 1.3 * LEAST),
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


def _violations(runs: Sequence[LimitedRuns], agent: str) -> np.ndarray:
    """(runs,) the share of intervals over the limit."""
    shares: np.ndarray = of_all(runs, agent, "slo_violated").mean(axis=1)
    return shares


def _claims(
    panels: Panels, exceeded: Mapping[tuple[str, str], np.ndarray], agents: Sequence[str]
) -> list[Claim]:
    claims = []
    for panel, runs in panels.items():
        for against, paper_percent in PAPER_PERCENT.items():
            if {"rrl-paper", against} <= set(agents):
                percent = percent_change(_violations(runs, "rrl-paper"), _violations(runs, against))
                claims.append(
                    Claim(
                        f"intervals over the limit, {panel}: RRL against {LOOKS[against].label}",
                        f"up to {paper_percent:+.1f} %",
                        percent.text("+.0f", " %"),
                        verdict_of_reduction(paper_percent, percent),
                    )
                )
        for agent in agents:
            share = BootstrapInterval(*(100 * value for value in bootstrap_mean(_violations(runs, agent))))
            above = 100 * exceeded[panel, agent][:, AT_THE_LIMIT].mean()
            text = f"{share.text('.1f', ' %')} of intervals; {above:.1f} % of requests above it"
            claims.append(Claim(f"over the limit, {panel}: {LOOKS[agent].label}", "–", text, NO_CLAIM))
    return claims


def _write_tables(
    out: Path, panels: Panels, exceeded: Mapping[tuple[str, str], np.ndarray], agents: Sequence[str]
) -> tuple[str, ...]:
    drawn: list[dict[str, object]] = []
    violations: list[dict[str, object]] = []
    for (panel, agent), shares in exceeded.items():
        drawn += [
            {"panel": panel, "agent": agent, "latency_by_limit": float(x), "share_above": float(m),
             "low": float(lo), "high": float(hi)}
            for x, m, lo, hi in zip(LATENCIES, *bootstrap_band(shares), strict=True)
        ]  # fmt: skip
        share = bootstrap_mean(_violations(panels[panel], agent))
        violations.append(
            {"panel": panel, "agent": agent, "share_of_intervals_over": share.estimate, "low": share.low,
             "high": share.high, "share_of_requests_over": float(shares[:, AT_THE_LIMIT].mean()),
             "limits_ms": " ".join(f"{r.limit_ms:.0f}" for r in panels[panel])}
        )  # fmt: skip
    write_csv(out / f"{NAME}.csv", drawn)
    write_csv(out / f"{NAME}-violations.csv", violations)
    return f"{NAME}.csv", f"{NAME}-violations.csv"
