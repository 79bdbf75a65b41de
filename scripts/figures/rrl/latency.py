"""Latency over time, a column for each arrival process, a row for each workload (RRL, Figs. 12 and 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from baselines.comparison.summary import WARM_UP
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_mean, bootstrap_median
from scripts.figures.result import NO_CLAIM, Claim, FigureResult, write_csv
from scripts.figures.rrl import courses, rules
from scripts.figures.rrl.contenders import FROM_DEFAULT, PAPERS_RRL, PEERS, Contender, in_the_pictures
from scripts.figures.rrl.long_runs import WIKI, PanelRuns

Panels = Mapping[tuple[str, str], PanelRuns]
"""By arrival process and workload."""

CLOSE = 2.0  # times the oracle's latency


@dataclass(frozen=True)
class Reduction:
    """A claim of the paper: how much lower RRL's mean latency is than a peer's."""

    workload: str
    process: str
    against: str
    paper_percent: float  # negative: lower


@dataclass(frozen=True)
class LatencyFigure:
    """A figure of latency over time."""

    name: str  # of its files
    title: str
    setting: str
    panels: Panels
    contenders: Mapping[str, Contender]
    reductions: Sequence[Reduction]

    def result(self, out: Path, seeds: int) -> FigureResult:
        """Writes the picture and the tables, and judges the claims."""
        self._draw(out / f"{self.name}.png", seeds)
        return FigureResult(
            title=self.title,
            setting=self.setting,
            seeds=seeds,
            claims=(*self.convergence_claims(), *self.reduction_claims(), *self.default_claims()),
            pictures=(f"{self.name}.png",),
            tables=self._write_tables(out),
        )

    def convergence_claims(self) -> list[Claim]:
        """Section 6.3's times, over the runs of all workloads under WiKi."""
        wiki = [runs for (process, _), runs in self.panels.items() if process == WIKI]
        if not wiki:
            return []
        ratios = {
            name: np.concatenate([runs.ratio(name) for runs in wiki])
            for name in in_the_pictures(self.contenders)
        }
        decisions = next(iter(ratios.values())).shape[1]
        own = {name: rules.settled_after(ratio) for name, ratio in ratios.items()}
        what, label = "decisions until it settles, WiKi", self._label
        claims = [
            Claim(
                f"{what}: {label(name)}",
                "below 200 of 2,000 min",
                rules.after_text(own[name], decisions),
                rules.verdict_of_soon(own[name], decisions),
            )
            for name in self._rrl
        ]
        if "deeprm" in own:
            text = rules.after_text(own["deeprm"], decisions)
            verdict = rules.verdict_of_late(own["deeprm"], decisions)
            claims.append(Claim(f"{what}: DeepRM", "about 1,700 min", text, verdict))
        if "capes" in own:
            text = rules.after_text(own["capes"], decisions)
            verdict = rules.verdict_of_never(own["capes"])
            claims.append(Claim(f"{what}: CAPES", "not after 2,000 min", text, verdict))
        if set(PEERS) <= set(own):
            faster = min((own[peer] for peer in PEERS), key=lambda each: bootstrap_median(each).estimate)
            for name in self._rrl:
                times, verdict = rules.times_faster(own[name], faster, decisions)
                sooner = f"times sooner than DeepRM and CAPES: {label(name)}"
                claims.append(Claim(sooner, "8", times, verdict))
        claims += [
            Claim(f"{what}: {label(name)}", "–", rules.after_text(reached, decisions), NO_CLAIM)
            for name, reached in own.items()
            if name not in (*PAPERS_RRL, *PEERS)
        ]
        return claims + [self._near_claim(name, ratio) for name, ratio in ratios.items()]

    def _near_claim(self, name: str, ratios: np.ndarray) -> Claim:
        near, close = rules.near_oracle_after(ratios), rules.near_oracle_after(ratios, CLOSE)
        decisions = ratios.shape[1]
        is_rrl = name in PAPERS_RRL
        return Claim(
            f"decisions until within 25 % of the oracle, WiKi: {self._label(name)}",
            "near-optimal in less than 200 min" if is_rrl else "–",
            f"{rules.after_text(near, decisions)}; within twice {rules.after_text(close, decisions)}",
            rules.verdict_of_soon(near, decisions) if is_rrl else NO_CLAIM,
        )

    def reduction_claims(self) -> list[Claim]:
        """The paper's reductions of mean latency, for each of its rows."""
        return [
            self._reduction_claim(reduction, name)
            for reduction in self.reductions
            if reduction.against in self.contenders and (reduction.process, reduction.workload) in self.panels
            for name in self._rrl
        ]

    def _reduction_claim(self, reduction: Reduction, name: str) -> Claim:
        runs = self.panels[reduction.process, reduction.workload]
        latency_ms, theirs_ms = runs.latency_ms(name), runs.latency_ms(reduction.against)
        change, later = rules.percent_changes(latency_ms, theirs_ms)
        whole_text, later_text = (rules.percent_text(each, runs.count) for each in (change, later))
        text = f"{whole_text}; second half {later_text}"
        verdict = rules.verdict_of_reduction(reduction.paper_percent, change)
        from_default = FROM_DEFAULT.get(reduction.against, "")
        if from_default in self.contenders:
            default_ms = runs.latency_ms(from_default)
            other = rules.percent_change(latency_ms.mean(axis=1), default_ms.mean(axis=1))
            text += f"; from its own start {rules.percent_text(other, runs.count)}"
            if runs.count >= rules.FEWEST_RUNS:
                text += f", {rules.verdict_of_reduction(reduction.paper_percent, other)}"
        where = f"{reduction.workload}, {reduction.process}"
        return Claim(
            f"mean latency, {where}: {self._label(name)} against {self._label(reduction.against)}",
            f"{reduction.paper_percent:+.1f} %",
            text,
            rules.judged(runs.count, verdict),
        )

    def default_claims(self) -> list[Claim]:
        """Our default agent beside all others, over whole runs and after decision 30."""
        if "guided" not in self.contenders:
            return []
        return [
            Claim(
                f"mean latency, {workload}, {process}: our default against each (after decision {WARM_UP})",
                "–",
                ", ".join(self._beside(runs, name) for name in self.contenders if name != "guided")
                + f", oracle {_change(runs.latency_ms('guided'), runs.oracle_ms)}",
                NO_CLAIM,
            )
            for (process, workload), runs in self.panels.items()
        ]

    def _beside(self, runs: PanelRuns, name: str) -> str:
        return f"{self._label(name)} {_change(runs.latency_ms('guided'), runs.latency_ms(name))}"

    def _label(self, name: str) -> str:
        return self.contenders[name].label

    @property
    def _rrl(self) -> list[str]:
        return [name for name in PAPERS_RRL if name in self.contenders]

    def _draw(self, path: Path, seeds: int) -> None:
        processes = list(dict.fromkeys(process for process, _ in self.panels))
        workloads = list(dict.fromkeys(workload for _, workload in self.panels))
        figure, axes = drawing.new_figure(
            1 + len(workloads),
            len(processes),
            width=6.4,
            height=3.1,
            title=self.title,
            subtitle=f"expected latency, mean of {courses.WINDOW} decisions and of {seeds} "
            f"run{'s' * (seeds > 1)}; band: 95 % bootstrap interval",
            sharex=True,
            sharey="row",
            height_ratios=[0.5] + [1.0] * len(workloads),
        )
        for column, process in enumerate(processes):
            rates_per_s = self.panels[process, workloads[0]].rates_per_s
            courses.draw_load(axes[0, column], rates_per_s, f"{process}: the load")
            for row, workload in enumerate(workloads, start=1):
                ax, runs = axes[row, column], self.panels[process, workload]
                courses.draw_oracle(ax, runs.oracle_ms)
                latency_ms = {name: runs.latency_ms(name) for name in in_the_pictures(self.contenders)}
                courses.draw_over_time(ax, latency_ms, self.contenders, "expected latency (ms)")
                ax.set_title(workload, color=figure_style.INK, fontsize=10, loc="left")
            axes[-1, column].set_xlabel("decision", color=figure_style.INK, fontsize=9)
        drawing.save(figure, path)

    def _write_tables(self, folder: Path) -> tuple[str, ...]:
        """Writes `NAME.csv`, which is drawn, and `NAME-summary.csv`, with a row for each agent and panel."""
        drawn: list[dict[str, object]] = []
        summary: list[dict[str, object]] = []
        for (process, workload), runs in self.panels.items():
            for name in self.contenders:
                where: dict[str, object] = {"arrivals": process, "workload": workload, "agent": name}
                drawn += [where | row for row in courses.rows(runs.latency_ms(name))]
                summary.append(where | _summary(runs, name))
        write_csv(folder / f"{self.name}.csv", drawn)
        write_csv(folder / f"{self.name}-summary.csv", summary)
        return f"{self.name}.csv", f"{self.name}-summary.csv"


