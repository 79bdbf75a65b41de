"""The profiler: turns two readings of a target into the measurement of what lay between them.

| symbol | here | meaning |
|---|---|---|
| Δx | difference | the counter in the second reading minus the first |
| arrivals | Δsuccess + Δfailure + Δbacklog | what came: completions hide a backlog |
| client - server | `_network_ms` | the mean latency that clients saw less the server's own |
| q | `_percentile` | a percentile, interpolated inside its histogram bucket on a logarithmic scale |
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rrl.arrival_summary import dispersion_between_looks, dispersion_of_times, summarised
from rrl.joint import as_whole, together
from rrl.measurement import (
    MOST_CHANGED_SHARE,
    NODES_CHANGED,
    NOT_TOLD,
    ArrivalSummary,
    LatencySummary,
    Measurement,
    ServiceTimes,
)
from serving_adapter.latency_histogram import CumulativeHistogram
from serving_adapter.target.reading import BatchTotals, Reading

_COUNTERS = (
    "success", "failure", "inference_count", "execution_count", "request_s", "queue_s", "service_s",
)  # fmt: skip
_NO_BATCHES = BatchTotals(0, 0.0, 0.0)
_MOST_PER_S = 1e7  # requests; no server takes in so many
_ROUNDING = 1e-6  # sums of seconds may round; counters that fall by more started again


def measure(before: Reading, after: Reading, looks: Sequence[Reading] = ()) -> Measurement:
    """What happened between two readings of one model.

    `looks` are others, in the order of time; those between the two tell how unevenly requests came, where
    the server does not tell when.
    Nothing did where the counters tell of more requests than any server can take in: `gap` says so.
    After a restart of the server, the counters since the restart are what there is, and `gap` says why
    nothing may be learned from them. So it does where nodes of the server's cluster went or came with more
    than `MOST_CHANGED_SHARE` of its workers, which is `gap_by_others`: it says nothing of the configuration
    that met it.
    """
    if after.models:
        models = {
            name: measure(before.models[name], own, [look.models[name] for look in looks if look.models])
            for name, own in after.models.items()
        }
        return as_whole(_measured(before, after, looks), models) if after.is_whole else together(models)
    return _measured(before, after, looks)


def _measured(before: Reading, after: Reading, looks: Sequence[Reading]) -> Measurement:
    if impossible := _impossible(before, after):
        return Measurement(after.at_s - before.at_s, 0, 0, 0, gap=impossible)
    gap, by_nodes = _restart(before, after), False
    if gap:
        before = _zero(before)
    elif _changed_share(before, after) > MOST_CHANGED_SHARE:
        gap, by_nodes = NODES_CHANGED, True
    completions = after.success - before.success
    timed = completions if after.timed is None else after.timed - (before.timed or 0)
    executions = after.execution_count - before.execution_count
    inferences = after.inference_count - before.inference_count
    arrival_summary, dispersion = (NOT_TOLD, math.nan) if gap else _arrivals(before, after, looks)
    return Measurement(
        duration_s=after.at_s - before.at_s,
        arrivals=max(0, after.arrivals - before.arrivals),
        completions=completions,
        failures=after.failure - before.failure,
        latency=_summary(before.latency, after.latency, after.request_s - before.request_s, timed),
        queue=_summary(before.queue, after.queue, after.queue_s - before.queue_s, completions),
        service=_summary(before.service, after.service, after.service_s - before.service_s, completions),
        mean_batch_size=inferences / executions if executions else math.nan,
        backlog=after.backlog,
        backlog_growth=after.backlog - before.backlog,
        cpu_utilisation=_cpu_utilisation(before, after),
        gpu_utilisation=math.nan if after.gpu_utilisation is None else after.gpu_utilisation,
        telemetry=_telemetry(before, after),
        gap=gap,
        arrival_summary=arrival_summary,
        dispersion=dispersion,
        gap_by_others=by_nodes,
        network_ms=_network_ms(before, after),
    )


def _changed_share(before: Reading, after: Reading) -> float:
    """Of the workers that nodes took with them or brought back; 0 where the server tells of no cluster."""
    if before.cluster_changed_share is None or after.cluster_changed_share is None:
        return 0.0
    return after.cluster_changed_share - before.cluster_changed_share


def _impossible(before: Reading, after: Reading) -> str:
    """Why these counts are no server's: a gauge that fell below zero may be told as 2^64 - 1, say."""
    arrivals = after.arrivals - before.arrivals
    if arrivals <= _MOST_PER_S * max(after.at_s - before.at_s, 1.0):
        return ""
    return f"the server's counters tell of {arrivals:.3g} requests within the interval, beyond all measure"


def _restart(before: Reading, after: Reading) -> str:
    starts = (before.start_time_s, after.start_time_s)
    if None not in starts and starts[0] != starts[1]:
        return "the server restarted within the interval"
    for name in _COUNTERS:
        if getattr(after, name) < getattr(before, name) - _ROUNDING:
            return f"the server's counters started again within the interval ({name} fell)"
    return ""


def _zero(reading: Reading) -> Reading:
    """The reading of a server just started, taken when this one was."""
    return Reading(
        reading.at_s, 0, 0, 0, 0, 0.0, 0.0, 0.0,
        cpu_busy_s=reading.cpu_busy_s, cpu_available_s=reading.cpu_available_s,
    )  # fmt: skip


