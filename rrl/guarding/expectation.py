"""What a guard may ask of what is believed of the server, and what follows of two configurations. Pure logic.

Two configurations that met different minutes are compared by what each is expected to cost under the same
arrivals, on the machine as it was then or is now. So neither a burst nor a slow machine is anybody's fault.

| symbol | here | meaning |
|---|---|---|
| m, s | `log_costs`, `log_costs_ahead`, `log_costs_kept` | mean and sd of ln of what a configuration costs |
| m_a - m_b, s_ab | | the same of ln of the ratio of two; what both share drops out |
| exp(m_a - m_b ± z s_ab) | `LikeWithLike.gain` | how many times less b costs than a |
| z | `SIGMAS` | quantile of the normal distribution for `EXPECTED_CONFIDENCE` |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple, Protocol

import numpy as np

from rrl.guarding.gain import EXPECTED_CONFIDENCE, Gain
from rrl.measurement import Measurement

SIGMAS = NormalDist().inv_cdf((1 + EXPECTED_CONFIDENCE) / 2)  # z
MAX_LOG = 60.0  # a cost beyond any is not told apart from another one


class CostExpectation(Protocol):
    """What is believed of the server's configurations, given by their numbers."""

    @property
    def known(self) -> bool:
        """False until something was learned to expect anything by."""
        ...

    def learn(self, number: int, measurement: Measurement) -> None:
        """Takes in an interval that has no gap."""
        ...

    def passed(self, duration_s: float) -> None:
        """In this time nothing came, or it is not known what did."""
        ...

    def log_costs(
        self, numbers: np.ndarray, measurement: Measurement, beside: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(K,), (K,): m and s of what each would have cost in the interval learned last.

        With the arrivals of this measurement, on the machine as it was then. s is of the ratio to the cost of
        `beside`, one of these configurations, if it is given.
        """
        ...

    def p95s_ms(self, numbers: np.ndarray, measurement: Measurement) -> np.ndarray:
        """(K,) the p95 that each would have had in it."""
        ...

    def log_costs_ahead(
        self, numbers: np.ndarray, beside: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same over the load expected next, on the machine as it is now."""
        ...

    def log_costs_kept(self, numbers: np.ndarray, beside: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The same while it is kept, of the load to come or, as likely, of all that came lately."""
        ...

    def capacities_per_s(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) the requests per s that each is expected to bear at most, on the machine as it is now."""
        ...

    def bears(self, numbers: np.ndarray, share: float = 1.0) -> np.ndarray:
        """(K,) bool: each is expected to bear the load expected next with this share of its capacity."""
        ...


class _Kept(NamedTuple):
    """What is expected of a configuration while it is kept."""

    log_cost: float
    gain: Gain  # over what it is compared with


class LikeWithLike:
    """Compares configurations by what is expected of them now. Remembers the answers until it learns more."""

    def __init__(self, expectation: CostExpectation | None) -> None:
        """Without an expectation nothing is `known`, and nothing else may be asked."""
        self._expectation = expectation
        self._forget()

    @property
    def known(self) -> bool:
        return self._expectation is not None and self._expectation.known

    def learn(self, number: int, measurement: Measurement) -> None:
        if self._expectation is not None:
            self._forget()
            self._expectation.learn(number, measurement)

    def passed(self, duration_s: float) -> None:
        """An interval passed of which nothing is learned."""
        if self._expectation is not None:
            self._forget()
            self._expectation.passed(duration_s)

    def gain(self, of: int, over: int) -> Gain:
        """How many times less `over` is expected to cost than `of`, under the load to come."""
        if (of, over) not in self._gains:
            m, s = self._asked.log_costs_ahead(np.array([of, over]), beside=of)
            self._gains[of, over] = gain_of_logs(float(m[0] - m[1]), float(s[1]))
        return self._gains[of, over]

    def gain_kept(self, of: int, over: int) -> Gain:
        """The same of what may come while either is kept."""
        return self._kept((over,), of)[over].gain

    def costs_kept(self, numbers: Sequence[int], beside: int) -> tuple[float, ...]:
        """The cost expected of each while it is kept. All are asked for together with `beside`."""
        found = self._kept(numbers, beside)
        return tuple(math.exp(found[number].log_cost) for number in numbers)

    def cheapest(self, numbers: Sequence[int]) -> int:
        """The one of lowest m under the load to come; the lowest number among equals."""
        among = tuple(sorted(numbers))
        if among not in self._cheapest:
            m, _ = self._asked.log_costs_ahead(np.array(among))
            self._cheapest[among] = among[int(np.argmin(m))]
        return self._cheapest[among]

    def cheapest_kept(self, numbers: Sequence[int], beside: int) -> int:
        """The same of what may come while it is kept. All are asked for together with `beside`."""
        found = self._kept(numbers, beside)
        return min(sorted(numbers), key=lambda number: found[number].log_cost)

    def cost_beside(self, number: int, measurement: Measurement) -> tuple[float, float]:
        """m and s of what a configuration would have cost in the interval learned last."""
        m, s = self._asked.log_costs(np.array([number]), measurement)
        return float(m[0]), float(s[0])

    def p95_beside_ms(self, number: int, measurement: Measurement) -> float:
        """The p95 that a configuration would have had in the interval learned last."""
        return float(self._asked.p95s_ms(np.array([number]), measurement)[0])

    def capacity_per_s(self, number: int) -> float:
        return float(self._asked.capacities_per_s(np.array([number]))[0])

    def bears(self, number: int, share: float = 1.0) -> bool:
        return bool(self._asked.bears(np.array([number]), share)[0])

    def _forget(self) -> None:
        self._gains: dict[tuple[int, int], Gain] = {}
        self._kept_beside: dict[int, dict[int, _Kept]] = {}
        self._cheapest: dict[tuple[int, ...], int] = {}

    def _kept(self, numbers: Sequence[int], beside: int) -> Mapping[int, _Kept]:
        """What is expected of these, and maybe of others, with the gains over `beside`."""
        found = self._kept_beside.setdefault(beside, {})
        if not found.keys() >= {*numbers}:
            asked = sorted({*numbers, beside} - found.keys() | {beside})
            m, s = self._asked.log_costs_kept(np.array(asked), beside=beside)
            own = m[asked.index(beside)]
            for number, log_cost, sd in zip(asked, m.tolist(), s.tolist(), strict=True):
                found[number] = _Kept(log_cost, gain_of_logs(own - log_cost, sd))
        return found

    @property
    def _asked(self) -> CostExpectation:
        assert self._expectation is not None
        return self._expectation


def gain_of_logs(log: float, sd: float) -> Gain:
    """The gain by the mean and the standard deviation of its logarithm."""
    low, middle, high = (min(max(log + z * sd, -MAX_LOG), MAX_LOG) for z in (-SIGMAS, 0.0, SIGMAS))
    return Gain(math.exp(low), math.exp(middle), math.exp(high))
