"""How requests come to a server, and so what each of its configurations would make of them.

| load | requests come | so a replay needs |
|---|---|---|
| `OpenLoad` | as users send them, whatever is in force | their arrivals |
| `OpenLoadToLimit` | the same, and faster until the p95 reaches its limit (objective `capacity`) | the same |
| `ClosedLoad` | each once its client has its last answer | how many clients, and their think time |

K is the number of configurations asked about, by their `numbers`.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Protocol

import numpy as np

from rrl.belief.load.forecast import MAX_POISSON_DISPERSION, LoadForecast
from rrl.belief.load.rate_at_limit import rate_at_limit
from rrl.belief.remembered import USUAL_INTERVALS
from rrl.belief.replay import Latencies, Replay
from rrl.measurement import Measurement
from rrl.objective import Capacity, Objective
from rrl.queueing.windows import Windows


class OfferedLoad(Protocol):
    """What a belief asks of a load."""

    waits_for_answers: bool
    """True for a load that every configuration bears, as it sends no more than is answered."""
    comes_as_it_came: bool
    """True for a load of users; it may come again as it came."""

    def supposing(self, forecast: LoadForecast, objective: Objective, times: float) -> OfferedLoad:
        """So many times of it, for another objective, by its own forecast of arrivals."""

    def learn(self, measurement: Measurement) -> None:
        """Takes in an interval in which requests came."""

    def replayed(
        self, numbers: np.ndarray, scale: np.ndarray, windows: Windows, sharing: bool, ratio: np.ndarray
    ) -> Latencies:
        """(K, windows) under service times `scale` (K,) times as long.

        `ratio` (K, 1): of latencies to replayed ones, where an answer depends on them. They are not in it.
        """

    def as_learned_last(
        self, numbers: np.ndarray, scale: np.ndarray, windows: Windows, sharing: bool
    ) -> Latencies:
        """(K, windows) of stretches that the interval learned last may have been."""

    def with_error(self, found: Latencies, ratio: np.ndarray) -> Latencies:
        """The same once latencies are `ratio` (K, 1) times as long."""

    def screened(self, numbers: np.ndarray, scale: np.ndarray, windows: Windows) -> Latencies:
        """(K, 1) of a typical window, roughly. Its mean latency may be what else stands for the cost."""


class OpenLoad:
    """Requests come as users send them."""

    waits_for_answers = False
    comes_as_it_came = True

    def __init__(self, replay: Replay, forecast: LoadForecast) -> None:
        self._replay, self._forecast = replay, forecast

    def supposing(self, forecast: LoadForecast, objective: Objective, times: float) -> OfferedLoad:
        """The forecast has the arrivals of so many times the load."""
        return offered_load(self._replay, forecast, objective, None)

    def learn(self, measurement: Measurement) -> None:
        """The forecast of arrivals learns all there is."""

    def replayed(
        self, numbers: np.ndarray, scale: np.ndarray, windows: Windows, sharing: bool, ratio: np.ndarray
    ) -> Latencies:
        return self._replay.replayed(numbers, scale, windows, sharing)

    def as_learned_last(
        self, numbers: np.ndarray, scale: np.ndarray, windows: Windows, sharing: bool
    ) -> Latencies:
        return self._replay.replayed(numbers, scale, windows, sharing)

    def with_error(self, found: Latencies, ratio: np.ndarray) -> Latencies:
        return found._replace(mean_ms=ratio * found.mean_ms, p95_ms=ratio * found.p95_ms)

    def screened(self, numbers: np.ndarray, scale: np.ndarray, windows: Windows) -> Latencies:
        poisson = self._forecast.dispersion <= MAX_POISSON_DISPERSION
        requests = np.diff(windows.bounds)
        rates_per_s = requests / np.diff(windows.edge_s)
        typical_per_s = float(requests @ rates_per_s / requests.sum())  # at which a request comes
        return self._replay.screened(numbers, scale, windows, typical_per_s, poisson)


class OpenLoadToLimit(OpenLoad):
    """The same arrivals, only faster: `answered_per_s` is the rate at which the p95 reaches the limit."""

    comes_as_it_came = False

    def __init__(self, replay: Replay, forecast: LoadForecast, slo_p95_ms: float) -> None:
        super().__init__(replay, forecast)
        self._slo_p95_ms = slo_p95_ms

    def replayed(
        self, numbers: np.ndarray, scale: np.ndarray, windows: Windows, sharing: bool, ratio: np.ndarray
    ) -> Latencies:
        def p95_ms(faster: Windows) -> np.ndarray:
            return ratio * self._replay.replayed(numbers, scale, faster, sharing).p95_ms

        found = self._replay.replayed(numbers, scale, windows, sharing)
        offered_per_s = found.completions / np.diff(windows.edge_s)
        borne_per_s = self._replay.capacity_per_s[numbers][:, None] / np.maximum(scale, 1e-9)[:, None]
        per_s = rate_at_limit(p95_ms, windows, offered_per_s, borne_per_s, self._slo_p95_ms)
        return found._replace(answered_per_s=per_s)

    def with_error(self, found: Latencies, ratio: np.ndarray) -> Latencies:
        """At these rates the p95 is the limit."""
        limit_ms = np.full_like(found.p95_ms, self._slo_p95_ms)
        return super().with_error(found, ratio)._replace(p95_ms=limit_ms)

    def screened(self, numbers: np.ndarray, scale: np.ndarray, windows: Windows) -> Latencies:
        bears_per_s = self._replay.capacity_per_s[numbers] / np.maximum(scale, 1e-9)
        apart_ms = (1e3 / np.maximum(bears_per_s, 1e-9))[:, None]
        return Latencies(apart_ms, apart_ms, np.ones_like(apart_ms), bears_per_s[:, None])


class ClosedLoad:
    """Requests of so many clients at once; see `rrl.queueing.closed_loop`."""

    waits_for_answers = True
    comes_as_it_came = False

    def __init__(self, replay: Replay, forecast: LoadForecast, concurrency: int) -> None:
        self._replay, self._forecast, self._concurrency = replay, forecast, concurrency
        self._think_times_s: deque[float] = deque(maxlen=USUAL_INTERVALS)  # by interval

    def supposing(self, forecast: LoadForecast, objective: Objective, times: float) -> OfferedLoad:
        """So many times as many clients, who take as long."""
        other = ClosedLoad(self._replay, forecast, max(1, round(times * self._concurrency)))
        other._think_times_s.extend(self._think_times_s)
        return other

    def learn(self, measurement: Measurement) -> None:
        """Z = N / X - R, by the interactive response time law."""
        if measurement.completions:
            answers = measurement.completions + measurement.failures
            turn_s = self._concurrency * measurement.duration_s / answers
            self._think_times_s.append(max(0.0, turn_s - 1e-3 * measurement.latency.mean_ms))

    @property
    def think_s(self) -> float:
        """What is usual."""
        return median(self._think_times_s) if self._think_times_s else 0.0

    def replayed(
        self, numbers: np.ndarray, scale: np.ndarray, windows: Windows, sharing: bool, ratio: np.ndarray
    ) -> Latencies:
        return self._in_closed_loop(numbers, scale, windows, self.think_s)

    def as_learned_last(
        self, numbers: np.ndarray, scale: np.ndarray, windows: Windows, sharing: bool
    ) -> Latencies:
        think_s = self._think_times_s[-1] if self._think_times_s else 0.0
        return self._in_closed_loop(numbers, scale, windows, think_s)

    def with_error(self, found: Latencies, ratio: np.ndarray) -> Latencies:
        """Clients that wait longer send less."""
        mean_ms, think_ms = ratio * found.mean_ms, 1e3 * self.think_s
        per_s = found.answered_per_s * (found.mean_ms + think_ms) / np.maximum(mean_ms + think_ms, 1e-9)
        return found._replace(mean_ms=mean_ms, p95_ms=ratio * found.p95_ms, answered_per_s=per_s)

    def screened(self, numbers: np.ndarray, scale: np.ndarray, windows: Windows) -> Latencies:
        """By one stretch as slow as all of them on average: a closed loop needs no arrivals."""
        slowness = np.array([float(windows.slowness.mean())])
        one = windows._replace(edge_s=windows.edge_s[[0, -1]], slowness=slowness)
        return self._in_closed_loop(numbers, scale, one, self.think_s)

    def _in_closed_loop(
        self, numbers: np.ndarray, scale: np.ndarray, windows: Windows, think_s: float
    ) -> Latencies:
        clients = max(1, round(self._concurrency * self._forecast.items_per_request))
        return self._replay.in_closed_loop(numbers, scale, windows, clients, think_s)


def offered_load(
    replay: Replay, forecast: LoadForecast, objective: Objective, concurrency: int | None
) -> OfferedLoad:
    """`concurrency`: that of a closed loop; None: an open one."""
    if concurrency is not None:
        return ClosedLoad(replay, forecast, concurrency)
    if isinstance(objective, Capacity):
        return OpenLoadToLimit(replay, forecast, objective.slo_p95_ms)
    return OpenLoad(replay, forecast)