def _summary(
    before: CumulativeHistogram | None, after: CumulativeHistogram | None, total_s: float, completions: int
) -> LatencySummary:
    """A summary from the histograms where they tell of answers, else the mean alone."""
    mean_alone = LatencySummary(mean_ms=1e3 * total_s / completions) if completions > 0 else LatencySummary()
    if after is None:
        return mean_alone
    if before is None or before.bounds_s != after.bounds_s or _began_again(before, after):
        before = CumulativeHistogram(after.bounds_s, (0,) * len(after.bounds_s), 0.0)
    counts = [b - a for a, b in zip(before.cumulative, after.cumulative, strict=True)]
    if counts[-1] <= 0:  # a load's clients see an answer after the server has counted it
        return mean_alone
    return LatencySummary(
        1e3 * (after.sum_s - before.sum_s) / counts[-1],
        *(1e3 * _percentile(after.bounds_s, counts, q) for q in (0.50, 0.95, 0.99)),
    )


def _began_again(before: CumulativeHistogram, after: CumulativeHistogram) -> bool:
    """Whether who counted (a tap, the clients of a load) has started anew, and its server has not."""
    falls = any(now < then for then, now in zip(before.cumulative, after.cumulative, strict=True))
    return falls or after.sum_s < before.sum_s - _ROUNDING


def _percentile(bounds_s: tuple[float, ...], cumulative: list[int], q: float) -> float:
    """Log-linear inside a bucket, but linear in the first, which begins at 0. The last has no upper bound."""
    rank = q * cumulative[-1]
    bucket = next(i for i, count in enumerate(cumulative) if count >= rank and count > 0)
    below = cumulative[bucket - 1] if bucket else 0
    high_s = bounds_s[bucket]
    low_s = bounds_s[bucket - 1] if bucket else 0.0
    if math.isinf(high_s):
        return low_s
    share = (rank - below) / (cumulative[bucket] - below)
    return low_s * (high_s / low_s) ** share if low_s > 0 else high_s * share


def _network_ms(before: Reading, after: Reading) -> float:
    """The clients' mean latency less the server's, over the answers that each counted."""
    if before.clients is None or after.clients is None:
        return math.nan
    by_clients = after.clients.cumulative[-1] - before.clients.cumulative[-1]
    by_server = after.success - before.success
    if by_clients <= 0 or by_server <= 0 or _began_again(before.clients, after.clients):
        return math.nan
    seen_s = (after.clients.sum_s - before.clients.sum_s) / by_clients
    return 1e3 * (seen_s - (after.request_s - before.request_s) / by_server)


def _cpu_utilisation(before: Reading, after: Reading) -> float:
    ends = (before.cpu_busy_s, after.cpu_busy_s, before.cpu_available_s, after.cpu_available_s)
    if any(end is None for end in ends) or before.cores != after.cores:  # a node came, or is gone
        return math.nan
    busy_before_s, busy_after_s, available_before_s, available_after_s = (float(end or 0.0) for end in ends)
    busy_s, available_s = busy_after_s - busy_before_s, available_after_s - available_before_s
    # A worker that ended may take its CPU time out of the sum: that interval's use is unknown.
    return min(1.0, busy_s / available_s) if busy_s >= 0 and available_s > 0 else math.nan


def _telemetry(before: Reading, after: Reading) -> tuple[ServiceTimes, ...]:
    rows = []
    began_again = (after.executions_since_load or 0) < (before.executions_since_load or 0)
    for (busy_instances, batch_size), now in sorted(after.telemetry.items()):
        then = before.telemetry.get((busy_instances, batch_size), _NO_BATCHES)
        if began_again or now.batches < then.batches:  # this table alone (a stock Triton's, at a reload)
            then = _NO_BATCHES
        if now.batches > then.batches:
            rows.append(
                ServiceTimes(
                    busy_instances,
                    batch_size,
                    now.batches - then.batches,
                    now.total_s - then.total_s,
                    _mean_busy(then, now),
                )
            )
    return tuple(rows)


def _mean_busy(then: BatchTotals, now: BatchTotals) -> float:
    if math.isnan(now.mean_busy):
        return math.nan
    return (now.mean_busy - then.mean_busy) / (now.batches - then.batches)


def _arrivals(before: Reading, after: Reading, looks: Sequence[Reading]) -> tuple[ArrivalSummary, float]:
    """The summary and the dispersion of what arrived between two readings, as far as the server tells."""
    seen = after.recent_arrivals
    if seen is None or seen.complete_since_s > before.at_s:
        return NOT_TOLD, _dispersion_of_looks(before, after, looks)
    between = slice(*seen.at_s.searchsorted((before.at_s, after.at_s)))
    offsets_s = seen.at_s[between] - before.at_s
    dispersion = dispersion_of_times(offsets_s, after.at_s - before.at_s)
    return summarised(offsets_s, seen.rows[between]), dispersion


def _dispersion_of_looks(before: Reading, after: Reading, looks: Sequence[Reading]) -> float:
    """From what arrived between one look and the next. A stock Triton counts what runs when it has ended."""
    if after.comes_in_lumps:
        return math.nan
    inside = [look for look in looks if before.at_s < look.at_s < after.at_s]
    shortest_s = (after.at_s - before.at_s) / (4 * len(inside) + 4)
    ends = [before]
    for look in inside:
        # A single arrival in a moment between two looks would pass for a burst.
        if min(look.at_s - ends[-1].at_s, after.at_s - look.at_s) >= shortest_s:
            ends.append(look)
    ends.append(after)
    counts = np.diff([end.arrivals for end in ends])
    return dispersion_between_looks(np.maximum(counts, 0), np.diff([end.at_s for end in ends]))
