"""`rrl-load --find-capacity`: sends the windows of the search, and says what was found."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from serving_adapter.load.arrivals import DEFAULT_RATE_PER_S, make_arrivals
from serving_adapter.load.capacity import MAX_LATE_SHARE, CapacitySearch, Unit, level_in_words
from serving_adapter.load.concurrencies import MOST_CONCURRENCY
from serving_adapter.load.generator import LoadGenerator
from serving_adapter.load.options import LoadOptions
from serving_adapter.load.readiness import ReadyServer
from serving_adapter.load.report import LATE_CLIENT_MS, LoadReport, RequestRow
from serving_adapter.load.sizes import Sizes
from serving_adapter.standard_streams import say
from serving_adapter.whole_files import written_whole

FILE_NAME, ROWS_FILE_NAME = "capacity.json", "capacity.csv"
MIN_REQUESTS = 100  # of a window: fewer tell no p95
WARM_UP_S = 1.0  # before the first window


@dataclass(frozen=True)
class SentWindow:
    """One window, and how it went."""

    level: float
    sent: int
    answered_per_s: float
    p95_ms: float
    late_share: float  # of its requests: later than the limit, or failed
    borne: bool
    confirms: bool
    mean_ms: float

    @property
    def alone_late(self) -> bool:
        """True if even requests that met no other were late, so that a lower load would help none.

        Of random arrivals with fewer than one under way on average, four in ten find the server idle.
        """
        return self.late_share > 0.9 and self.level * self.mean_ms / 1e3 < 1

    @property
    def row(self) -> tuple[object, ...]:
        return tuple(vars(self).values())


async def search(options: LoadOptions, server: ReadyServer, sizes: Sizes, stop: asyncio.Event) -> None:
    """Sends windows until the capacity is known, or `stop`; writes the files and says what was found."""
    assert options.find_capacity is not None
    assert options.slo_p95_ms is not None
    unit: Unit = options.find_capacity
    first = (options.rate or DEFAULT_RATE_PER_S) if unit == "rate" else 1.0
    most = math.inf if unit == "rate" else float(MOST_CONCURRENCY)
    looking = CapacitySearch(unit, first, most)
    windows: list[SentWindow] = []
    await _Window(replace(options, seed=options.seed + 1), server, sizes, first, WARM_UP_S).send(stop)
    while not looking.over and not stop.is_set():
        one = _Window(replace(options, seed=options.seed + 2 + len(windows)), server, sizes, looking.level)
        report = await one.send(stop)
        if stop.is_set():
            break
        if unit == "rate" and report.send_lag_p99_ms > max(LATE_CLIENT_MS, options.slo_p95_ms / 2):
            say(f"{level_in_words(unit, looking.level)}: the client cannot keep up, so no more is sent")
            looking.cannot_send_more()
            continue
        found = one.found(report, looking.confirming)
        windows.append(found)
        say(
            f"{level_in_words(unit, found.level)}: p95 {found.p95_ms:.1f} ms, {found.answered_per_s:.1f}/s "
            f"answered, {'within' if found.borne else 'over'} the limit"
            + (" (confirming)" if found.confirms else "")
        )
        if unit == "rate":
            looking.tell(found.borne, found.answered_per_s, found.alone_late)
        else:
            looking.tell(found.borne)
    say(looking.found.in_words(options.slo_p95_ms))
    if options.out is not None:
        _write(options, looking, windows)


class _Window:
    """Some seconds of a load, broken off where the limit is broken beyond what the rest could mend."""

    def __init__(
        self,
        options: LoadOptions,
        server: ReadyServer,
        sizes: Sizes,
        level: float,
        length_s: float | None = None,
    ) -> None:
        assert options.slo_p95_ms is not None
        self._level, self._limit_ms = level, options.slo_p95_ms
        self._late = 0
        self._broken_off = asyncio.Event()
        is_rate = options.find_capacity == "rate"
        lasts_s = max(options.window_s, MIN_REQUESTS / level) if is_rate else options.window_s
        length_s = length_s or lasts_s
        self._planned = level * length_s if is_rate else math.inf
        load = self._arrivals(options) if is_rate else int(level)
        self._sender = LoadGenerator(
            server.send, server.payloads, load, sizes, options.seed, length_s, on_request=self._count
        )

    def _arrivals(self, options: LoadOptions) -> Any:
        return make_arrivals(options.arrivals, self._level, period_s=options.period_s, day_s=options.day_s)

    async def send(self, stop: asyncio.Event) -> LoadReport:
        """Sends it, until its end, `stop`, or until it is broken off."""
        stopping = asyncio.create_task(_set_after(stop, self._broken_off))
        try:
            return await self._sender.run(self._broken_off)
        finally:
            stopping.cancel()

    def found(self, report: LoadReport, confirms: bool) -> SentWindow:
        late_share = self._late / max(1, report.sent)
        borne = report.sent > 0 and late_share <= MAX_LATE_SHARE and not self._is_broken()
        p95_ms, mean_ms = (
            (math.nan, math.nan)
            if report.latency_ms is None
            else (report.latency_ms.p95, report.latency_ms.mean)
        )
        return SentWindow(
            self._level, report.sent, report.achieved_rate_per_s, p95_ms, late_share, borne, confirms, mean_ms
        )

    def _count(self, row: RequestRow) -> None:
        self._late += row.status != "OK" or row.latency_ms > self._limit_ms
        if self._is_broken():
            self._broken_off.set()

    def _is_broken(self) -> bool:
        """True if more are late already than may be of all that are planned."""
        return self._late > max(1.0, 1.5 * MAX_LATE_SHARE * self._planned)


async def _set_after(first: asyncio.Event, then: asyncio.Event) -> None:
    await first.wait()
    then.set()


def _write(options: LoadOptions, looking: CapacitySearch, windows: list[SentWindow]) -> None:
    assert options.out is not None
    found = looking.found
    document = {
        "unit": found.unit,
        "level": found.level,
        "confirmed": found.confirmed,
        "broken": found.broken if math.isfinite(found.broken) else None,
        "slo_p95_ms": options.slo_p95_ms,
        "answered_per_s": _answered_per_s(windows, lambda w: w.borne and w.level == found.level),
        "windows": len(windows),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with written_whole(options.out / FILE_NAME) as file:
        file.write((json.dumps(document, indent=2) + "\n").encode())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SentWindow.__dataclass_fields__)
    writer.writerows(window.row for window in windows)
    with written_whole(options.out / ROWS_FILE_NAME) as file:
        file.write(text.getvalue().encode())


def _answered_per_s(windows: list[SentWindow], which: Callable[[SentWindow], bool]) -> float | None:
    rates = [window.answered_per_s for window in windows if which(window)]
    return sum(rates) / len(rates) if rates else None
