"""An expectation that is told what configurations cost, for the tests of what follows of that."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rrl.measurement import Measurement


class ToldCosts:
    """Costs in ms by configuration number, each known to `sd`.

    `then` is how many times as much all of them would have cost in the interval learned last, `now` how many
    times as much they are expected to cost next. `kept_ms` are costs of some that differ if they are kept,
    `sds` those of some that are known otherwise.
    """

    def __init__(
        self,
        costs_ms: Mapping[int, float],
        sd: float = 0.1,
        capacities_per_s: Mapping[int, float] | None = None,
    ) -> None:
        self.costs_ms, self.sd = dict(costs_ms), sd
        self.capacities = dict(capacities_per_s or {})
        self.kept_ms: dict[int, float] = {}
        self.sds: dict[int, float] = {}
        self.then = self.now = 1.0
        self.p95_over_cost = 2.0
        self.rate_per_s = 40.0
        self.known = True
        self.passed_s = 0.0
        self.learned: list[tuple[int, Measurement]] = []

    def learn(self, number: int, measurement: Measurement) -> None:
        self.learned.append((number, measurement))

    def passed(self, duration_s: float) -> None:
        self.passed_s += duration_s

    def log_costs(
        self, numbers: np.ndarray, measurement: Measurement, beside: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        assert measurement is self.learned[-1][1]
        return np.log(self._costs_ms(numbers) * self.then), self._sds(numbers, beside)

    def log_costs_ahead(
        self, numbers: np.ndarray, beside: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        return np.log(self._costs_ms(numbers) * self.now), self._sds(numbers, beside)

    def log_costs_kept(self, numbers: np.ndarray, beside: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        costs_ms = [self.kept_ms.get(number, self.costs_ms[number]) for number in numbers.tolist()]
        return np.log(self.now * np.array(costs_ms)), self._sds(numbers, beside)

    def p95s_ms(self, numbers: np.ndarray, measurement: Measurement) -> np.ndarray:
        return np.asarray(self.p95_over_cost * self._costs_ms(numbers) * self.then)

    def capacities_per_s(self, numbers: np.ndarray) -> np.ndarray:
        return np.array([self.capacities.get(number, 100.0) for number in numbers.tolist()])

    def bears(self, numbers: np.ndarray, share: float = 1.0) -> np.ndarray:
        return np.asarray(share * self.capacities_per_s(numbers) > self.rate_per_s)

    def _costs_ms(self, numbers: np.ndarray) -> np.ndarray:
        return np.array([self.costs_ms[number] for number in numbers.tolist()])

    def _sds(self, numbers: np.ndarray, beside: int | None) -> np.ndarray:
        sds = [self.sds.get(number, self.sd) for number in numbers.tolist()]
        return np.where(numbers == beside, 0.0, sds)
