"""A guard that is told of intervals as a test wants them."""

from __future__ import annotations

from typing import Any

from rrl.guarding.guard import Guard, Judgement
from rrl.guarding.settings import GuardSettings
from rrl.measurement import LatencySummary, Measurement

START, GOOD, BAD = 0, 1, 2


def measured(mean_ms: float = 50.0, rate_per_s: float = 40.0, **changes: Any) -> Measurement:
    n = int(rate_per_s * 4)
    values = {"duration_s": 4.0, "arrivals": n, "completions": n, "failures": 0} | changes
    return Measurement(latency=LatencySummary(mean_ms, mean_ms, 2 * mean_ms, 3 * mean_ms), **values)


ABORTED: dict[str, Any] = {
    "aborted": "the queue is running away",
    "backlog": 80,
    "backlog_growth": 80,
    "completions": 80,
}


def tell(guard: Guard, number: int, mean_ms: float, rate_per_s: float = 40.0, **changes: Any) -> Judgement:
    guard.admit(number)
    m = measured(mean_ms, rate_per_s, **changes)
    return guard.judge(number, mean_ms + m.drain_ms, m)


def turn(guard: Guard, number: int, mean_ms: float, share: float = 1.0, rate_per_s: float = 40.0) -> None:
    guard.enter(number)
    guard.judge(number, mean_ms, measured(mean_ms, rate_per_s), "validation", share)


def begun(settings: GuardSettings | None = None, start_ms: float = 100.0) -> Guard:
    guard = Guard(START, settings or GuardSettings())
    for _ in range(3):
        guard.enter(START)
        guard.judge(START, start_ms, measured(start_ms), kind="baseline")
    return guard


def begun_once(start_ms: float, **changes: Any) -> Guard:
    """As a run begins that has a validation: the start is measured once."""
    guard = Guard(START)
    guard.enter(START)
    guard.judge(START, start_ms, measured(start_ms, **changes), kind="baseline")
    return guard


def begun_failing(failures: int = 40) -> Guard:
    """With a start under which so many of 160 requests fail."""
    guard = Guard(START)
    guard.enter(START)
    assert not guard.judge(START, 400.0, measured(100.0, failures=failures), kind="baseline").rollback
    return guard
