"""The report of `triton-head-to-head`: what each peer reached, how soon and at what harm, by its clients."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from rrl.knobs import in_words
from rrl.records import Record
from rrl.space import ConfigurationSpace
from rrl.views.figure_style import COLOURS, FAINT, INK, blank_figure, log_axis, plain
from scripts.figures.head_to_head import or_never
from scripts.serving.client_log import Requests
from scripts.serving.in_turns import InTurns, Turns, mean_ms, p95_ms
from scripts.serving.served_agents import AGAIN, DEFAULT, REACH, RULE, SWEEP, TunedRun, settled_after
from serving_adapter.load.report import LATE_CLIENT_MS

FIXED = "default"
LATE_RATIO = 3.0  # x the best's p95
LATE_RATIOS = (2.0, LATE_RATIO, 4.0)
FIGURE_STEP_S = 5.0


@dataclass(frozen=True)
class Trial:
    """One peer's turn; a fixed configuration has no run."""

    name: str
    run: TunedRun | None
    left: int
    requests: Requests  # all that its clients sent
    lag_p99_ms: float = 0.0  # how late they sent them


@dataclass(frozen=True)
class WorkloadCase:
    """One model, arrivals and seed."""

    model: str
    arrivals: str
    seed: int
    rate_per_s: float
    space: ConfigurationSpace
    start: int
    period_s: float
    trials: Mapping[str, Trial]
    finals: Turns

    @property
    def workload(self) -> str:
        return f"{self.model}, {self.arrivals}"

    @property
    def name(self) -> str:
        return f"{self.workload}, seed {self.seed}"

    @cached_property
    def last(self) -> InTurns:
        """What the last rounds say; their loads differ unless arrivals are Poisson's."""
        return InTurns(self.finals, median if self.arrivals == "poisson" else geometric_mean)

    def as_one(self, number: int) -> int:
        """The one that stands for all that are the same in effect: a batch of one is full with its first
        request, so that no delay passes."""
        configuration = self.space.configuration(number)
        if configuration.get("max_batch_size") == 1 and "max_queue_delay_us" in configuration:
            configuration["max_queue_delay_us"] = self.space.configuration(0)["max_queue_delay_us"]
        return self.space.number(configuration)

    def _figures(self, number: int) -> dict[str, float]:
        mean, p95 = (self.last.of_ms(number, figure) for figure in (mean_ms, p95_ms))
        return {"mean_ms": mean, "p95_ms": p95, "requests": sum(map(len, self.finals[number]))}

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "arrivals": self.arrivals,
            "seed": self.seed,
            "rate_per_s": self.rate_per_s,
            "period_s": self.period_s,
            "best_mean_ms": self.last.best_ms(),
            "best_p95_ms": self.last.best_ms(p95_ms),
            "space": self.space.to_json(),
            "finals": [
                {"configuration": self.space.configuration(number)} | self._figures(number)
                for number in self.finals
            ],
            "peers": {name: asdict(result) for name, result in results(self).items()},
        }


@dataclass(frozen=True)
class PeerResult:
    """One peer in one case."""

    configuration: dict[str, int]  # what it leaves
    mean_ms: float  # measured in turns with the others': the middle of the rounds
    p95_ms: float
    mean_ratio: float  # over the best's
    p95_ratio: float
    ratio_error: float  # of mean_ratio: standard error over the rounds
    p95_error: float  # of p95_ratio
    measurements: int
    took_s: float  # until the last of them; beyond the tuning period, the rest is not among its requests
    settled: int | None  # measurements until it was near for good; None: not within its own
    knew: int | None  # measurements until what it would have left was near for good
    changes: int  # of configuration, while tuning
    requests: int  # of the tuning period
    latency_s: float  # summed over them, a failed one as the longest wait for an answer
    over_limit: int
    over_limits: tuple[int, ...]  # the same by each of `LATE_RATIOS`
    validation_latency_s: float  # of both, the part of the validation: the winner in turns with the start
    validation_over_limit: int
    failures: int
    aborted: int  # intervals, by the guard
    rollbacks: int
    lag_p99_ms: float  # of the clients, which the latencies include


def measurements(run: TunedRun) -> list[Record]:
    """A run's intervals in order."""
    return [r for r in run.records if r.counted]


def client_ms(case: WorkloadCase) -> dict[int, float]:
    """Mean latency of all measured, `as_one`: by its ratio to the best in turns, or by its intervals."""
    seen: dict[int, list[Requests]] = {}
    for trial in case.trials.values():
        for record in trial.run.records if trial.run else ():
            if record.learned and not record.measurement.aborted:
                seen.setdefault(case.as_one(record.number), []).append(interval(trial.requests, record))
    return case.last.beside_ms(seen)


def validation(records: Sequence[Record], requests: Requests) -> Requests:
    """The requests sent while the winner was measured again in turns with the start, changes included."""
    first = next((k for k, record in enumerate(records) if record.kind == "validation"), None)
    if not first:
        return Requests.joined([])
    return requests.between(records[first - 1].wall_time_s, records[-1].wall_time_s)


