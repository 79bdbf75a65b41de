"""Latency over time, a column for each arrival process, a row for each workload (RRL, Figs. 12 and 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from baselines.comparison.summary import WARM_UP
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import (
    BootstrapInterval,
    bootstrap_band,
    bootstrap_mean,
    bootstrap_median,
)
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES, Claim, write_csv
from scripts.figures.rrl_agents import (
    LOOKS,
    converged_at,
    curves,
    draw_load,
    draw_over_time,
    percent_change,
    ratio_to_oracle,
    smoothed,
    verdict_of_reduction,
)

WINDOW = 10
"""The decisions whose mean is a point of the pictures."""

Panels = Mapping[tuple[str, str], np.ndarray]
"""(arrival process, workload) -> the table of decisions that `run_comparison` gives."""


@dataclass(frozen=True)
class Reduction:
    """A claim of the paper: how much lower RRL's mean latency is than another agent's."""

    workload: str
    process: str
    against: str
    paper_percent: float  # negative: lower


def draw(path: Path, panels: Panels, agents: Sequence[str], title: str, subtitle: str) -> None:
    """Writes the PNG, with the load on top and the latency of every workload below it."""
    processes = list(dict.fromkeys(process for process, _ in panels))
    workloads = list(dict.fromkeys(workload for _, workload in panels))
    figure, axes = drawing.new_figure(
        1 + len(workloads),
        len(processes),
        width=6.2,
        height=2.9,
        title=title,
        subtitle=subtitle,
        sharex=True,
        sharey="row",
        height_ratios=[0.5] + [1.0] * len(workloads),
    )
    for column, process in enumerate(processes):
        rates_per_s = curves(panels[process, workloads[0]], agents[0], "arrival_rate_per_s")
        draw_load(axes[0, column], rates_per_s, f"{process}: the load")
        for row, workload in enumerate(workloads, start=1):
            latency_ms = {agent: curves(panels[process, workload], agent, "expected_ms") for agent in agents}
            draw_over_time(axes[row, column], latency_ms, "expected latency (ms)", WINDOW)
            axes[row, column].set_title(workload, color=figure_style.INK, fontsize=10, loc="left")
        axes[-1, column].set_xlabel("decision", color=figure_style.INK, fontsize=9)
    drawing.save(figure, path)


def write_tables(folder: Path, name: str, panels: Panels, agents: Sequence[str]) -> tuple[str, ...]:
    """Writes `NAME.csv`, which is drawn, and `NAME-summary.csv`, with a row for each agent and panel."""
    drawn: list[dict[str, object]] = []
    summary: list[dict[str, object]] = []
    for (process, workload), decisions in panels.items():
        oracle_ms = curves(decisions, agents[0], "oracle_ms")
        for agent in agents:
            latency_ms = curves(decisions, agent, "expected_ms")
            where = {"arrivals": process, "workload": workload, "agent": agent}
            band = bootstrap_band(smoothed(latency_ms, WINDOW))
            drawn += [
                where | {"decision": t + 1, "mean_ms": float(m), "low_ms": float(lo), "high_ms": float(hi)}
                for t, (m, lo, hi) in enumerate(zip(*band, strict=True))
            ]
            whole = bootstrap_mean(latency_ms.mean(axis=1))
            ratio = latency_ms[:, WARM_UP:].sum(axis=1) / oracle_ms[:, WARM_UP:].sum(axis=1)
            reached = converged_at(latency_ms / oracle_ms)
            summary.append(
                where
                | {
                    "mean_latency_ms": whole.estimate,
                    "low_ms": whole.low,
                    "high_ms": whole.high,
                    "median_ratio_to_oracle_after_30": float(np.median(ratio)),
                    "worst_ratio_to_oracle_after_30": float(ratio.max()),
                    "median_decisions_until_converged": bootstrap_median(reached).estimate,
                    "runs_converged": int(np.isfinite(reached).sum()),
                    "runs": len(reached),
                }
            )
    write_csv(folder / f"{name}.csv", drawn)
    write_csv(folder / f"{name}-summary.csv", summary)
    return f"{name}.csv", f"{name}-summary.csv"


def reduction_claims(panels: Panels, reductions: Sequence[Reduction]) -> list[Claim]:
    """The paper's reductions of mean latency over the whole run, beside those of its RRL here."""
    claims = []
    for r in reductions:
        change = _change(panels[r.process, r.workload], "rrl-paper", r.against)
        what = f"mean latency, {r.workload}, {r.process}: RRL against {LOOKS[r.against].label}"
        verdict = verdict_of_reduction(r.paper_percent, change)
        claims.append(Claim(what, f"{r.paper_percent:+.1f} %", change.text("+.0f", " %"), verdict))
    return claims


