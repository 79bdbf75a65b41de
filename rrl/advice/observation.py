"""What the configuration in force does, measured without changing anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from rrl.agent import Transition
from rrl.guarding.settings import GuardSettings
from rrl.knobs import in_words
from rrl.measurement import Measurement, has_traffic
from rrl.records import Record
from rrl.space import Configuration
from rrl.tuning.environment import Environment
from rrl.views.summary import Standing

DEFAULT_INTERVALS = 3


class MeasuredInForce(NamedTuple):
    """What the configuration in force does."""

    standing: Standing
    transitions: list[Transition]  # Of the intervals that tell a cost.
    measurements: list[Measurement]  # Of all intervals.

    @property
    def nothing_completed(self) -> bool:
        return not any(measurement.completions for measurement in self.measurements)


class NothingObserved(Exception):
    """The time to observe in is over, and no request came in it."""


def measure_in_force(
    env: Environment,
    start: int,
    intervals: float,
    say: Callable[[str], None],
    is_over: Callable[[], bool] = lambda: False,
) -> MeasuredInForce:
    """Measures the configuration in force, waiting for requests where there are none.

    It ends with so many intervals that had some, or with the first one after which the time `is_over`.
    """
    action = env.space.action(start)
    records: list[Record] = []
    waiting = False
    while True:
        interval = env.run(start)
        measurement, observation = interval.measurement, interval.observation
        if has_traffic(measurement) and not measurement.gap:
            transition = Transition(observation, action, interval.cost, observation, measurement)
            records.append(_baseline_record(env.space.configuration(start), start, transition))
        elif not waiting:
            waiting = True
            say(f"{measurement.gap or 'no requests arrive'}: waiting")
        over = is_over()
        if over and not records:
            raise NothingObserved(f"nothing was observed: {measurement.gap or 'no requests arrived'}")
        if over or len(records) >= intervals:
            standing = Standing.of(records, env.space.configuration(start))
            learned = [r.transition for r in records if r.learned and r.measurement.completions]
            return MeasuredInForce(standing, learned, [record.measurement for record in records])


def failures_in_words(now: Standing) -> str:
    """What failed requests mean for a recommendation; empty where few failed."""
    if now.failure_share < GuardSettings.failure_share:
        return ""
    return (
        "what follows goes by the latency of the requests that were answered; without --advise, a "
        "configuration under which requests fail is left for one under which fewer do"
    )


def _baseline_record(configuration: dict[str, int], number: int, transition: Transition) -> Record:
    return Record(
        kind="baseline",
        number=number,
        configuration=configuration,
        transition=transition,
        decision="schedule",
        reason="",
        verdict="",
        rollback=False,
        learned=math.isfinite(transition.cost),
        wall_time_s=0.0,
    )


def observed_in_words(now: Standing, found: Configuration) -> str:
    """The load and the latency in one line, with the values found of the knobs that may be tuned."""
    percentile = f", p95 {now.p95_ms:.1f} ms" if math.isfinite(now.p95_ms) else ""
    where = f" in {in_words(found)}" if found else ""
    failed = f", {now.failure_share:.1%} of the requests failed" if now.failure_share else ""
    if math.isnan(now.arrival_rate_per_s):  # It is weighted by completions, of which there were none.
        return f"observed: no answers{failed}{where}"
    latency = f"mean {now.mean_ms:.1f} ms{percentile}"
    return f"observed: {now.arrival_rate_per_s:.1f} requests/s, {latency}{failed}{where}"
