"""A run's own Prometheus page: what is in force, what it costs, and what the run does.

| series | unit | what |
|---|---|---|
| `rrl_tune_run_info` | | 1, with target, model, agent and objective as labels |
| `rrl_tune_knob_in_force` | the knob's own | the configuration in force, a series a knob |
| `rrl_tune_arrivals_per_second` | 1/s | of the last interval, as the next seven |
| `rrl_tune_latency_mean_seconds` | s | |
| `rrl_tune_latency_p95_seconds`, `rrl_tune_latency_p99_seconds` | s | none where the target does not tell |
| `rrl_tune_queue_mean_seconds` | s | the part of the mean latency before service |
| `rrl_tune_backlog_requests` | requests | in the server at the interval's end |
| `rrl_tune_cost_seconds`, `rrl_tune_cost_threads` | s or threads | the objective's cost |
| `rrl_tune_failed_requests_total` | requests | while the run looked on |
| `rrl_tune_latency_limit_seconds` | s | the p95 limit, where there is one |
| `rrl_tune_changes_total` | changes | by `decision`: who made them |
| `rrl_tune_foreign_changes_total` | changes | that another client made |
| `rrl_tune_rollbacks_total` | intervals | that the guard ran in the best known |
| `rrl_tune_aborted_intervals_total` | intervals | that the guard ended early |
| `rrl_tune_intervals_total` | intervals | by `kind` |
| `rrl_tune_silent_intervals_total` | intervals | without requests |
| `rrl_tune_silence_seconds` | s | for so long no requests have come; 0 while they come |
| `rrl_tune_target_up` | 0 or 1 | whether the server answered last; 0 until it has answered at all |
| `rrl_tune_exploration_cost_request_seconds_total` | request-seconds | beyond the start's |
| `rrl_tune_decisions_total` | decisions | by `who` chose the configuration |
| `rrl_tune_decision_seconds_total` | s | spent by agent and guard |
| `rrl_tune_proposals_held_back_total` | proposals | that a watch's dead band did not let through |
| `rrl_tune_last_interval_timestamp_seconds` | s since the epoch | when an interval ended last |

Totals begin at 0 with each process, as Prometheus expects it. What is in force, the limit and the labels come
with the server's first answer.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rrl.measurement import has_traffic
from rrl.records import Header, Record
from rrl.tuning.decision_words import TAKEN_OVER, UNDONE, who_decided
from rrl.tuning.listener import Change, Listener
from rrl.views.exploration_cost import excess_request_s


class RunMetrics(Listener, Collector):
    """Listens to a run, and is asked for the page by another thread. A run has a header once it `begins`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.held_back: Callable[[], int] = lambda: 0
        """Tells the proposals that a watch's dead band held back."""
        self.start_ms: Callable[[], list[float]] | None = None
        """Tells the start's mean latency beside the last record: while its change settled, and then."""
        self._header: Header | None = None
        self._in_force: dict[str, int] = {}
        self._clock = clock
        self._alive_at_s = clock()
        self._last: Record | None = None
        self._is_up = False
        self._silence_s = self._exploration_request_s = self._decision_s = 0.0
        self._failures = self._silent = self._aborted = 0
        self._changes: Counter[str] = Counter()
        self._intervals: Counter[str] = Counter()
        self._decisions: Counter[str] = Counter()
        self._rollbacks = 0

    @property
    def quiet_s(self) -> float:
        """How long ago the run gave its last sign of life."""
        return self._clock() - self._alive_at_s

    @property
    def target_is_up(self) -> bool:
        return self._is_up

    @property
    def intervals(self) -> int:
        """So many are over since the process began."""
        return self._intervals.total()

    # --- the run -----------------------------------------------------------------------------------

    def reached(self) -> None:
        """The target has answered for the first time."""
        self._is_up = True
        self.goes_on()

    def goes_on(self) -> None:
        """What takes long before the first interval has come a step further."""
        self._alive_at_s = self._clock()

    def begins(self, header: Header, in_force: Mapping[str, int]) -> None:
        self._in_force, self._header = dict(in_force), header
        self._alive_at_s = self._clock()

    def replayed(self, record: Record) -> None:
        self._alive_at_s = self._clock()

    def changed(self, change: Change) -> None:
        self._in_force = dict(change.after)
        self._changes[change.decision] += 1

    def away(self, reason: str) -> None:
        self._is_up = False
        self._alive_at_s = self._clock()

    def measured(self, record: Record) -> None:
        m = record.measurement
        self._alive_at_s, self._last = self._clock(), record
        self._is_up = not m.gap or m.gap_by_others or record.not_taken
        self._intervals[record.kind] += 1
        self._decisions[who_decided(record.decision)] += 1
        self._rollbacks += record.decision == "rollback"
        self._aborted += bool(m.aborted)
        self._failures += record.failures
        self._decision_s += record.decision_ms / 1e3 if math.isfinite(record.decision_ms) else 0.0
        if not m.gap:
            silent = not has_traffic(m)
            self._silent += silent
            self._silence_s = self._silence_s + m.duration_s if silent else 0.0
        if self.start_ms is not None:
            self._exploration_request_s += max(0.0, excess_request_s([record], [self.start_ms()])[0])

    # --- the page ----------------------------------------------------------------------------------

    def describe(self) -> Iterator[Metric]:
        return self.collect()  # whose names a page can be filtered by

    def collect(self) -> Iterator[Metric]:
        if (header := self._header) is not None:
            yield from self._run(header)
        yield _gauge("target_up", "1 if the target answered last", float(self._is_up))
        yield _gauge("silence_seconds", "For so long no requests have come", self._silence_s)
        yield from self._totals()

    def _run(self, header: Header) -> Iterator[Metric]:
        yield _gauge(
            "run_info", "What the run tunes, and by whom", 1.0,
            target=header.target, model=header.model, agent=header.agent, objective=header.objective,
        )  # fmt: skip
        yield self._knobs()
        yield from self._load_and_latency(header)
        if header.slo_p95_ms is not None:
            yield _gauge("latency_limit_seconds", "Limit of the p95 latency", header.slo_p95_ms / 1e3)

    def _knobs(self) -> Metric:
        family = GaugeMetricFamily(
            "rrl_tune_knob_in_force", "Value in force, in its own unit", labels=["knob"]
        )
        for name, value in sorted(self._in_force.items()):
            family.add_metric([name], value)
        return family

    def _load_and_latency(self, header: Header) -> Iterator[Metric]:
        last = self._last
        if last is None:
            return
        m = last.measurement
        at_s = last.wall_time_s
        yield _gauge("last_interval_timestamp_seconds", "End of the last interval, since the epoch", at_s)
        if m.gap:
            return
        yield _gauge("arrivals_per_second", "Requests that came in the last interval", m.arrival_rate_per_s)
        threads = header.objective == "least-resources"
        cost = last.cost if threads else last.cost / 1e3
        values = (
            ("latency_mean_seconds", "Mean latency of the last interval", m.latency.mean_ms / 1e3),
            ("latency_p95_seconds", "p95 latency of the last interval", m.latency.p95_ms / 1e3),
            ("latency_p99_seconds", "p99 latency of the last interval", m.latency.p99_ms / 1e3),
            ("queue_mean_seconds", "Mean time in the queue in the last interval", m.queue.mean_ms / 1e3),
            ("backlog_requests", "Requests in the server at its end", float(m.backlog)),
            (f"cost_{'threads' if threads else 'seconds'}", "Cost of the last interval", cost),
        )
        for name, text, value in values:
            if math.isfinite(value):
                yield _gauge(name, text, value)

    def _totals(self) -> Iterator[Metric]:
        yield _counter("changes", "Changes of what is in force", "decision", self._changes, UNDONE)
        yield _counter("intervals", "Intervals that are over", "kind", self._intervals)
        yield _counter("decisions", "Configurations chosen for an interval", "who", self._decisions)
        for name, text, value in (
            ("foreign_changes", "Changes that another client made", self._changes[TAKEN_OVER]),
            ("rollbacks", "Intervals that the guard ran in the best known", self._rollbacks),
            ("aborted_intervals", "Intervals that the guard ended early", self._aborted),
            ("silent_intervals", "Intervals without requests", self._silent),
            ("failed_requests", "Requests that failed", self._failures),
            ("decision_seconds", "Time that agent and guard took to decide", self._decision_s),
            ("proposals_held_back", "Proposals that the dead band held back", self.held_back()),
            (
                "exploration_cost_request_seconds",
                "Latency beyond the start's, summed over requests",
                self._exploration_request_s,
            ),
        ):
            yield CounterMetricFamily(f"rrl_tune_{name}", text, value=value)


def _gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(f"rrl_tune_{name}", text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, text: str, label: str, counts: Mapping[str, int], but: str = "") -> Metric:
    family = CounterMetricFamily(f"rrl_tune_{name}", text, labels=[label])
    for key, count in sorted(dict(counts).items()):
        if key != but:
            family.add_metric([key], count)
    return family
