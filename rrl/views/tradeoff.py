"""What can be had of latency, answers and threads: the configurations that no other beats in all three.

| symbol | here | meaning |
|---|---|---|
| L | `latency_ms` | the p95 where the target tells it, else the mean |
| X | `answered_per_s` | answers per second |
| n | `threads` | threads put to work, a core each |
| c dominates c' | `dominates` | L and n are no higher, X is no lower, and one of them is better |
| Pareto's front | `Tradeoff.front` | what none dominates |

All are measured at about one load, that with the most intervals. Users send what they send: a configuration
that bears their load answers as many requests as any other that does. So there X is the load, or less where
requests were left waiting. A closed loop waits for its answers, and X is what they came at.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rrl.knobs import threads_of
from rrl.objective import latency_ms
from rrl.records import Header, Record
from rrl.views.by_load import groups_by_load
from serving_adapter.whole_files import written_whole

FILE_NAME = "pareto.csv"
BORNE_SHARE = 0.97  # of the requests that came: who answered so many bears the load


class TradeoffPoint(NamedTuple):
    """A configuration, and what was measured of it at the load compared at."""

    number: int
    configuration: dict[str, int]  # of the knobs tuned
    threads: int
    latency_ms: float
    answered_per_s: float
    intervals: int

    def dominates(self, other: TradeoffPoint) -> bool:
        """True where nothing speaks for the other one."""
        mine = (self.latency_ms, -self.answered_per_s, self.threads)
        theirs = (other.latency_ms, -other.answered_per_s, other.threads)
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


@dataclass(frozen=True)
class Tradeoff:
    """The configurations measured at one load."""

    points: tuple[TradeoffPoint, ...]  # fewest threads first, then lowest latency
    statistic: str  # of the latency: p95 or mean
    rates_per_s: tuple[float, float]  # lowest and highest that came

    @classmethod
    def of(cls, header: Header, records: Sequence[Record]) -> Tradeoff:
        """What a run's journal tells; without points where it tells nothing."""
        closed = header.concurrency is not None
        group = next(iter(groups_by_load(records, closed)), [])
        group = [r for r in group if r.measurement.completions]
        statistic = "p95" if all(math.isfinite(r.measurement.latency.p95_ms) for r in group) else "mean"
        rates = [r.measurement.arrival_rate_per_s for r in group] or [math.nan]
        load_per_s = math.nan if closed else sum(rates) / len(rates)
        of_number: dict[int, list[Record]] = {}
        for record in group:
            of_number.setdefault(record.number, []).append(record)
        points = [_measured(header, own, f"{statistic}_ms", load_per_s) for own in of_number.values()]
        points.sort(key=lambda point: (point.threads, point.latency_ms))
        return cls(tuple(points), statistic, (min(rates), max(rates)))

    @cached_property
    def front(self) -> tuple[TradeoffPoint, ...]:
        """Those that no other one dominates, fewest threads first."""
        return tuple(p for p in self.points if not any(other.dominates(p) for other in self.points))

    @property
    def answers_differ(self) -> bool:
        """False where all answer as many requests, so that only latency and threads are to be chosen from."""
        return len({point.answered_per_s for point in self.points}) > 1


def _measured(header: Header, records: Sequence[Record], statistic: str, load_per_s: float) -> TradeoffPoint:
    """`load_per_s` NaN: that of a closed loop, whose answers count as they came."""
    measured = [record.measurement for record in records]
    completions = sum(m.completions for m in measured)
    total_ms = sum(m.completions * latency_ms(m, statistic) for m in measured)
    answered_per_s = completions / max(sum(m.duration_s for m in measured), 1e-9)
    if math.isfinite(load_per_s):
        share = completions / max(sum(m.arrivals for m in measured), 1)
        answered_per_s = load_per_s * (share if share < BORNE_SHARE else 1.0)
    return TradeoffPoint(
        number=records[0].number,
        configuration=dict(records[0].configuration),
        threads=threads_of(header.found | records[0].configuration),
        latency_ms=total_ms / completions,
        answered_per_s=answered_per_s,
        intervals=len(records),
    )


def config_name(header: Header, number: int) -> str:
    """As Model Analyzer would name a configuration: `minilm_config_7`, the start `minilm_config_default`."""
    start = header.space.number(header.start)
    return f"{header.model}_config_{'default' if number == start else number}"


def write(path: Path, header: Header, tradeoff: Tradeoff) -> None:
    """Writes a row for each configuration, whole; a configuration is named as in Model Analyzer's files."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    latency = f"{tradeoff.statistic}_ms"
    rest = ("threads", latency, "answered_per_s", "intervals", "satisfies_limit", "on_front")
    writer.writerow(("Model", "Model Config Path", *header.space.names, *rest))
    for point in tradeoff.points:
        writer.writerow(
            (
                header.model,
                config_name(header, point.number),
                *point.configuration.values(),
                point.threads,
                f"{point.latency_ms:.3f}",
                f"{point.answered_per_s:.2f}",
                point.intervals,
                "" if (kept := keeps_limit(header, tradeoff, point)) is None else _yes_or_no(kept),
                _yes_or_no(point in tradeoff.front),
            )
        )
    with written_whole(path) as file:
        file.write(text.getvalue().encode(errors="replace"))


def keeps_limit(header: Header, tradeoff: Tradeoff, point: TradeoffPoint) -> bool | None:
    """Whether its p95 is within the run's limit; None where there is none, or no p95."""
    if header.slo_p95_ms is None or tradeoff.statistic != "p95":
        return None
    return point.latency_ms <= header.slo_p95_ms


def to_json(tradeoff: Tradeoff) -> list[dict[str, Any]]:
    """The front, for `summary.json`."""
    return [
        {
            "configuration": point.configuration,
            "threads": point.threads,
            f"{tradeoff.statistic}_ms": point.latency_ms,
            "answered_per_s": point.answered_per_s,
        }
        for point in tradeoff.front
    ]


def _yes_or_no(value: bool) -> str:
    return "Yes" if value else "No"
