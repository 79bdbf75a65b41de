"""A stream of latencies as RRL's estimator meets it, and how far off its estimates of a region are.

| symbol | here | meaning |
|---|---|---|
| c_t | `LatencyStream.numbers` | the configuration observed at decision t |
| r_t | `LatencyStream.costs_ms` | its mean latency over an interval of 100 requests, chance included |
| r(c) | `LatencyStream.expected_ms` | the expected latency of every configuration at that time |
| g(c) | `LatencyEstimator.estimate` | what the network expects |
| e_t | `errors` | mean over the region of abs(ln(g(c) / g(c_t)) - ln(r(c) / r(c_t))) |

The network enters RRL's eq. (1) as the ratio g(c) / g(c_t). So its error is that of the ratio, before it has
seen r_t. It trains on all samples so far after every fourth one, a round of at most 100 steps.

The load changes at every quarter of the stream, and at its half the machine gets slower for good. Most
configurations are near the best seen since the last change, some are drawn from the whole grid. All
optimisers meet the same stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import scenarios
from envs.scenarios.scenario import Scenario
from envs.scenarios.workloads import PerIntervalPoisson
from envs.simulated import PAPER_SPACE
from rrl.objective import MeanLatency
from rrl.region.estimator import EstimatorSettings, LatencyEstimator
from rrl.space import ConfigurationSpace

RADIUS = 2.0
RATES_PER_S = (10.0, 16.0)  # in turns, a quarter of the stream each
SLOWER = 1.25  # times, from the half of the stream on
EXPLORING = 0.3  # the share of decisions that draw from the whole grid
TRAIN_EVERY = 4  # samples
REQUESTS = 100
WORST_ERROR = 5.0  # an error of more than a factor of 148, or a network that is not a number, counts so much

MakeOptimizer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True, eq=False)
class LatencyStream:
    """What one machine shows, decision by decision."""

    space: ConfigurationSpace
    numbers: np.ndarray  # (decisions,) int
    rates_per_s: np.ndarray  # (decisions,)
    costs_ms: np.ndarray  # (decisions,)
    expected_ms: np.ndarray  # (quarters, size)

    @property
    def quarters(self) -> np.ndarray:
        """(decisions,) the quarter of each decision."""
        return 4 * np.arange(len(self.numbers)) // len(self.numbers)

    @classmethod
    def of_machine(cls, seed: int, decisions: int, knobs: str = PAPER_SPACE) -> LatencyStream:
        """The stream of the family's machine of this seed."""
        (scenario,) = scenarios(f"family:{seed}")
        space = ConfigurationSpace.parse(knobs)
        rng = np.random.default_rng([seed, 7])
        numbers, costs_ms, expected_ms = [], [], []
        bounds = [decisions * k // 4 for k in range(5)]
        for quarter in range(4):
            slowed = _slowed(scenario) if quarter >= 2 else scenario
            rate_per_s = RATES_PER_S[quarter % 2]
            found = ExpectedCosts(slowed, space, MeanLatency(), REQUESTS)
            expected_ms.append(found.mean_latency_ms(rate_per_s))
            count = bounds[quarter + 1] - bounds[quarter]
            visited, latencies_ms = _visited(slowed, space, rate_per_s, count, rng)
            numbers += visited
            costs_ms += latencies_ms
        rates = np.repeat([RATES_PER_S[k % 2] for k in range(4)], np.diff(bounds))
        return cls(space, np.array(numbers), rates, np.array(costs_ms), np.array(expected_ms))


def _slowed(scenario: Scenario) -> Scenario:
    return Scenario(scenario.machine.slower(SLOWER), scenario.name, cores=scenario.cores)


def _visited(
    scenario: Scenario, space: ConfigurationSpace, rate_per_s: float, count: int, rng: np.random.Generator
) -> tuple[list[int], list[float]]:
    """The configurations of one quarter, and the mean latency of an interval of each."""
    arrivals = PerIntervalPoisson(np.full(count + 1, rate_per_s), REQUESTS)
    env = scenario.environment(space, MeanLatency(), arrivals, REQUESTS)
    env.reset(seed=int(rng.integers(2**31)))
    numbers: list[int] = []
    latencies_ms: list[float] = []
    for _ in range(count):
        number = int(rng.integers(len(space)))
        if numbers and rng.random() >= EXPLORING:
            number = int(rng.choice(space.region(numbers[int(np.argmin(latencies_ms))], RADIUS)))
        interval = env.run(number)
        numbers.append(number)
        latencies_ms.append(interval.measurement.latency.mean_ms)
    return numbers, latencies_ms


class StudiedEstimator(LatencyEstimator):
    """The estimator with another optimiser, whose state goes on from round to round or begins anew."""

    def __init__(self, knobs: int, seed: int, make: MakeOptimizer, goes_on: bool) -> None:
        self._make, self._goes_on = make, goes_on
        self._optimizer: torch.optim.Optimizer | None = None
        super().__init__(knobs, EstimatorSettings(), seed)

    def _new_optimizer(self) -> torch.optim.Optimizer:
        if self._optimizer is None or not self._goes_on:
            self._optimizer = self._make([self._weights])
        return self._optimizer


def errors(stream: LatencyStream, estimator: LatencyEstimator) -> np.ndarray:
    """(decisions,) e_t; NaN before the first round of training, and where a region is a single point."""
    found = np.full(len(stream.numbers), np.nan)
    for t, number in enumerate(stream.numbers.tolist()):
        rate_per_s = float(stream.rates_per_s[t])
        region = stream.space.region(number, RADIUS)
        region = region[region != number]
        if estimator.trained and len(region):
            found[t] = _error(stream, estimator, t, region)
        estimator.add(rate_per_s, stream.space.features[number], float(stream.costs_ms[t]))
        if (t + 1) % TRAIN_EVERY == 0:
            estimator.train()
    return found


def without_network(stream: LatencyStream) -> np.ndarray:
    """(decisions,) e_t of an estimate that takes all of a region for alike."""
    found = np.full(len(stream.numbers), np.nan)
    for t, number in enumerate(stream.numbers.tolist()):
        region = stream.space.region(number, RADIUS)
        expected_ms = stream.expected_ms[stream.quarters[t]]
        others = region[region != number]
        if len(others):
            found[t] = _mean_error(np.log(expected_ms[others] / expected_ms[number]))
    return found


def _error(stream: LatencyStream, estimator: LatencyEstimator, t: int, region: np.ndarray) -> float:
    number = int(stream.numbers[t])
    asked = np.append(region, number)
    estimated_ms = estimator.estimate(float(stream.rates_per_s[t]), stream.space.features[asked])
    expected_ms = stream.expected_ms[stream.quarters[t]]
    with np.errstate(invalid="ignore", divide="ignore"):
        ours = np.log(estimated_ms[:-1] / estimated_ms[-1])
    return _mean_error(ours - np.log(expected_ms[region] / expected_ms[number]))


def _mean_error(deviations: np.ndarray) -> float:
    return float(np.mean(np.nan_to_num(np.minimum(np.abs(deviations), WORST_ERROR), nan=WORST_ERROR)))
