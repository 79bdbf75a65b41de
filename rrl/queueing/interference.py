"""The interference-aware queue M/D_interf/c: mean latency of a configuration from its service times.

Yan, Ruwase, He, Smirni: "SERF: Efficient Scheduling for Fast Deep Neural Network Serving via Judicious
Parallelism", SC 2016, section IV-C. Poisson arrivals, up to c requests in service, first come, first served;
a request takes 1/μ_n while n are in service. It is solved as M/M_interf/c (a birth-death chain), then
corrected for deterministic service as Cosmetatos (INFOR, 1975) corrects M/M/c to M/D/c.

| symbol | here | meaning | equation |
|---|---|---|---|
| λ | `arrival_rate_per_s` | Poisson arrivals; on a cluster those of one unit (`serving_units`) | |
| c | `instances` | requests that may be in service at once | |
| 1/μ_n | `service_time_s[:, n-1]` | seconds a request takes when n are in service | |
| ρ_n, ρ | `log_rho_n`, `utilisation` | λ/μ_n; λ/(c·μ_c), below 1 where the queue is stable | |
| p_n | `p[:, n]` | probability of n requests in the system, n < c | (2) |
| p_0 = H⁻¹ | `p[:, 0]` | probability of none: all probabilities sum to 1 | (3), (4) |
| p_c | `p_c` | probability of c; then p_n = ρ^(n-c)·p_c | (2) |
| L_q | | p_c·ρ/(1-ρ)², requests that wait | (5), (6) |
| W_q | `mean_wait_s` | L_q/λ = p_c/(c·μ_c·(1-ρ)²) for M/M_interf/c | (7) |
| f(s), g(ρ) | `f`, `g` | Cosmetatos' correction of W_q for deterministic service | (8)-(11) |
| S | `mean_service_s` | service time by the state an arrival sees (PASTA) | (12) |
| W | `mean_latency_s` | W_q + S | (13) |

In print, the second term of (12) and (13), of the states n >= c, lacks its factor p_0.

Models that are blind to interference (M/M/c, M/D/c) take 1/μ_1, one request at a time, for every n.

Not in the paper: the probability of waiting, p_c/(1-ρ), and a 95th percentile. The latter takes the wait of
those who wait as exponential with mean W_q/P(wait), followed by a service time of 1/μ_c. Those who do not
wait take the service time of the state that they see.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np

_IDLE_RATE_PER_S = 1e-12  # stands for no load at all: λ appears in a logarithm
_TAIL = 0.05  # of the 95th percentile


class Queue(Enum):
    """The paper's model and the three that it is compared with (Fig. 9)."""

    MD_INTERF_C = "M/D_interf/c"
    MM_INTERF_C = "M/M_interf/c"
    MD_C = "M/D/c"
    MM_C = "M/M/c"

    @property
    def deterministic(self) -> bool:
        return self in (Queue.MD_INTERF_C, Queue.MD_C)

    @property
    def interference_aware(self) -> bool:
        return self in (Queue.MD_INTERF_C, Queue.MM_INTERF_C)


class Prediction(NamedTuple):
    """Of each of K configurations, (K,) float64 each; infinite where the queue is unstable (ρ >= 1)."""

    utilisation: np.ndarray  # ρ
    wait_probability: np.ndarray  # that an arrival finds c requests in the system; 1 where unstable
    mean_wait_s: np.ndarray  # W_q
    mean_service_s: np.ndarray  # S; 1/μ_c where unstable
    mean_latency_s: np.ndarray  # W
    p95_latency_s: np.ndarray  # approximate, see the module


def f(instances: np.ndarray) -> np.ndarray:
    """Cosmetatos' correction by the number of servers, f(s) of Eq. (9)."""
    c = np.asarray(instances, dtype=float)
    return (c - 1) * (np.sqrt(4 + 5 * c) - 2) / (16 * c)


def g(utilisation: np.ndarray) -> np.ndarray:
    """Cosmetatos' correction by the utilisation, g(ρ) of Eq. (10)."""
    return (1 - utilisation) / utilisation


def capacity_per_s(service_time_s: np.ndarray, instances: np.ndarray) -> np.ndarray:
    """(K,) the arrival rate c·μ_c from which each of K configurations is unstable; arguments as `predict`."""
    times_s, c = _checked(service_time_s, instances)
    return c / times_s[np.arange(len(c)), c - 1]


