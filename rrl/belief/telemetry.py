"""What an interval tells of service times, made good where a target tells less than all of it.

| target | tells of a batch's service time | here |
|---|---|---|
| ours, the simulator | by busy instances and batch size | as it is |
| a stock Triton | by batch size; `busy_instances` is 0 | told apart by how often each number is busy |
| with a metrics page only | the mean of all | one row, of the mean batch size, told apart |

| symbol | here | meaning |
|---|---|---|
| c | `instances` | instances of the configuration in force |
| a | `batches_in_service` | batches in service on average: all service times over the interval's length |
| C(c, a) | `probability_of_waiting` | Erlang's: that a batch finds all instances busy |
| p_n | `busy_shares` | of the batches: those that start with n of c instances busy, by the load |
| σ | `variation` | of lognormal service times |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtr

from rrl.measurement import Measurement, ServiceTimes

VARIATIONS = np.linspace(0.0, 1.2, 25)  # σ that are told apart
UNTOLD_VARIATION = 0.2  # σ where a target tells no p95; single batches of MiniLM on a Triton: 0.16 to 0.24
RARE = 0.05  # of the batches: numbers of busy instances that fewer meet are not learned from an estimate
AS_MEAN = 0.96  # of the batches: so many must clearly be faster than the p95 for it to tell a variation


def service_times(measurement: Measurement) -> list[ServiceTimes]:
    """The rows of an interval as they are told, or one of the means."""
    rows = [row for row in measurement.telemetry if row.count > 0 and row.total_s > 0]
    return rows or _of_the_means(measurement)


def told_apart(
    row: ServiceTimes, shares: np.ndarray, expected_s: Callable[[int], np.ndarray]
) -> list[ServiceTimes]:
    """A row for each number of busy instances; the row itself if it tells the number.

    `shares` (c,) of the batches start with 1 .. c busy; `expected_s(batch_size)` (c,) is expected of them:
    their mean is told apart in these proportions.
    """
    if row.busy_instances > 0:
        return [row]
    times_s, counts = expected_s(row.batch_size), _counts(row.count, shares)
    times_s = times_s * row.total_s / (counts @ times_s)
    return [
        ServiceTimes(busy, row.batch_size, int(count), float(count * time_s))
        for busy, (count, time_s) in enumerate(zip(counts, times_s, strict=True), start=1)
        if count > 0
    ]


def _counts(count: int, shares: np.ndarray) -> np.ndarray:
    """(c,) whole numbers of batches, `count` of them in all."""
    return np.diff(np.round(count * np.concatenate([[0.0], np.cumsum(shares)])))


def batches_in_service(measurement: Measurement) -> float:
    """a: batches in service on average."""
    return sum(row.total_s for row in service_times(measurement)) / measurement.duration_s


def tells_batch_sizes(measurement: Measurement) -> bool:
    """False where batches of several sizes may hide behind one mean service time."""
    return bool(measurement.telemetry) or measurement.mean_batch_size == 1.0


def tells_busy_instances(measurement: Measurement) -> bool:
    """False where the number of busy instances beside a batch must be estimated."""
    return bool(measurement.telemetry) and all(row.busy_instances > 0 for row in measurement.telemetry)


def tells_mean_busy(rows: Sequence[ServiceTimes]) -> bool:
    """False where a target does not tell how many instances were busy on average while batches ran."""
    return bool(rows) and all(math.isfinite(row.mean_busy) for row in rows)


def busy_instances(in_service: np.ndarray, instances: np.ndarray) -> np.ndarray:
    """How many instances are busy when a batch starts, its own included, on average: 1 + a - C(c, a).

    Arrays of one shape, or numbers. Batches that arrive at random see the queue as it is on average
    (PASTA). One that finds a free instance starts as one more than the min(N, c) in service. One that must
    wait, with probability C(c, a), starts as another ends, beside c - 1. With E[min(N, c)] = a that is the
    formula. It assumes Poisson arrivals of batches and the exponential service times of M/M/c (other times
    change C little). A batch that begins in one interval and ends in the next counts in the latter with all
    of its time.
    """
    busy = 1.0 + in_service - probability_of_waiting(in_service, instances)
    return np.clip(busy, 1.0, instances)


def busy_shares(in_service: float, instances: int) -> np.ndarray:
    """(c,) of the batches: those that start with 1 .. c instances busy; 0 where they would be rare.

    p_n = (1 - C(c, a)) a^(n-1)/(n-1)! / Σ_k a^k/k! over k < c: those that need not wait, as n - 1 were busy;
    p_c is greater by C(c, a): those that must wait. As of M/M/c, too; with the rare, their mean is
    `busy_instances`.
    """
    shares = np.zeros(instances)
    shares[-1] = waiting = float(probability_of_waiting(np.array(in_service), np.array(instances)))
    if waiting < 1:
        found = np.cumprod([1.0, *(in_service / np.arange(1, instances))])  # of finding 0 .. c - 1 busy
        shares += (1 - waiting) * found / found.sum()
    frequent = np.where(shares >= min(RARE, shares.max()), shares, 0.0)
    return frequent / frequent.sum()


def mean_busy(shares: np.ndarray) -> float:
    """Busy instances on average, where 1 .. c are in these shares (c,) of the cases: without the rare, unlike
    `busy_instances`, so that what is of a single part counts as told."""
    return float(shares @ np.arange(1, len(shares) + 1))


def probability_of_waiting(in_service: np.ndarray, instances: np.ndarray) -> np.ndarray:
    """Erlang's C, from the recursion of his B over the instances: B(k) = a B(k-1) / (k + a B(k-1))."""
    a, c = np.broadcast_arrays(np.asarray(in_service, dtype=float), instances)
    blocked = np.ones(a.shape)
    for k in range(1, int(c.max()) + 1):
        blocked = np.where(k <= c, a * blocked / (k + a * blocked), blocked)
    return np.divide(c * blocked, c - a * (1.0 - blocked), out=np.ones(a.shape), where=a < c)


def variation(measurement: Measurement, rows: Sequence[ServiceTimes]) -> float | None:
    """The σ of lognormal service times whose mixture over the rows has the observed p95; None if unknown."""
    p95_s = 1e-3 * measurement.service.p95_ms
    if not rows or not math.isfinite(p95_s):
        return None
    weights = np.array([row.count * row.batch_size for row in rows], dtype=float)
    centres = np.log([row.total_s / row.count for row in rows])
    return variation_of_mixture(p95_s, centres, weights / weights.sum())


def variation_of_mixture(p95: float, centres: np.ndarray, weights: np.ndarray) -> float:
    """The σ for which a mixture of lognormal times with ln of the means at `centres` has this p95."""
    σ = VARIATIONS[1:, None]
    below = ndtr((math.log(p95) - centres + σ**2 / 2) / σ) @ weights
    clearly_below = float(weights[centres < math.log(p95) - 0.02].sum())
    if clearly_below < AS_MEAN:  # one of the mean times is the p95: nothing need vary
        return 0.0
    return float(VARIATIONS[1 + int(np.argmin(np.abs(below - 0.95)))])


def _of_the_means(measurement: Measurement) -> list[ServiceTimes]:
    """One row made of the mean service time and batch size; none where those are unknown."""
    service_s = 1e-3 * measurement.service.mean_ms
    if not service_s > 0:
        return []
    batch_size = measurement.mean_batch_size if measurement.mean_batch_size >= 1 else 1.0
    batches = max(1, round(measurement.completions / batch_size))
    return [ServiceTimes(0, max(1, round(batch_size)), batches, batches * service_s)]
