"""RRL, Fig. 15: keeping an SLO with the least resources under the Dynamic load (section 6.6).

The objective is `least-resources` for every agent, and the limit is the loose one of `slo`. It counts the
threads that a configuration reserves (instances x intra-op x inter-op). The paper reads off the utilisation
of CPU and GPU. Here that is simulated, and judged: thread-seconds in service by core-seconds, at most 1.
Beside it stand the threads in force, on the stand-in of a GPU the instances.

ResNet's requests are all of one size in the paper. So its panel is that of Inception in Fig. 12, under this
objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from envs.scenarios.families import RATE_PER_S
from envs.scenarios.scenario import Scenario
from rrl.knobs import THREAD_KNOBS
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import BootstrapInterval, bootstrap_mean
from scripts.figures.result import NO_CLAIM, Claim, FigureResult, write_csv
from scripts.figures.rrl import courses, fig12, fig13, rules
from scripts.figures.rrl.contenders import PAPERS_RRL, Contender, contenders, in_the_pictures
from scripts.figures.rrl.long_runs import DYNAMIC, LongRunsSetting, Panel, run_panel
from scripts.figures.rrl.slo import LOOSE, RunsWithLimits

NAME = "rrl-fig15"
DEEPSPEECH, RESNET, GPU = "DeepSpeech-like, CPU", "ResNet-like, CPU", "Inception-like, GPU stand-in"
CORES_OF_FILE = Scenario.cores  # by which the utilisation of a machine file is measured

PAPER_PERCENT = {  # change of resources by RRL, section 6.6
    (DEEPSPEECH, "capes"): -13.4,
    (DEEPSPEECH, "deeprm"): -8.5,
    (RESNET, "capes"): -52.9,
    (RESNET, "deeprm"): -46.8,
    (GPU, "capes"): -10.6,
    (GPU, "deeprm"): -12.9,
}
PAPER_SHARE = {RESNET: ("a fourth", 0.25), GPU: ("half", 0.5)}  # of the others' resources

Panels = Mapping[str, RunsWithLimits]


class ResourcesUsed(NamedTuple):
    """What an agent's configurations took, each (runs, decisions)."""

    utilisation_percent: np.ndarray
    threads: np.ndarray


def run(out: Path, seeds: int, setting: LongRunsSetting | None = None) -> FigureResult:
    """Writes rrl-fig15.png and its CSVs."""
    setting = setting or LongRunsSetting()
    looks = contenders(RATE_PER_S)
    alike, two_sizes = (
        fig12.cpu_panel(DYNAMIC, workload, seeds, setting, "slo-cpu")
        for workload in (fig12.INCEPTION, fig12.DEEPSPEECH)
    )
    panels = {
        DEEPSPEECH: _with_limits(two_sizes, setting),
        RESNET: _with_limits(alike, setting),
        GPU: _with_limits(fig13.gpu_panel(DYNAMIC, seeds, setting, "slo-gpu"), setting),
    }
    _draw(out / f"{NAME}.png", panels, looks, seeds)
    return FigureResult(
        title="RRL, Fig. 15: an SLO with the least resources",
        setting=f"Simulated machines, one for each run, Dynamic load, {setting.decisions} decisions. Limit: "
        f"p95 at most {LOOSE:.2g} times the lowest that any configuration has at the mean load. Resources: "
        "simulated utilisation, and threads in force (stand-in of a GPU: instances), means over the run.",
        seeds=seeds,
        claims=tuple(_claims(panels, looks)),
        pictures=(f"{NAME}.png",),
        tables=_write_tables(out, panels, looks),
    )


def _with_limits(panel: Panel, setting: LongRunsSetting) -> RunsWithLimits:
    limits_ms = panel.limits_ms(LOOSE)
    return RunsWithLimits(run_panel(panel, contenders(panel.rate_per_s), setting, limits_ms), limits_ms)


def resources(panel: str, limited: RunsWithLimits, name: str) -> ResourcesUsed:
    """What a contender's configurations took."""
    runs = limited.runs
    utilisation = runs.of(name, "cpu_utilisation")
    if panel == GPU:
        utilisation = np.minimum(1.0, utilisation * CORES_OF_FILE / fig13.CORES)
    counted = [knob for knob in THREAD_KNOBS if knob in runs.knobs]
    return ResourcesUsed(100 * utilisation, np.prod([runs.of(name, knob) for knob in counted], axis=0))


def _draw(path: Path, panels: Panels, looks: Mapping[str, Contender], seeds: int) -> None:
    figure, axes = drawing.new_figure(
        4,
        len(panels),
        width=5.8,
        height=2.6,
        title="RRL, Fig. 15: an SLO with the least resources, Dynamic load",
        subtitle=f"mean of the last {courses.WINDOW} decisions over {seeds} runs; limit: p95 at most "
        f"{LOOSE:.2g} times the lowest possible; band: 95 % bootstrap interval",
        sharex=True,
        height_ratios=[0.5, 1.0, 1.0, 1.0],
    )
    names = in_the_pictures(looks)
    for column, (panel, limited) in zip(axes.T, panels.items(), strict=True):
        courses.draw_load(column[0], limited.runs.rates_per_s, panel)
        p95 = {name: limited.by_limit(name, "expected_p95_ms") for name in names}
        used = {name: resources(panel, limited, name) for name in names}
        courses.draw_over_time(column[1], p95, looks, "p95 by the limit")
        column[1].axhline(1.0, color=figure_style.INK, linewidth=1.0)
        utilisation = {name: each.utilisation_percent for name, each in used.items()}
        courses.draw_over_time(column[2], utilisation, looks, "utilisation (%)")
        unit = "instances" if panel == GPU else "threads"
        threads = {name: each.threads for name, each in used.items()}
        courses.draw_over_time(column[3], threads, looks, f"{unit} in force")
        column[3].set_xlabel("decision", color=figure_style.INK, fontsize=9)
    drawing.save(figure, path)


