"""What a run of load measured: HDR histograms over the run, and a row for each second."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from hdrh.histogram import HdrHistogram
from rich.table import Table

MAX_DURATION_US = 3_600_000_000  # the histograms' range: 1 µs to 1 hour, to 0.1% of the value
LATE_CLIENT_MS = 10.0  # a send lag (p99) from which the client, not the server, is what a run measured


@dataclass(frozen=True)
class LatencyFigures:
    """Milliseconds from the moment a request was meant to be sent to its answer."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float
    max: float


@dataclass(frozen=True)
class LoadReport:
    duration_s: float  # from the start to the end of sending
    sent: int
    completed: int
    failed: dict[str, int]  # by gRPC status code
    offered_rate_per_s: float  # sent / duration
    achieved_rate_per_s: float  # completed / time until the last answer
    latency_ms: LatencyFigures | None  # of completed requests; None where there is none
    send_lag_p99_ms: float  # how late the client itself sent; the latencies include it
    send_lag_max_ms: float

    def as_table(self) -> Table:
        table = Table(show_header=False)
        table.add_row("sent", f"{self.sent} in {self.duration_s:.1f} s ({self.offered_rate_per_s:.1f}/s)")
        table.add_row("completed", f"{self.completed} ({self.achieved_rate_per_s:.1f}/s)")
        failures = ", ".join(f"{code}: {count}" for code, count in self.failed.items())
        table.add_row("failed", failures or "0")
        if self.latency_ms is not None:
            for name, value in dataclasses.asdict(self.latency_ms).items():
                table.add_row(f"latency {name.replace('_', '.')}", f"{value:.2f} ms")
        late = " - the client could not keep up" if self.send_lag_p99_ms > LATE_CLIENT_MS else ""
        lag = f"p99 {self.send_lag_p99_ms:.2f} ms, max {self.send_lag_max_ms:.2f} ms{late}"
        table.add_row("send lag", lag)
        return table


@dataclass(frozen=True)
class SecondRow:
    """One second of a run: what was sent in it, and the latencies of what was answered in it."""

    second: int
    sent: int
    completed: int
    failed: int
    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None

    @staticmethod
    def header() -> str:
        return ",".join(field.name for field in dataclasses.fields(SecondRow))

    def as_csv(self) -> str:
        cells = dataclasses.astuple(self)
        return ",".join("" if c is None else f"{c:.3f}" if isinstance(c, float) else str(c) for c in cells)


class RequestRow(NamedTuple):
    """One request, answered or failed."""

    at: float  # Unix time of the moment it was meant to be sent
    latency_ms: float  # from then until it was answered, or had failed
    status: str  # OK, or the gRPC status code

    @staticmethod
    def header() -> str:
        return ",".join(RequestRow._fields)

    def as_csv(self) -> str:
        return f"{self.at:.6f},{self.latency_ms:.3f},{self.status}"


class HdrDurations:
    """Durations in seconds, kept in an HDR histogram of microseconds."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(1, MAX_DURATION_US, 3)
        self._sum_s = 0.0
        self._longest_s = 0.0
        self.count = 0

    def record(self, value_s: float) -> None:
        self._histogram.record_value(min(max(round(value_s * 1e6), 1), MAX_DURATION_US))
        self._sum_s += value_s
        self._longest_s = max(self._longest_s, value_s)
        self.count += 1

    @property
    def mean_ms(self) -> float:
        return 1e3 * self._sum_s / self.count

    @property
    def max_ms(self) -> float:
        return 1e3 * self._longest_s

    def percentiles_ms(self, *percentiles: float) -> list[float]:
        values_us = self._histogram.get_percentile_to_value_dict(list(percentiles))
        return [min(values_us.get(percentile, 0) / 1e3, self.max_ms) for percentile in percentiles]


class Recorder:
    """Counts a run. Moments are seconds since its start; `on_second` gets each second once it is over."""

    def __init__(self, on_second: Callable[[SecondRow], None]) -> None:
        self._on_second = on_second
        self._latency, self._lag = HdrDurations(), HdrDurations()
        self._failed: Counter[str] = Counter()
        self._last_sent_s = 0.0
        self._second = 0
        self._start_second()

    def sent(self, moment_s: float, lag_s: float) -> None:
        self.advance(moment_s)
        self._sent_now += 1
        self._last_sent_s = moment_s
        self._lag.record(lag_s)

    def completed(self, moment_s: float, latency_s: float) -> None:
        self.advance(moment_s)
        self._latencies_now_s.append(latency_s)
        self._latency.record(latency_s)

    def failed(self, moment_s: float, code: str) -> None:
        self.advance(moment_s)
        self._failed_now += 1
        self._failed[code] += 1

    def advance(self, moment_s: float) -> None:
        """Closes the seconds before this moment."""
        while self._second < int(moment_s):
            self._close_second()

    def finish(self, moment_s: float) -> None:
        """Closes the last second too, if anything came in its part."""
        self.advance(moment_s)
        if self._sent_now or self._failed_now or self._latencies_now_s:
            self._close_second()

    def _close_second(self) -> None:
        latencies_ms = 1e3 * np.array(self._latencies_now_s)
        figures: list[float | None] = [None] * 4
        if latencies_ms.size:
            figures = [float(latencies_ms.mean()), *np.percentile(latencies_ms, [50, 95, 99]).tolist()]
        completed = latencies_ms.size
        self._on_second(SecondRow(self._second, self._sent_now, completed, self._failed_now, *figures))
        self._second += 1
        self._start_second()

    def report(self, duration_s: float, until_last_answer_s: float) -> LoadReport:
        """What the run was. A client that was late has sent for longer than `duration_s`."""
        duration_s = max(duration_s, self._last_sent_s)
        latency = None
        if self._latency.count:
            p50, p90, p95, p99, p99_9 = self._latency.percentiles_ms(50, 90, 95, 99, 99.9)
            mean, longest = self._latency.mean_ms, self._latency.max_ms
            latency = LatencyFigures(mean, p50, p90, p95, p99, p99_9, longest)
        return LoadReport(
            duration_s=duration_s,
            sent=self._lag.count,
            completed=self._latency.count,
            failed=dict(self._failed),
            offered_rate_per_s=self._lag.count / duration_s if duration_s else 0.0,
            achieved_rate_per_s=self._latency.count / until_last_answer_s if until_last_answer_s else 0.0,
            latency_ms=latency,
            send_lag_p99_ms=self._lag.percentiles_ms(99)[0],
            send_lag_max_ms=self._lag.max_ms,
        )

    def _start_second(self) -> None:
        self._sent_now = 0
        self._failed_now = 0
        self._latencies_now_s: list[float] = []