def interval(requests: Requests, record: Record) -> Requests:
    """The requests meant to be sent in the measured part of an interval."""
    end_at = record.wall_time_s
    return requests.between(end_at - record.measurement.duration_s, end_at)


def results(case: WorkloadCase) -> dict[str, PeerResult]:
    last = case.last
    near_as_one = {number for number, ms in client_ms(case).items() if ms <= REACH * last.best_ms()}
    near = {number for number in range(len(case.space)) if case.as_one(number) in near_as_one}
    return {name: _result(case, trial, last, near) for name, trial in case.trials.items()}


def _result(case: WorkloadCase, trial: Trial, last: InTurns, near: set[int]) -> PeerResult:
    left = case.as_one(trial.left)
    over_best, p95_over_best = last.ratio(left), last.ratio(left, p95_ms)
    limit_ms = LATE_RATIO * last.best_ms(p95_ms)
    tuning = trial.requests.first(case.period_s)
    records = trial.run.records if trial.run else []
    validated = validation(records, tuning)
    return PeerResult(
        configuration=case.space.configuration(trial.left),
        mean_ms=last.of_ms(left),
        p95_ms=last.of_ms(left, p95_ms),
        mean_ratio=over_best.middle,
        p95_ratio=p95_over_best.middle,
        ratio_error=over_best.error,
        p95_error=p95_over_best.error,
        measurements=len(measurements(trial.run)) if trial.run else 0,
        took_s=took_s(trial),
        settled=settled(trial, near),
        knew=knew(trial, near),
        changes=changes(records, case.start),
        requests=len(tuning),
        latency_s=tuning.sum_felt_s,
        over_limit=tuning.over(limit_ms),
        over_limits=tuple(tuning.over(factor * last.best_ms(p95_ms)) for factor in LATE_RATIOS),
        validation_latency_s=validated.sum_felt_s,
        validation_over_limit=validated.over(limit_ms),
        failures=tuning.failures,
        aborted=sum(bool(record.measurement.aborted) for record in records),
        rollbacks=sum(record.decision == "rollback" for record in records),
        lag_p99_ms=trial.lag_p99_ms,
    )


def settled(trial: Trial, near: set[int]) -> int | None:
    """Measurements until near configurations were in force for good; what a search leaves counts last.

    Those that measure the winner again beside the start do not tell what was in force for good.
    """
    if trial.run is None:
        return 0 if trial.left in near else None
    if trial.left not in near:
        return None
    all_of_them = measurements(trial.run)
    in_force = [record.number in near for record in all_of_them if record.kind != "validation"]
    return settled_after(in_force) or len(all_of_them)


def took_s(trial: Trial) -> float:
    """Seconds from the first request to the end of the last measurement."""
    if trial.run is None or not trial.run.records or not len(trial.requests):
        return 0.0
    return trial.run.records[-1].wall_time_s - float(trial.requests.at[0])


def knew(trial: Trial, near: set[int]) -> int | None:
    """Measurements until what it would have left was near, and stayed so."""
    if trial.run is None:
        return settled(trial, near)
    pairs = zip(trial.run.records, trial.run.choices, strict=True)
    known = [number in near for record, number in pairs if record.kind != "validation" and record.counted]
    return settled_after(known, share=1.0)


def changes(records: Sequence[Record], start: int) -> int:
    """How often another configuration came into force, from the first interval to the last."""
    numbers = [start, *(record.number for record in records if not record.not_taken)]
    return sum(a != b for a, b in pairwise(numbers))


def table(case: WorkloadCase) -> str:
    """The table of a case in Markdown."""
    found = results(case)
    best_ms, best_p95_ms = case.last.best_ms(), case.last.best_ms(p95_ms)
    head = (
        "peer", "mean / best", "p95 / best", "settled", "knew", "measured", "in s", "changes", "latency, s",
        f"over {LATE_RATIO * best_p95_ms:.0f} ms", "failed", "aborted", "rolled back", "left",
    )  # fmt: skip
    rows = [
        (
            name,
            f"{r.mean_ratio:.3f} ± {r.ratio_error:.3f}",
            f"{r.p95_ratio:.3f} ± {r.p95_error:.3f}",
            or_never(r.settled),
            or_never(r.knew),
            str(r.measurements),
            f"{r.took_s:.0f}",
            str(r.changes),
            _with_part(r.latency_s, r.validation_latency_s, ".1f"),
            _with_part(r.over_limit, r.validation_over_limit, "d"),
            str(r.failures),
            str(r.aborted),
            str(r.rollbacks),
            in_words(r.configuration),
        )
        for name, r in sorted(found.items(), key=lambda item: _place(item[0]))
    ]
    requests = max(r.requests for r in found.values())
    return "\n".join(
        (
            f"### {case.name}: {case.rate_per_s:g} requests/s, {len(case.space)} configurations",
            "",
            f"Best: mean {best_ms:.1f} ms, p95 {best_p95_ms:.1f} ms. "
            f"Tuning period: {case.period_s:.0f} s, {requests} requests. "
            "In brackets, the part of the validation.",
            "",
            *_aligned((head, tuple("---" for _ in head), *rows)),
            "",
            *filter(None, (_over_the_rule(found), _in_other_limits(found), _late_clients(found))),
        )
    )