def _claims(panels: Panels, looks: Mapping[str, Contender]) -> list[Claim]:
    claims = []
    for (panel, against), paper_percent in PAPER_PERCENT.items():
        theirs = resources(panel, panels[panel], against)
        for name in PAPERS_RRL:
            utilisation, threads = (
                rules.percent_change(ours.mean(axis=1), other.mean(axis=1))
                for ours, other in zip(resources(panel, panels[panel], name), theirs, strict=True)
            )
            claims.append(
                Claim(
                    f"utilisation, {panel}: {looks[name].label} against {looks[against].label}",
                    f"{paper_percent:+.1f} %",
                    f"{rules.percent_text(utilisation, panels[panel].runs.count)}; threads "
                    f"{rules.percent_text(threads, panels[panel].runs.count)}",
                    rules.judged(
                        panels[panel].runs.count, rules.verdict_of_reduction(paper_percent, utilisation)
                    ),
                )
            )
    claims += [
        _share_claim(panel, panels[panel], name, against, looks)
        for panel in PAPER_SHARE
        for against in ("capes", "deeprm")
        for name in PAPERS_RRL
    ]
    claims += [_default_claim(panel, limited, looks) for panel, limited in panels.items()]
    return claims + [
        _use_claim(panel, limited, name, looks[name].label)
        for panel, limited in panels.items()
        for name in looks
    ]


def _share_claim(
    panel: str, limited: RunsWithLimits, name: str, against: str, looks: Mapping[str, Contender]
) -> Claim:
    """What RRL uses of the resources that another uses, judged as the reduction that it is."""
    words, paper_share = PAPER_SHARE[panel]
    used, theirs = (
        resources(panel, limited, each).utilisation_percent.mean(axis=1) for each in (name, against)
    )
    change = rules.percent_change(used, theirs)
    share = BootstrapInterval(*(1 + percent / 100 for percent in change))
    verdict = rules.verdict_of_reduction(100 * (paper_share - 1), change)
    return Claim(
        f"share of the utilisation of {looks[against].label}, {panel}: {looks[name].label}",
        words,
        share.text(".2f") if limited.runs.count >= rules.FEWEST_RUNS else f"{share.estimate:.2f}",
        rules.judged(limited.runs.count, verdict),
    )


def _default_claim(panel: str, limited: RunsWithLimits, looks: Mapping[str, Contender]) -> Claim:
    """Our default agent beside all others."""
    used = {name: resources(panel, limited, name) for name in looks}
    what = f"utilisation, {panel}: our default against each (threads)"
    return Claim(what, "–", rules.default_beside_each(used, looks), NO_CLAIM)


def _use_claim(panel: str, limited: RunsWithLimits, name: str, label: str) -> Claim:
    used = resources(panel, limited, name)
    utilisation, threads = (bootstrap_mean(each.mean(axis=1)) for each in used)
    whole, later = (float(percent.mean()) for percent in limited.violated_percent(name))
    text = f"{utilisation.text('.1f', ' %')}, {threads.text('.1f')} in force"
    text += f"; {whole:.1f} % of intervals over the limit, after the search {later:.1f} %"
    is_rrl = name in PAPERS_RRL
    return Claim(
        f"use and SLO, {panel}: {label}",
        "always guarantees the SLO" if is_rrl else "–",
        text,
        limited.verdict_of_guarantee(name) if is_rrl else NO_CLAIM,
    )


def _write_tables(out: Path, panels: Panels, looks: Mapping[str, Contender]) -> tuple[str, ...]:
    drawn: list[dict[str, object]] = []
    summary: list[dict[str, object]] = []
    for panel, limited in panels.items():
        for name in looks:
            used = resources(panel, limited, name)
            values = {"p95_by_limit": limited.by_limit(name, "expected_p95_ms")} | used._asdict()
            for field, of_runs in values.items():
                where = {"panel": panel, "agent": name, "value": field}
                drawn += [where | row for row in courses.rows(of_runs)]
            whole, later = limited.violated_percent(name)
            summary.append(
                {"panel": panel, "agent": name,
                 "utilisation_percent": float(used.utilisation_percent.mean()),
                 "threads": float(used.threads.mean()),
                 "percent_of_intervals_over": float(whole.mean()),
                 "percent_after_search": float(later.mean()),
                 "limits_ms": " ".join(f"{limit_ms:.0f}" for limit_ms in limited.limits_ms)}
            )  # fmt: skip
    write_csv(out / f"{NAME}.csv", drawn)
    write_csv(out / f"{NAME}-summary.csv", summary)
    return f"{NAME}.csv", f"{NAME}-summary.csv"
