"""M/D_interf/c where a request that finds an instance at rest takes longer than one that had to wait.

An extension of SERF's model (`interference`; Yan et al., SC 2016, section IV-C), which has one service time
for a number of requests in service. On a real server the cores sleep and the caches are lost while an
instance rests. So there are two tables, both profiled:

| symbol | here | meaning |
|---|---|---|
| λ, c, p, W_q, S, W | as in `interference` | |
| s_n = 1/μ_n | `warm_s[n-1]` | seconds with n in service, of a request that took an instance over at once |
| r_n = 1/ν_n | `rested_s[n-1]` | the same, of a request that found its instance at rest |
| k | | requests in service that started from rest |
| p_{n,k} | `boundary` | probability of n requests in the system, k of them started from rest |
| R | `_rate_matrix` | p_{n+1} = p_n·R for n >= c, where p_n is the row of all k |

A request finds an instance at rest exactly if it need not wait. So M/M_interf/c becomes a chain of n and k:

| from (n, k) | rate | to |
|---|---|---|
| n < c | λ | (n+1, k+1) |
| n >= c | λ | (n+1, k) |
| n <= c | k·ν_n and (n-k)·μ_n | (n-1, k-1) and (n-1, k) |
| n > c | k·ν_c and (c-k)·μ_c | (n-1, k-1) and (n-1, k), as what waits takes over warm |

Beyond c the chain is a quasi-birth-death process (Neuts, 1981). k never rises there, so R is triangular and
has a closed form: its diagonal solves (c-k)·μ_c·x² - (λ + (c-k)·μ_c + k·ν_c)·x + λ = 0.

    W_q = ½·(1 + f(s)·g(ρ))·L_q/λ,   L_q = p_c·R·(I - R)⁻²·1       as Eq. (7)-(11), ρ = λ/(c·μ_c)
    S = Σ_{n<c} p_n·r_{n+1} + P(n >= c)·s_c                         as Eq. (12)
    W = W_q + S                                                     as Eq. (13)

With r = s this is SERF's model. With c = 1 it is exact for constant service times: the M/G/1 queue whose
busy periods begin with an exceptional service (Welch, 1964). Welch's ρ is that of warm requests, too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rrl.queueing.interference import f, g


class StartUpPrediction(NamedTuple):
    """Of one configuration; waiting and latency are infinite where warm requests overload it (ρ >= 1)."""

    utilisation: float  # ρ
    wait_probability: float  # that an arrival finds no instance at rest; 1 where unstable
    mean_wait_s: float  # W_q
    mean_service_s: float  # S; s_c where unstable
    mean_latency_s: float  # W


def predict_with_start_up(
    warm_s: np.ndarray, rested_s: np.ndarray, arrival_rate_per_s: float
) -> StartUpPrediction:
    """The mean latency of a configuration of c instances at a rate above 0.

    `warm_s`, `rested_s`: (c,) seconds with 1 .. c requests in service. ValueError where shapes or values are
    none of that.
    """
    warm_s, rested_s = _checked(warm_s), _checked(rested_s)
    rate_per_s, c = float(arrival_rate_per_s), len(warm_s)
    if rested_s.shape != warm_s.shape:
        raise ValueError(f"warm_s and rested_s must be alike, got shapes {warm_s.shape} and {rested_s.shape}")
    if not 0 < rate_per_s < np.inf:
        raise ValueError(f"arrival_rate_per_s must be above 0 and finite, got {arrival_rate_per_s!r}")
    rho = rate_per_s * warm_s[-1] / c
    if rho >= 1:
        return StartUpPrediction(rho, 1.0, np.inf, float(warm_s[-1]), np.inf)
    r = _rate_matrix(warm_s[-1], rested_s[-1], rate_per_s, c)
    sums = np.linalg.inv(np.eye(c + 1) - r)  # The sum of all powers of R.
    boundary = _boundary(warm_s, rested_s, rate_per_s, r, sums)
    below, at_c = [row.sum() for row in boundary[:c]], boundary[c]
    wait_probability = float((at_c @ sums).sum())
    waiting = float((at_c @ r @ sums @ sums).sum())  # L_q
    correction = 0.5 * (1 + float(f(np.array(c))) * float(g(np.array(rho))))
    mean_wait_s = correction * waiting / rate_per_s
    mean_service_s = float(np.dot(below, rested_s)) + wait_probability * float(warm_s[-1])
    return StartUpPrediction(rho, wait_probability, mean_wait_s, mean_service_s, mean_wait_s + mean_service_s)


def _rate_matrix(warm_s: float, rested_s: float, rate_per_s: float, c: int) -> np.ndarray:
    """R, (c+1, c+1): the least solution of λI + R·A_1 + R²·A_2 = 0, diagonal by diagonal.

    A_2 leads down: (c-k)·μ_c from k to k, k·ν_c from k to k-1. A_1 is minus the sum of all rates out.
    """
    k = np.arange(c + 1)
    to_same, to_less = (c - k) / warm_s, k / rested_s
    out = rate_per_s + to_same + to_less
    r = np.diag(2 * rate_per_s / (out + np.sqrt(out**2 - 4 * rate_per_s * to_same)))
    for distance in range(1, c + 1):
        for high in range(distance, c + 1):
            low = high - distance
            squared = r[high, low + 1 : high + 1] @ r[low + 1 : high + 1, low + 1]  # (R²)[high, low+1]
            between = r[high, low + 1 : high] @ r[low + 1 : high, low]
            gain = to_same[low] * between + to_less[low + 1] * squared
            r[high, low] = gain / (out[low] - to_same[low] * (r[high, high] + r[low, low]))
    return r


def _boundary(
    warm_s: np.ndarray, rested_s: np.ndarray, rate_per_s: float, r: np.ndarray, sums: np.ndarray
) -> list[np.ndarray]:
    """p_{n,k} for n = 0 .. c, each (n+1,), from the balance of every state; all probabilities sum to 1."""
    c = len(warm_s)
    first = np.cumsum([0, *range(1, c + 2)])  # the place of (n, 0)
    balance = np.zeros((first[-1], first[-1]))  # [to, from]: rates

    def flow(source: tuple[int, int], target: tuple[int, int], per_s: float) -> None:
        start = first[source[0]] + source[1]
        balance[start, start] -= per_s
        balance[first[target[0]] + target[1], start] += per_s

    for n in range(c + 1):
        for k in range(n + 1):
            if n < c:
                flow((n, k), (n + 1, k + 1), rate_per_s)
            if k:
                flow((n, k), (n - 1, k - 1), k / rested_s[n - 1])
            if n > k:
                flow((n, k), (n - 1, k), (n - k) / warm_s[n - 1])
    # Level c also loses to level c+1, and gets back what comes down from there, p_c·R·A_2.
    rested = np.arange(c + 1)
    down = np.diag((c - rested) / warm_s[-1]) + np.diag(rested[1:] / rested_s[-1], -1)
    level = slice(first[c], first[c + 1])
    balance[level, level] += (r @ down).T - rate_per_s * np.eye(c + 1)
    total = np.ones(first[-1])
    total[level] = sums.sum(axis=1)  # all levels from c on
    balance[0] = total  # One of the balance equations follows from the others.
    p = np.linalg.solve(balance, np.eye(len(total))[0])
    return [p[first[n] : first[n + 1]] for n in range(c + 1)]


def _checked(times_s: np.ndarray) -> np.ndarray:
    times_s = np.asarray(times_s, dtype=float)
    if times_s.ndim != 1 or not len(times_s) or not np.all(np.isfinite(times_s) & (times_s > 0)):
        raise ValueError(
            f"service times must be a row of positive, finite seconds, one for each of 1 .. c in service, "
            f"got {times_s!r}"
        )
    return times_s