def _summary(runs: PanelRuns, name: str) -> dict[str, object]:
    latency_ms, ratio = runs.latency_ms(name), runs.ratio(name)
    half = latency_ms.shape[1] // 2
    whole = bootstrap_mean(latency_ms.mean(axis=1))
    settled, near = rules.settled_after(ratio), rules.near_oracle_after(ratio)
    after = latency_ms[:, WARM_UP:].sum(axis=1) / runs.oracle_ms[:, WARM_UP:].sum(axis=1)
    return {
        "mean_latency_ms": whole.estimate,
        "low_ms": whole.low,
        "high_ms": whole.high,
        "second_half_ms": float(latency_ms[:, half:].mean()),
        "median_ratio_to_oracle_after_30": float(np.median(after)),
        "median_decisions_until_settled": bootstrap_median(settled).estimate,
        "runs_settled": int(np.isfinite(settled).sum()),
        "median_decisions_until_within_25_percent": bootstrap_median(near).estimate,
        "runs_within_25_percent": int(np.isfinite(near).sum()),
        "runs": runs.count,
    }


def _change(ours_ms: np.ndarray, theirs_ms: np.ndarray) -> str:
    """E.g. `-96 % (-95 %)`: of the mean latency over whole runs, and after the warm-up."""
    ours, theirs = ((each, each[:, WARM_UP:]) for each in (ours_ms, theirs_ms))
    return rules.two_changes_text(ours, theirs)