def _over_the_rule(found: Mapping[str, PeerResult]) -> str:
    """Latency in the tuning period over the rule of thumb's; empty where that did not run."""
    if RULE not in found:
        return ""
    rule_s = found[RULE].latency_s
    ratios = (f"{name} {r.latency_s / rule_s:.2f}" for name, r in found.items() if name != RULE)
    return f"Latency over the rule of thumb's: {', '.join(ratios)}."


def _in_other_limits(found: Mapping[str, PeerResult]) -> str:
    counts = (f"{name} {', '.join(map(str, r.over_limits))}" for name, r in found.items())
    factors = ", ".join(f"{factor:g}" for factor in LATE_RATIOS)
    return f"Requests over {factors} times the best's p95: {'; '.join(counts)}."


def _late_clients(found: Mapping[str, PeerResult]) -> str:
    """Names the peers whose clients were too busy to send in time; empty if there are none."""
    late = [f"{name} {r.lag_p99_ms:.0f} ms" for name, r in found.items() if r.lag_p99_ms > LATE_CLIENT_MS]
    return f"Sent late (p99; the latencies include it): {', '.join(late)}." if late else ""


def _place(name: str) -> tuple[bool, bool, bool, bool]:
    return name == FIXED, name == SWEEP, name not in (DEFAULT, AGAIN), name == AGAIN


def _with_part(whole: float, part: float, form: str) -> str:
    return f"{whole:{form}} ({part:{form}})" if part else f"{whole:{form}}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"| {' | '.join(cells)} |"


def write_intervals(path: Path, cases: Sequence[WorkloadCase]) -> None:
    """One row an interval of any peer, with what its clients saw."""
    rows = [row for case in cases for row in _rows(case)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _rows(case: WorkloadCase) -> Iterator[dict[str, Any]]:
    configuration_ms = client_ms(case)
    for name, trial in case.trials.items():
        for k, record in enumerate(trial.run.records if trial.run else ()):
            seen = interval(trial.requests, record)
            yield {
                "model": case.model,
                "arrivals": case.arrivals,
                "seed": case.seed,
                "peer": name,
                "interval": k,
                "kind": record.kind,
                "decision": record.decision,
                **record.configuration,
                "apply_ms": f"{record.apply_ms:.1f}",
                "server_mean_ms": f"{record.measurement.latency.mean_ms:.6g}",
                "client_mean_ms": f"{seen.mean_ms:.6g}",
                "client_p95_ms": f"{seen.p95_ms:.6g}",
                "requests": len(seen),
                "failures": seen.failures,
                "aborted": int(bool(record.measurement.aborted)),
                "learned": int(record.learned),
                "configuration_ms": f"{configuration_ms.get(record.number, math.nan):.6g}",
            }


def draw(path: Path, cases: Sequence[WorkloadCase]) -> None:
    """Mean latency that the clients saw over the tuning period, a panel a case, a line a peer."""
    figure = blank_figure(5.2 * len(cases) + 1, 4.2)
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    for ax, case in zip(panels, cases, strict=True):
        plain(ax)
        for k, name in enumerate(sorted(case.trials, key=_place)):
            times_s, means_ms = _course(case.trials[name].requests.first(case.period_s))
            colour = FAINT if name in (FIXED, SWEEP) else COLOURS[k % len(COLOURS)]
            style, above = "--" if name == FIXED else "-", 2 + (name == DEFAULT)
            ax.plot(times_s, means_ms, style, color=colour, linewidth=1.4, label=name, zorder=above)
        ax.axhline(
            case.last.best_ms(), color=INK, linestyle=(0, (5, 4)), linewidth=1.1, label="best configuration"
        )
        log_axis(ax, "y")
        ax.set_title(f"{case.name}: {case.rate_per_s:g} requests/s", fontsize=10)
        ax.set_xlabel("seconds since the arrivals began")
    panels[0].set_ylabel(f"mean latency (ms), over {FIGURE_STEP_S:g} s")
    panels[-1].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def _course(requests: Requests) -> tuple[list[float], list[float]]:
    """(middle of each step in s, mean latency of the requests sent in it)."""
    times_s: list[float] = []
    means_ms: list[float] = []
    if not len(requests):
        return times_s, means_ms
    began_at = requests.at[0]
    for start_s in np.arange(0.0, requests.at[-1] - began_at, FIGURE_STEP_S).tolist():
        seen = requests.between(began_at + start_s, began_at + start_s + FIGURE_STEP_S)
        times_s.append(start_s + FIGURE_STEP_S / 2)
        means_ms.append(seen.mean_ms)
    return times_s, means_ms