def default_claims(panels: Panels, agents: Sequence[str]) -> list[Claim]:
    """Our default agent beside all others, for which the paper has no number."""
    others = [agent for agent in agents if agent != "guided"]
    if "guided" not in agents:
        return []
    return [
        Claim(
            what=f"mean latency, {workload}, {process}: our default against "
            + ", ".join(LOOKS[agent].label for agent in others),
            paper="–",
            ours=", ".join(f"{_change(decisions, 'guided', agent).estimate:+.0f} %" for agent in others),
            reproduces=NO_CLAIM,
        )
        for (process, workload), decisions in panels.items()
    ]


def _change(decisions: np.ndarray, ours: str, theirs: str) -> BootstrapInterval:
    """The change of the mean latency over whole runs, in percent."""
    return percent_change(*(curves(decisions, agent, "expected_ms").mean(axis=1) for agent in (ours, theirs)))


def convergence_claims(decisions: np.ndarray, agents: Sequence[str]) -> list[Claim]:
    """Section 6.3's convergence times. The run here stands for the paper's some 2,000 minutes."""
    length = int(decisions["decision"].max()) + 1
    reached = {agent: converged_at(ratio_to_oracle(decisions, agent)) for agent in agents}
    medians = {agent: bootstrap_median(reached[agent]).estimate for agent in agents}
    text = {agent: _convergence_text(reached[agent], length) for agent in agents}
    what = "decisions until within 10 % of the oracle, and staying"
    claims = []
    if "rrl-paper" in agents:
        median = medians["rrl-paper"]
        verdict = REPRODUCES if median <= 0.1 * length else PARTLY if np.isfinite(median) else FAILS
        claims.append(Claim(f"{what}: RRL", "below 200 of some 2,000 min", text["rrl-paper"], verdict))
    if "deeprm" in agents:
        median = medians["deeprm"]
        verdict = REPRODUCES if 0.5 * length <= median < np.inf else FAILS
        claims.append(Claim(f"{what}: DeepRM", "about 1,700 min", text["deeprm"], verdict))
    if "capes" in agents:
        verdict = FAILS if np.isfinite(medians["capes"]) else REPRODUCES
        claims.append(Claim(f"{what}: CAPES", "not after 2,000 min", text["capes"], verdict))
    if {"rrl-paper", "capes", "deeprm"} <= set(agents):
        claims.append(_speed_claim(medians, length))
    claims += [
        Claim(f"{what}: {LOOKS[agent].label}", "–", text[agent], NO_CLAIM)
        for agent in agents
        if agent not in ("rrl-paper", "capes", "deeprm", "oracle")
    ]
    return claims


def _speed_claim(medians: Mapping[str, float], length: int) -> Claim:
    """How many times faster RRL converges than the faster of DeepRM and CAPES."""
    what = "how many times faster RRL converges than DeepRM and CAPES"
    ours, theirs = medians["rrl-paper"], min(medians["capes"], medians["deeprm"])
    if not np.isfinite(ours):
        return Claim(what, "over 8", "RRL does not converge in the median run", FAILS)
    factor = min(theirs, length) / max(ours, 1.0)
    bound = "" if np.isfinite(theirs) else "at least "
    return Claim(
        what, "over 8", f"{bound}{factor:.1f}", REPRODUCES if factor >= 8 else PARTLY if factor > 1 else FAILS
    )


def _convergence_text(reached: np.ndarray, length: int) -> str:
    """E.g. `23 [9, 61], 9 of 10 runs`."""
    count = f"{int(np.isfinite(reached).sum())} of {len(reached)} runs"
    median = bootstrap_median(reached)
    if not np.isfinite(median.estimate):
        return f"not within {length} ({count})"
    high = f"{median.high:.0f}" if np.isfinite(median.high) else f"over {length}"
    return f"{median.estimate:.0f} [{median.low:.0f}, {high}] ({count})"