def predict(
    service_time_s: np.ndarray,
    instances: np.ndarray,
    arrival_rate_per_s: float | np.ndarray,
    queue: Queue = Queue.MD_INTERF_C,
) -> Prediction:
    """Latencies of K configurations at once.

    `service_time_s`: (K, c_max) seconds a request takes with n = 1 .. c_max in service, all positive; what
    lies beyond a configuration's own c has no effect. `instances`: (K,) int, c of each.
    `arrival_rate_per_s`: one rate or (K,), not negative. ValueError for other shapes and values.
    """
    times_s, c = _checked(service_time_s, instances)
    rate_per_s = np.asarray(arrival_rate_per_s, dtype=float)
    if rate_per_s.shape not in ((), c.shape) or not np.all(np.isfinite(rate_per_s) & (rate_per_s >= 0)):
        raise ValueError(
            f"arrival_rate_per_s must be one rate or {len(c)} of them, finite and not negative, "
            f"got {arrival_rate_per_s!r}"
        )
    if not queue.interference_aware:
        times_s = np.broadcast_to(times_s[:, :1], times_s.shape)
    rate_per_s = np.maximum(np.broadcast_to(rate_per_s, c.shape), _IDLE_RATE_PER_S)
    rows = np.arange(len(c))
    slowest_s = times_s[rows, c - 1]  # 1/μ_c
    utilisation = rate_per_s * slowest_s / c
    stable = utilisation < 1
    rho = np.where(stable, utilisation, 0.5)  # any value: replaced below

    p, p_c = _state_probabilities(times_s, c, rate_per_s, rho)
    wait_probability = p_c / (1 - rho)
    mean_wait_s = wait_probability * slowest_s / (c * (1 - rho))  # Eq. (7)
    if queue.deterministic:
        mean_wait_s = 0.5 * (1 + f(c) * g(rho)) * mean_wait_s  # Eq. (8), (11)
    mean_service_s = np.einsum("kn,kn->k", p, times_s) + wait_probability * slowest_s  # Eq. (12)
    p95_s = _p95_latency_s(times_s, c, p, wait_probability, mean_wait_s)
    return Prediction(
        utilisation,
        np.where(stable, wait_probability, 1.0),
        np.where(stable, mean_wait_s, np.inf),
        np.where(stable, mean_service_s, slowest_s),
        np.where(stable, mean_wait_s + mean_service_s, np.inf),  # Eq. (13)
        np.where(stable, p95_s, np.inf),
    )


def _state_probabilities(
    times_s: np.ndarray, c: np.ndarray, rate_per_s: np.ndarray, rho: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """p_n for n = 0 .. c-1, (K, c_max) with zeros beyond, and p_c, (K,). Eq. (2)-(4).

    In logarithms, each row from its largest term: products of many ρ_n leave the range of a float.
    """
    c_max = times_s.shape[1]
    n = np.arange(c_max + 1)[:, None]
    # Configurations along the rows: numpy is slow where rows are short.
    rho_n = np.ascontiguousarray((rate_per_s[:, None] * times_s).T)
    log_terms = np.zeros((c_max + 1, len(c)))  # ln(Π ρ_i / n!) for n = 0 .. c_max
    np.cumsum(np.log(rho_n / n[1:]), axis=0, out=log_terms[1:])
    log_terms[n > c] = -np.inf
    terms = np.exp(log_terms - log_terms.max(axis=0))
    columns = np.arange(len(c))
    term_c = terms[c, columns]
    terms[c, columns] = 0.0
    h = terms.sum(axis=0) + term_c / (1 - rho)
    return (terms[:-1] / h).T, term_c / h


def _p95_latency_s(
    times_s: np.ndarray,
    c: np.ndarray,
    p: np.ndarray,
    wait_probability: np.ndarray,
    mean_wait_s: np.ndarray,
) -> np.ndarray:
    """(K,) the latency that 5% exceed, taking more requests in service to mean no less service time."""
    # P(an arrival sees more than n requests) for n = 0 .. c_max-1; the first n with at most 5%.
    seen_more = wait_probability[:, None] + p[:, ::-1].cumsum(axis=1)[:, ::-1] - p
    seen = np.minimum((seen_more > _TAIL).sum(axis=1), c - 1)
    waits = wait_probability > _TAIL
    mean_of_waiting_s = np.divide(mean_wait_s, wait_probability, out=np.zeros_like(p[:, 0]), where=waits)
    excess = np.log(np.where(waits, wait_probability, _TAIL) / _TAIL)
    slowest_so_far_s = np.maximum.accumulate(times_s, axis=1)
    return np.asarray(slowest_so_far_s[np.arange(len(c)), seen] + mean_of_waiting_s * excess)


def _checked(service_time_s: np.ndarray, instances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    times_s, c = np.asarray(service_time_s, dtype=float), np.asarray(instances)
    if times_s.ndim != 2 or times_s.shape[1] == 0:
        raise ValueError(f"service_time_s must have shape (configurations, c_max), got {times_s.shape}")
    if c.shape != times_s.shape[:1] or c.dtype.kind not in "iu":
        raise ValueError(
            f"instances must be {len(times_s)} integers, one for each row of service_time_s, "
            f"got shape {c.shape} of {c.dtype}"
        )
    if c.size and not 1 <= c.min() <= c.max() <= times_s.shape[1]:
        raise ValueError(
            f"instances must lie in 1 .. {times_s.shape[1]}, the columns of service_time_s, "
            f"got {c.min()} .. {c.max()}"
        )
    if not np.all(np.isfinite(times_s) & (times_s > 0)):
        raise ValueError("every service_time_s must be a positive, finite number of seconds")
    return times_s, c
