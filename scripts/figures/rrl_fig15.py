"""RRL, Fig. 15: keeping an SLO with the least resources under the Dynamic load (section 6.6).

The objective is `least-resources` for every agent. The paper reads off the utilisation of CPU and GPU. Here
its place is taken by what the objective counts: the threads in force (instances x intra-op x inter-op), or
the instances on the stand-in of a GPU. The limit is the loose one of `rrl_slo`. A run has `decisions`
intervals for the paper's some 2,000 minutes. Of 100 intervals each stands for 20 minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rrl.knobs import THREAD_KNOBS
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_band, bootstrap_mean
from scripts.figures.result import FAILS, NO_CLAIM, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.rrl_agents import (
    AGENTS,
    LOOKS,
    draw_load,
    draw_over_time,
    percent_change,
    smoothed,
    verdict_of_reduction,
)
from scripts.figures.rrl_slo import LOOSE, LimitedRuns, LimitsSetting, benches, by_limit, limited_runs, of_all

NAME = "rrl-fig15"
WINDOW = 10  # decisions whose mean is a point of the pictures
DEEPSPEECH, RESNET, GPU = "DeepSpeech-like, CPU", "ResNet-like, CPU", "Inception-like, GPU stand-in"

PAPER_PERCENT = {  # change of resources by RRL, section 6.6
    (DEEPSPEECH, "capes"): -13.4,
    (DEEPSPEECH, "deeprm"): -8.5,
    (RESNET, "capes"): -52.9,
    (RESNET, "deeprm"): -46.8,
    (GPU, "capes"): -10.6,
    (GPU, "deeprm"): -12.9,
}

Panels = Mapping[str, Sequence[LimitedRuns]]


SETTING = LimitsSetting(agents=tuple(agent for agent in AGENTS if agent != "best-fixed"))


def run(out: Path, seeds: int, setting: LimitsSetting | None = None) -> FigureResult:
    """Writes rrl-fig15.png and its CSVs."""
    setting = setting or SETTING
    panels = _panels(seeds, setting)
    figure, axes = drawing.new_figure(
        3,
        len(panels),
        width=5.4,
        height=2.7,
        title="RRL, Fig. 15: an SLO with the least resources, Dynamic load",
        subtitle=f"mean of the last {WINDOW} decisions over {seeds} runs; limit: p95 at most {LOOSE:.2g} "
        "times the lowest possible; band: 95 % bootstrap interval",
        sharex=True,
        height_ratios=[0.5, 1.0, 1.0],
    )
    for column, (panel, runs) in zip(axes.T, panels.items(), strict=True):
        draw_load(column[0], of_all(runs, setting.agents[0], "arrival_rate_per_s"), panel)
        p95_by_limit = {agent: by_limit(runs, agent, "expected_p95_ms") for agent in setting.agents}
        draw_over_time(column[1], p95_by_limit, "p95 by the limit", WINDOW)
        column[1].axhline(1.0, color=figure_style.INK, linewidth=1.0)
        unit = "instances" if panel == GPU else "threads"
        used = {agent: threads(runs, agent) for agent in setting.agents}
        draw_over_time(column[2], used, f"{unit} in force", WINDOW)
        column[2].set_xlabel("decision", color=figure_style.INK, fontsize=9)
    drawing.save(figure, out / f"{NAME}.png")
    return FigureResult(
        title="RRL, Fig. 15: an SLO with the least resources",
        setting=f"Simulated machines, two runs each, Dynamic load, {setting.decisions} decisions. Limit: p95 "
        f"at most {LOOSE:.2g} times the lowest that any configuration has at the mean load. Resources: "
        "threads in force (stand-in of a GPU: instances), mean over the run.",
        seeds=seeds,
        claims=tuple(_claims(panels, setting.agents)),
        pictures=(f"{NAME}.png",),
        tables=_write_tables(out, panels, setting.agents),
    )


def _panels(seeds: int, setting: LimitsSetting) -> dict[str, list[LimitedRuns]]:
    with benches(seeds, setting, workload="dynamic", objective="least-resources") as (cpu, gpu):
        heterogeneous = cpu._replace(settings=replace(cpu.settings, truth="two-sizes"))
        return {
            DEEPSPEECH: limited_runs(heterogeneous, LOOSE),
            RESNET: limited_runs(cpu, LOOSE),
            GPU: limited_runs(gpu, LOOSE),
        }


def threads(runs: Sequence[LimitedRuns], agent: str) -> np.ndarray:
    """(runs, decisions): what `LeastResources` counts."""
    names = [name for name in THREAD_KNOBS if name in runs[0].space.names]
    product: np.ndarray = np.prod([of_all(runs, agent, name) for name in names], axis=0)
    return product


def _claims(panels: Panels, agents: Sequence[str]) -> list[Claim]:
    claims = []
    for (panel, against), paper_percent in PAPER_PERCENT.items():
        if {"rrl-paper", against} <= set(agents):
            runs = panels[panel]
            ours, theirs = (threads(runs, agent).mean(axis=1) for agent in ("rrl-paper", against))
            percent = percent_change(ours, theirs)
            verdict = verdict_of_reduction(paper_percent, percent)
            what = f"resources, {panel}: RRL against {LOOKS[against].label}"
            claims.append(Claim(what, f"{paper_percent:+.1f} %", percent.text("+.0f", " %"), verdict))
    for panel, runs in panels.items():
        for agent in agents:
            used = bootstrap_mean(threads(runs, agent).mean(axis=1))
            over = 100 * bootstrap_mean(of_all(runs, agent, "slo_violated").mean(axis=1)).estimate
            text = f"{used.text('.1f')} in force, {over:.1f} % of intervals over the limit"
            paper = "always guarantees the SLO" if agent == "rrl-paper" else "–"
            verdict = (REPRODUCES if over < 1 else FAILS) if agent == "rrl-paper" else NO_CLAIM
            claims.append(Claim(f"resources and SLO, {panel}: {LOOKS[agent].label}", paper, text, verdict))
    return claims


def _write_tables(out: Path, panels: Panels, agents: Sequence[str]) -> tuple[str, ...]:
    drawn: list[dict[str, object]] = []
    summary: list[dict[str, object]] = []
    for panel, runs in panels.items():
        for agent in agents:
            p95, used = by_limit(runs, agent, "expected_p95_ms"), threads(runs, agent)
            bands = (*bootstrap_band(smoothed(p95, WINDOW)), *bootstrap_band(smoothed(used, WINDOW)))
            names = ("p95_by_limit", "p95_low", "p95_high", "threads", "threads_low", "threads_high")
            drawn += [
                {"panel": panel, "agent": agent, "decision": t + 1}
                | dict(zip(names, map(float, row), strict=True))
                for t, row in enumerate(zip(*bands, strict=True))
            ]
            mean = bootstrap_mean(used.mean(axis=1))
            over = bootstrap_mean(of_all(runs, agent, "slo_violated").mean(axis=1))
            summary.append(
                {"panel": panel, "agent": agent, "threads": mean.estimate, "threads_low": mean.low,
                 "threads_high": mean.high, "share_of_intervals_over": over.estimate, "over_low": over.low,
                 "over_high": over.high, "limits_ms": " ".join(f"{r.limit_ms:.0f}" for r in runs)}
            )  # fmt: skip
    write_csv(out / f"{NAME}.csv", drawn)
    write_csv(out / f"{NAME}-summary.csv", summary)
    return f"{NAME}.csv", f"{NAME}-summary.csv"
