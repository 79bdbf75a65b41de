"""What the profiler says of one interval: the input of every objective and of every agent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, NamedTuple, TypeVar


class LatencySummary(NamedTuple):
    """Mean and percentiles of a latency, in milliseconds; NaN where nothing was observed."""

    mean_ms: float = math.nan
    p50_ms: float = math.nan
    p95_ms: float = math.nan
    p99_ms: float = math.nan


class ServiceTimes(NamedTuple):
    """Telemetry: how long batches of one size took while a number of instances was busy."""

    busy_instances: int  # this batch's own instance included
    batch_size: int
    count: int  # type: ignore[assignment]  # batches; hides tuple.count
    total_s: float  # summed service time
    mean_busy: float = math.nan  # instances busy on average while such a batch ran; NaN: not told


class ArrivalSummary(NamedTuple):
    """When the requests of an interval arrived: points in time, at most `MAX_POINTS`, ascending.

    A request is a point of its own, unless there are too many. A group is told by its first arrival.
    """

    offsets_s: tuple[float, ...]  # since the measured part of the interval began
    requests: tuple[int, ...]  # that arrived at each point
    items: tuple[int, ...]  # rows of a batch that they held together


MAX_POINTS = 512
NOT_TOLD = ArrivalSummary((), (), ())


T = TypeVar("T")


class _Late(Generic[T]):
    """A field that may be given as what makes its value, which is made when it is first asked for.

    To simulate an interval takes less time than to summarise its arrivals.
    """

    def __init__(self, default: T) -> None:
        self._default = default

    def __set_name__(self, owner: type[Measurement], name: str) -> None:
        self._place = f"_{name}"

    def __get__(self, measurement: Measurement | None, owner: type[Measurement]) -> T:
        if measurement is None:
            return self._default
        value = measurement.__dict__[self._place]
        if callable(value):
            value = measurement.__dict__[self._place] = value()
        return value

    def __set__(self, measurement: Measurement, value: T | Callable[[], T]) -> None:
        measurement.__dict__[self._place] = value


class Progress(NamedTuple):
    """A glance at an interval still running, for the guard to judge."""

    elapsed_s: float  # since the configuration came into force
    arrivals: int
    completions: int
    backlog: int  # requests in the server now
    backlog_growth: int  # the backlog minus that when the configuration came into force
    failures: int = 0

    @property
    def answered(self) -> int:
        """Requests that left the server, completed or failed."""
        return self.completions + self.failures


class SoFar(NamedTuple):
    """What an interval that is still being measured has told until now."""

    share: float  # of its usual time
    cost: float
    completions: int


NOTHING_OBSERVED = LatencySummary()


@dataclass(frozen=True)
class Measurement:
    """One interval's measurement. Counts and rates exclude the settling part of the interval."""

    duration_s: float
    arrivals: int
    completions: int
    failures: int
    latency: LatencySummary = NOTHING_OBSERVED
    """Arrival at the server to answer; as clients see it where only a tap or the tuner's load tells it."""
    queue: LatencySummary = NOTHING_OBSERVED  # arrival to start of service
    service: LatencySummary = NOTHING_OBSERVED  # start of service to its end
    mean_batch_size: float = math.nan
    backlog: int = 0  # requests in the server at the end
    backlog_growth: int = 0  # the backlog minus that at the start
    cpu_utilisation: float = math.nan  # of all the machine's cores, 0 .. 1
    gpu_utilisation: float = math.nan  # of all its GPUs, 0 .. 1
    telemetry: tuple[ServiceTimes, ...] = ()
    aborted: str = ""  # why the guard ended the interval early, if it did
    gap: str = ""  # why nothing may be learned from this interval (server restarted, no answer), if so
    arrival_summary: _Late[ArrivalSummary] = _Late(NOT_TOLD)
    dispersion: _Late[float] = _Late(
        math.nan
    )  # of arrivals: variance over mean of counts in equal slices of time
    gap_by_others: bool = False  # others made the gap, or a node did: it says nothing of a configuration
    network_ms: float = math.nan
    """What clients saw on average beyond the server's own latency: delays of the network and of the clients.

    NaN: not told. Only where the load is the tuner's own do clients tell it. As the requests of an interval
    are counted at both ends within a moment of each other, few requests make it noisy, even negative."""
    models: Mapping[str, Measurement] = field(default_factory=dict, hash=False)
    """Of each model, where several are tuned together (`rrl.joint`); else empty."""

    @property
    def arrival_rate_per_s(self) -> float:
        return self.arrivals / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def completion_rate_per_s(self) -> float:
        return self.completions / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def answered(self) -> int:
        """Requests that left the server, completed or failed."""
        return self.completions + self.failures

    @property
    def failure_share(self) -> float:
        """The share of the answered requests that failed; 0 where none was answered."""
        return self.failures / max(1, self.answered)

    @property
    def failures_in_words(self) -> str:
        """`17 of 142 failed`; empty where none failed."""
        return f"{self.failures} of {self.answered} failed" if self.failures else ""

    @property
    def drain_ms(self) -> float:
        """How long the requests that piled up in this interval need to drain at its completion rate."""
        growth = max(0, self.backlog_growth)
        if growth == 0:
            return 0.0
        return 1e3 * growth / max(self.completion_rate_per_s, 1.0 / max(self.duration_s, 1e-3))

    def to_json(self) -> dict[str, Any]:
        of_models = {name: each.to_json() for name, each in self.models.items()}
        return _without_nan(
            {each.name: getattr(self, each.name) for each in fields(self) if each.name != "models"}
            | {name: getattr(self, name)._asdict() for name in ("latency", "queue", "service")}
            | {"telemetry": [list(row[: 4 if math.isnan(row.mean_busy) else 5]) for row in self.telemetry]}
            | {"arrival_summary": {name: list(v) for name, v in self.arrival_summary._asdict().items()}}
            | ({"models": of_models} if of_models else {})
        )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Measurement:
        values = dict(fields)
        for name in ("latency", "queue", "service"):
            values[name] = LatencySummary(**{k: _nan_if_none(v) for k, v in values[name].items()})
        for name in ("mean_batch_size", "cpu_utilisation", "gpu_utilisation", "dispersion", "network_ms"):
            values[name] = _nan_if_none(values.get(name))
        values["telemetry"] = tuple(ServiceTimes(*row) for row in values["telemetry"])
        summary = values.get("arrival_summary") or NOT_TOLD._asdict()
        values["arrival_summary"] = ArrivalSummary(*(tuple(summary[name]) for name in ArrivalSummary._fields))
        values["models"] = {
            name: cls.from_json(each) for name, each in dict(values.get("models") or {}).items()
        }
        return cls(**values)


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: write null instead."""
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


MIN_UNANSWERED = 5  # requests; fewer may have come too late to be answered


def tells_nothing(measurement: Measurement) -> bool:
    """True if nothing was answered of a few requests, none of which waited when the interval began."""
    return leaves_unanswered(measurement) and not found_waiting(measurement)


def leaves_unanswered(measurement: Measurement) -> bool:
    """True if few requests came, and nothing was answered, not even what waited before."""
    return not measurement.answered and measurement.arrivals < MIN_UNANSWERED


def found_waiting(measurement: Measurement) -> bool:
    """True if requests were in the server when the interval began."""
    return measurement.backlog > measurement.backlog_growth


def all_failed(measurement: Measurement) -> bool:
    """True if requests were answered, and every one of them with an error."""
    return measurement.failures > 0 and measurement.completions == 0


NODES_CHANGED = "the server's workers changed within the interval, as nodes of its cluster went or came"
MOST_CHANGED_SHARE = 0.05
"""Share of the workers that nodes may take, or bring back, in an interval that is learned from. On a large
cluster some node goes or comes in every interval."""


def nodes_changed(measurement: Measurement) -> bool:
    """True if nodes of a cluster that went or came made the gap, and nothing else did."""
    return measurement.gap_by_others and NODES_CHANGED in measurement.gap


def has_traffic(measurement: Measurement) -> bool:
    return measurement.arrivals > 0 or measurement.answered > 0 or measurement.backlog > 0
