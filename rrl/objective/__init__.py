"""Objectives: each maps a measurement, and the configuration it was taken under, to a cost to minimise.

All costs are positive; reward = -cost. They are in milliseconds, those of `LeastResources` in threads.

| objective | seeks |
|---|---|
| `latency` | the lowest mean latency |
| `strict-slo` | the lowest p95, below a limit |
| `least-resources` | the fewest threads that keep a limit |
| `throughput` | most answers per second |
| `goodput` | most answers per second within a limit |
| `capacity` | the highest rate that is borne within a limit |

An interval that the guard aborted did not live to see its own latency. So the time that its backlog needs to
drain is added, which is what the next request would wait. A request that fails adds to no latency. So all
costs are raised by `FAILURE_WEIGHT` times the share of requests that failed (`with_failures`). Where all
failed there is no latency: the whole interval stands for it, as nobody was answered for so long. A failed
request did not keep a p95 limit. So fewest threads are counted only where at most one in 20 failed.
"""

from __future__ import annotations

from collections.abc import Callable

from rrl.objective.latency import LeastResources, MeanLatency, StrictSLO
from rrl.objective.rates import PER_ANSWER, Capacity, Goodput, Throughput, log_sd_of
from rrl.objective.words import (
    FAILURE_WEIGHT,
    MAX_LATE_SHARE,
    Objective,
    PredictedIntervals,
    check_limit,
    latency_ms,
    slo_violated,
    with_failures,
)

__all__ = [
    "FAILURE_WEIGHT",
    "MAX_LATE_SHARE",
    "OBJECTIVES",
    "OF_OWN_LOAD",
    "PER_ANSWER",
    "Capacity",
    "Goodput",
    "LeastResources",
    "MeanLatency",
    "Objective",
    "PredictedIntervals",
    "StrictSLO",
    "Throughput",
    "check_simulated",
    "in_unit",
    "latency_ms",
    "log_sd_of",
    "make_objective",
    "rate_in_words",
    "slo_violated",
    "tells_broken_limit",
    "unit_of",
    "with_failures",
]

OF_OWN_LOAD = ("throughput", "capacity")
"""Those that tell configurations apart only under a load of the run's own."""

_WITHOUT_LIMIT: dict[str, Callable[[float | None], Objective]] = {
    "latency": MeanLatency,
    "throughput": Throughput,
}
_WITHIN_LIMIT: dict[str, Callable[[float], Objective]] = {
    "strict-slo": StrictSLO,
    "least-resources": LeastResources,
    "goodput": Goodput,
    "capacity": Capacity,
}
OBJECTIVES = ("latency", "strict-slo", "least-resources", "throughput", "goodput", "capacity")
"""The names of all."""


def make_objective(name: str, slo_p95_ms: float | None) -> Objective:
    """The objective of that name; all but `latency` and `throughput` need the limit."""
    check_limit(slo_p95_ms)
    if name in _WITHOUT_LIMIT:
        return _WITHOUT_LIMIT[name](slo_p95_ms)
    if name not in _WITHIN_LIMIT:
        raise ValueError(f"unknown objective {name!r}; known: {', '.join(OBJECTIVES)}")
    if slo_p95_ms is None:
        raise ValueError(f"objective {name!r} needs a limit: give --slo-p95-ms")
    return _WITHIN_LIMIT[name](slo_p95_ms)


def check_simulated(name: str) -> None:
    """ValueError for an objective that arrivals of a simulation, or of a trace, do not tell apart."""
    if name in OF_OWN_LOAD:
        raise ValueError(
            f"objective {name!r} is of a load that answers to the server, and simulated arrivals do not: "
            "tune a server with rrl-tune --bench, or take goodput here"
        )


def unit_of(name: str) -> str:
    """The unit of the costs of the objective of that name."""
    return make_objective(name, 1.0).unit


def rate_in_words(per_s: float) -> str:
    """`4.56`, `143`, `2,500`: without an exponent."""
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.3g}"


def tells_broken_limit(cost: float, unit: str) -> bool:
    """Whether a cost in threads stands for a broken limit, and so is no number of threads."""
    return unit == LeastResources.unit and cost >= LeastResources.violation_threads


def in_unit(cost: float, unit: str) -> str:
    """`8.4 ms`, `23 ms`, `4.0 threads`, `a broken limit`, `2,500 answers/s`."""
    if tells_broken_limit(cost, unit):
        return "a broken limit"
    if unit == PER_ANSWER:
        return f"{rate_in_words(1e3 / cost)} answers/s" if cost > 0 else "no answers"
    return f"{cost:.{0 if cost >= 10 else 1}f} {unit}"
