"""The report of `live-comparison`: what each agent reached and when, as table, CSV, JSON and picture."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.ticker import MaxNLocator

from rrl.guarding.guard import Guard
from rrl.knobs import in_words
from rrl.space import ConfigurationSpace
from rrl.views.exploration_cost import cost_of_exploration
from rrl.views.figure_style import COLOURS, FAINT, INK, blank_figure, log_axis, plain
from scripts.serving.served_agents import DEFAULT, REACH, SWEEP, TunedRun, settled_after


@dataclass(frozen=True)
class Result:
    """One agent, one seed."""

    configuration: dict[str, int]  # what it leaves in force
    latency_ms: float  # measured in turns with the others'
    ratio: float  # that latency divided by that of the sweep's best
    settled: int | None  # intervals until it ran near configurations; None: not within the run
    known: int | None  # intervals until the best it knew was near, and stayed so
    extra_request_s: float  # latency above the start's mean, summed over requests
    failures: int
    aborted: int
    intervals: int
    decision_ms: float  # median


@dataclass(frozen=True)
class Comparison:
    """What is known of one seed at its end."""

    rate_per_s: float
    space: ConfigurationSpace
    runs: dict[str, TunedRun]
    final_ms: dict[int, float]  # configurations measured in turns
    best_ms: float  # of the sweep's best

    def latency_ms(self) -> dict[int, float]:
        """Of every configuration seen: as measured in turns, else over all its intervals."""
        learned = [r for run in self.runs.values() for r in run.records if r.learned]
        total: dict[int, float] = {}
        requests: dict[int, int] = {}
        for r in learned:
            total[r.number] = total.get(r.number, 0.0) + r.cost * r.measurement.completions
            requests[r.number] = requests.get(r.number, 0) + r.measurement.completions
        return {n: total[n] / requests[n] for n in total if requests[n]} | self.final_ms


def results(compared: Comparison) -> dict[str, Result]:
    latency_ms = compared.latency_ms()
    near = {number for number, ms in latency_ms.items() if ms <= REACH * compared.best_ms}
    found = {}
    for name, of in compared.runs.items():
        guard = Guard(compared.space.number(of.header.start))
        known = []
        for record in of.records:
            guard.replay(record)
            if record.kind == "tune" and record.counted:
                known.append(guard.choice.best_to_keep in near)
        in_force = [record.number in near for record in of.tuning]
        cost = cost_of_exploration(of.records, guard.memory.start_latency_ms)
        decisions_ms = [r.decision_ms for r in of.tuning if math.isfinite(r.decision_ms)]
        found[name] = Result(
            configuration=compared.space.configuration(of.left),
            latency_ms=compared.final_ms[of.left],
            ratio=compared.final_ms[of.left] / compared.best_ms,
            settled=len(in_force) if name == SWEEP else settled_after(in_force),
            known=settled_after(known, share=1.0),
            extra_request_s=cost.extra_request_s,
            failures=cost.failures,
            aborted=cost.aborted,
            intervals=cost.intervals,
            decision_ms=median(decisions_ms) if decisions_ms else math.nan,
        )
    return found


def print_results(compared: Comparison, start_ms: float, failures: int | None) -> None:
    print(f"{'agent':12} {'left ms':>8} {'ratio':>6} {'settled':>8} {'known':>6} {'extra s':>8} "
          f"{'failed':>6} {'aborted':>7} {'ms/decision':>11}  configuration")  # fmt: skip
    for name, s in results(compared).items():
        print(f"{name:12} {s.latency_ms:8.1f} {s.ratio:6.3f} {s.settled or '-':>8} {s.known or '-':>6} "
              f"{s.extra_request_s:8.1f} {s.failures:6} {s.aborted:7} {s.decision_ms:11.1f}  "
              f"{in_words(s.configuration)}")  # fmt: skip
    failed = "not known" if failures is None else failures
    print(
        f"start {start_ms:.1f} ms, sweep's best {compared.best_ms:.1f} ms; requests failed: {failed}",
        flush=True,
    )


def write_intervals(path: Path, compared: Mapping[int, Comparison]) -> None:
    """One row an interval of any run."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = iter(_rows(compared))
        first = next(rows)
        writer = csv.DictWriter(file, list(first), lineterminator="\n")
        writer.writeheader()
        writer.writerow(first)
        writer.writerows(rows)


def _rows(compared: Mapping[int, Comparison]) -> Iterator[dict[str, Any]]:
    for seed, of in compared.items():
        latency_ms = of.latency_ms()
        for name, run_ in of.runs.items():
            for k, record in enumerate(run_.records):
                m = record.measurement
                yield {
                    "seed": seed,
                    "agent": name,
                    "interval": k,
                    "kind": record.kind,
                    "decision": record.decision,
                    **record.configuration,
                    "arrival_rate_per_s": f"{m.arrival_rate_per_s:.6g}",
                    "mean_ms": f"{m.latency.mean_ms:.6g}",
                    "p95_ms": f"{m.latency.p95_ms:.6g}",
                    "cost_ms": f"{record.cost:.6g}",
                    "completions": m.completions,
                    "failures": m.failures,
                    "aborted": int(bool(m.aborted)),
                    "learned": int(record.learned),
                    "decision_ms": f"{record.decision_ms:.4g}",
                    "configuration_ms": f"{latency_ms.get(record.number, math.nan):.6g}",
                    "sweeps_best_ms": f"{of.best_ms:.6g}",
                }


def write_summary(path: Path, compared: Mapping[int, Comparison]) -> None:
    values = {
        str(seed): {
            "rate_per_s": of.rate_per_s,
            "grid": of.space.to_json(),
            "sweeps_best_ms": of.best_ms,
            "measured_in_turns": [
                {"configuration": of.space.configuration(n), "mean_ms": ms} for n, ms in of.final_ms.items()
            ],
            "agents": {name: asdict(result) for name, result in results(of).items()},
        }
        for seed, of in compared.items()
    }
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def draw(path: Path, compared: Mapping[int, Comparison]) -> None:
    """Latency by interval, a panel a seed, a line an agent; dashed: the sweep's best."""
    figure = blank_figure(4.6 * len(compared) + 1, 4.2)
    panels = figure.subplots(1, len(compared), sharey=True, squeeze=False)[0]
    for ax, (seed, of) in zip(panels, compared.items(), strict=True):
        plain(ax)
        longest = max(len(r.tuning) for name, r in of.runs.items() if name != SWEEP)
        for k, name in enumerate(sorted(of.runs, key=lambda name: (name == SWEEP, name != DEFAULT, name))):
            costs_ms = [r.cost for r in of.runs[name].tuning[:longest]]
            colour = FAINT if name == SWEEP else COLOURS[k % len(COLOURS)]
            above = 1 if name == SWEEP else 2 + (name == DEFAULT)
            ax.plot(range(1, len(costs_ms) + 1), costs_ms, color=colour, linewidth=1.4, marker="o",
                    markersize=2.6, label=name, zorder=above)  # fmt: skip
        ax.axhline(of.best_ms, color=INK, linestyle=(0, (5, 4)), linewidth=1.1, label="sweep's best")
        log_axis(ax, "y")
        ax.set_title(f"seed {seed}: {of.rate_per_s:g} requests/s", fontsize=10)
        ax.set_xlabel("interval")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("mean latency (ms)")
    panels[-1].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path)
