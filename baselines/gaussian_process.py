"""A Gaussian-process bandit over (load, configuration): the strongest generic rival.

It needs no model of a server. The regression is scikit-learn's.

| from | what |
|---|---|
| Srinivas et al., "Gaussian Process Optimization in the Bandit Setting", ICML 2010 | GP-UCB |
| Krause and Ong, "Contextual Gaussian Process Bandit Optimization", NIPS 2011 | the load as the context |

| symbol | here | meaning |
|---|---|---|
| x | `_inputs` | (n, 1 + features) ln(arrival rate), then ln of the knobs' values and threads, in [0, 1] |
| y | `_targets` | (n,) ln(cost), standardised; at most ln(`cost_cap`) above the lowest |
| k(x, x') | `_kernel` | a · Matérn of smoothness 3/2 with a length scale for each input (ARD) |
| σ² | the last of `_theta` | variance of the noise of y |
| θ | `_theta` | ln of (a, length scales, σ²): maximum a posteriori under log-normal priors |
| m(x), s(x) | `mean, deviation` | posterior mean and standard deviation of the noiseless y |
| κ_n | `_kappa` | weight of s in the acquisition m - κ_n s, which is minimised; it falls as 1/sqrt(n) |

The first decision is the configuration found in force. The next go through a space-filling design, a
scrambled Halton sequence. From then on each transition sets the next decision: the configuration of lowest
acquisition at the present load. That load is the mean ln(rate) of the last few intervals.

Two choices are made for servers. The number of threads in all is an input of its own, because latency jumps
where it exceeds what the machine has, and length scales only stretch along the axes. And κ_n falls, so that
exploring comes to an end. Exploring is dear where a configuration is unstable.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.stats import qmc
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern, WhiteKernel

from baselines.scaling import LOWEST_COST, LOWEST_RATE_PER_S
from rrl.agent import Agent, Proposable, Task, Transition, number_in_force
from rrl.knobs import THREAD_KNOBS
from rrl.seeding import Seed, whole_seed
from rrl.space import ConfigurationSpace


@dataclass(frozen=True)
class GaussianProcessSettings:
    """Defaults chosen on the invented machines 0 to 7 (`Machine.invent`), which serve for tuning only.

    They had the least excess over the best configuration's expected cost, in one run of 120 to 200 decisions
    a machine. The loads were 14 requests/s and the steps of RRL's released script.
    """

    design: int = 5  # first decisions, the configuration found included
    kappa: float = 2.0  # κ_n up to n = 10; 2.5 sticks to a bad configuration less often and costs more
    lowest_kappa: float = 0.3  # κ_n never falls below this
    cost_cap: float = 100.0  # costs above so many times the lowest count as this
    load_window: int = 5  # intervals whose mean is the present load
    samples: int = 200  # at most; then the oldest sample of the most measured configuration goes
    refit_growth: float = 1.3  # θ is fitted anew when the samples have grown by this factor
    refit_steps: int = 30  # of L-BFGS, at most
    amplitude: float = 1.0  # median of the prior of a, in variances of y
    load_length: float = 1.5  # median of the prior of the load's length scale, in ln(rate)
    knob_length: float = 0.7  # median of the prior of a knob's length scale, in shares of its range
    noise: float = 0.1  # median of the prior of σ, in standard deviations of y
    prior_width: float = 0.7  # standard deviation of ln(length scale); twice that of ln(a) and ln(σ²)

    def __post_init__(self) -> None:
        for name, least in (("design", 2), ("samples", 2), ("load_window", 1), ("refit_steps", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not (self.cost_cap > 1 and self.refit_growth > 1):
            raise ValueError(
                f"cost_cap and refit_growth must exceed 1, got {self.cost_cap:g} and {self.refit_growth:g}"
            )
        if not 0 <= self.lowest_kappa <= self.kappa < math.inf:
            raise ValueError(
                "lowest_kappa must lie between 0 and kappa, "
                f"got {self.lowest_kappa:g} and kappa {self.kappa:g}"
            )
        for name in ("amplitude", "load_length", "knob_length", "noise", "prior_width"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive, got {getattr(self, name):g}")


class Sample(NamedTuple):
    number: int
    log_rate: float
    log_cost: float


class GaussianProcessBandit(Agent):
    """Minimises the lower confidence bound of the cost at the present load.

    An interval without a cost, or with a gap, is repeated. An interval under a configuration that the guard
    chose is a sample like any other. What the target refused twice is not proposed again. What the guard
    refuses is not proposed while it does.
    """

    def __init__(self, task: Task, seed: Seed = 0, settings: GaussianProcessSettings | None = None) -> None:
        self.space = task.space
        self.settings = settings or GaussianProcessSettings()
        self._features = _features(task.space)
        self._proposable = Proposable(task)
        self._design = self._space_filling(np.random.default_rng(whole_seed(seed)))
        self._samples: list[Sample] = []
        self._loads: deque[float] = deque(maxlen=self.settings.load_window)  # ln(rate), the newest last
        self._seen = 0  # samples so far, the dropped ones included
        self._next_fit = 0
        self._next: int | None = None  # None: the configuration found
        self._expected_best: int | None = None  # None: the design is not over
        self._prior = self._prior_medians()
        self._prior_widths = self._widths()
        self._theta = self._prior

    def act(self, observation: np.ndarray) -> np.ndarray:
        number = number_in_force(observation, self.space) if self._next is None else self._next
        return self.space.action(number)

    def recommended(self) -> int | None:
        """The configuration of the lowest expected cost at the present load; None while the design lasts."""
        return self._expected_best

    def update(self, transition: Transition) -> None:
        if not transition.has_cost:
            return
        sample = Sample(
            self.space.number_of_action(transition.action),
            math.log(max(transition.measurement.arrival_rate_per_s, LOWEST_RATE_PER_S)),
            math.log(max(transition.cost, LOWEST_COST)),
        )
        self._add(sample)
        barred = ~self._proposable.admitted
        while self._design and barred[self._design[-1]]:
            self._design.pop()
        self._next = self._design.pop() if self._design else self._lowest_confidence_bound(barred)

    def refused(self, number: int) -> None:
        self._proposable.refused(number)

    def keep_off(self, numbers: frozenset[int]) -> None:
        self._proposable.kept_off = numbers

    def _add(self, sample: Sample) -> None:
        self._seen += 1
        self._loads.append(sample.log_rate)
        self._samples.append(sample)
        if len(self._samples) > self.settings.samples:
            numbers = [known.number for known in self._samples]
            most = int(np.bincount(numbers).argmax())
            del self._samples[numbers.index(most)]

    def _lowest_confidence_bound(self, barred: np.ndarray) -> int:
        """argmin_c m(x) - κ_n s(x) at the present load. It notes argmin_c m(x), which is recommended."""
        x, y = self._inputs(), self._targets()
        if self._seen >= self._next_fit:
            self._next_fit = math.ceil(self._seen * self.settings.refit_growth)
            self._theta = self._fitted(x, y)
        process = GaussianProcessRegressor(
            _kernel(self._theta[:-1]), alpha=math.exp(self._theta[-1]), optimizer=None
        ).fit(x, y)
        load = np.full((len(self.space), 1), np.mean(self._loads))
        mean, deviation = process.predict(np.hstack([load, self._features]), return_std=True)
        mean[barred] = np.inf
        self._expected_best = int(np.argmin(mean))
        return int(np.argmin(mean - self._kappa() * deviation))

    def _kappa(self) -> float:
        return max(self.settings.lowest_kappa, self.settings.kappa * min(1.0, math.sqrt(10 / self._seen)))

    def _inputs(self) -> np.ndarray:
        numbers, log_rates, _ = zip(*self._samples, strict=True)
        return np.column_stack([log_rates, self._features[list(numbers)]])

    def _targets(self) -> np.ndarray:
        """Standardised over configurations. Over samples, the mean would be near the most measured one."""
        log_costs = np.asarray([sample.log_cost for sample in self._samples])
        capped = np.minimum(log_costs, log_costs.min() + math.log(self.settings.cost_cap))
        _, which = np.unique([sample.number for sample in self._samples], return_inverse=True)
        means = np.bincount(which, capped) / np.bincount(which)
        deviation = float(means.std())
        result: np.ndarray = (capped - means.mean()) / (deviation if deviation > 1e-9 else 1.0)
        return result

    def _fitted(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """θ of the highest posterior density, searched from the present one on.

        The regressor's own optimiser knows no priors, and warns where a parameter lies on a bound.
        """
        kernel = _kernel(self._theta[:-1]) + WhiteKernel(math.exp(self._theta[-1]))
        process = GaussianProcessRegressor(kernel, optimizer=None).fit(x, y)

        def minus_log_posterior(theta: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = process.log_marginal_likelihood(theta, eval_gradient=True, clone_kernel=False)
            z = (theta - self._prior) / self._prior_widths
            return 0.5 * float(z @ z) - value, z / self._prior_widths - gradient

        reach = 5 * self._prior_widths
        found = minimize(
            minus_log_posterior,
            self._theta,
            jac=True,
            method="L-BFGS-B",
            bounds=np.column_stack([self._prior - reach, self._prior + reach]),
            options={"maxiter": self.settings.refit_steps},
        )
        theta: np.ndarray = found.x
        return theta

    def _prior_medians(self) -> np.ndarray:
        s = self.settings
        knob_lengths = [s.knob_length] * self._features.shape[1]
        return np.log([s.amplitude, s.load_length, *knob_lengths, s.noise**2])

    def _widths(self) -> np.ndarray:
        widths = np.full(len(self._prior), self.settings.prior_width)
        widths[[0, -1]] *= 2
        return widths

    def _space_filling(self, rng: np.random.Generator) -> list[int]:
        """The configurations nearest to the design's points in the unit cube of the knobs."""
        knobs = self._features[:, : len(self.space.knobs)]
        points = qmc.Halton(knobs.shape[1], rng=rng).random(self.settings.design - 1)
        distances = ((knobs - points[:, None, :]) ** 2).sum(axis=-1)
        distances[:, ~self._proposable.mask] = np.inf
        return [int(number) for number in distances.argmin(axis=1)]


def _kernel(theta: np.ndarray) -> Kernel:
    """k of ln(a) and ln(length scales)."""
    amplitude, *lengths = np.exp(theta)
    return ConstantKernel(amplitude) * Matern(lengths, nu=1.5)


def _features(space: ConfigurationSpace) -> np.ndarray:
    """(size, features) in [0, 1]: ln(value) of each knob, and ln(threads) where several knobs multiply to it.

    Of a knob that may be 0 it is ln(1 + value).
    """
    logarithms = np.log(space.values + (space.values.min(axis=0) == 0))
    multiplied = [k for k, name in enumerate(space.names) if name in THREAD_KNOBS]
    if len(multiplied) > 1:
        logarithms = np.column_stack([logarithms, logarithms[:, multiplied].sum(axis=1)])
    low, high = logarithms.min(axis=0), logarithms.max(axis=0)
    result: np.ndarray = (logarithms - low) / np.where(high > low, high - low, 1.0)
    return result
