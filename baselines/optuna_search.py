"""Optuna's samplers as an engineer would put them to work on a live server: search, then exploit.

Both samplers run with Optuna's defaults, which begin with 10 random trials.

| sampler | method | source |
|---|---|---|
| `tpe` | multivariate Parzen estimators | Bergstra et al., NIPS 2011; Falkner et al., ICML 2018 |
| `gp` | Gaussian process, log expected improvement | Ament et al., NeurIPS 2023 |

Optuna knows trials of one fixed function and no load. An engineer adds this to run it for long:

- One trial is one interval, and its value is the logarithm of the cost. Each knob is an integer, its value's
  index.
- The search ends when its best trial has not been improved for `patience` trials. Then the configuration with
  the lowest mean cost stays in force. It goes on being measured, so that one which was only lucky loses its
  place.
- A study belongs to the load at which it was opened. The present load is the median rate of the last
  `rate_window` intervals.
- Once the load is more than a factor `rate_factor` away, the study nearest to the new load goes on. Where
  none is within the factor, a new one opens. Its first trials are the best configurations of the study
  before.
- An interval whose own rate is that far off is no trial.
- A configuration that must not be proposed, or was refused twice, fails unmeasured. The sampler is asked
  again.

The settings are ours unless a source is named. Of 5, 8, 10, 12, 15, 20 and 30 trials, this `patience` kept
the best configurations, with TPE on the random machines of `scripts/bench triton-simulated`. The default
agent's settings were chosen on the same machines. Among the 1,000 configurations of the family it is between
the others: whole runs take 4.3 times the best's latency, with 5 trials 3.5 times and with 30 trials 4.9.
`handed_on` and `rate_factor` were compared with TPE over 400 decisions on the invented machines 0 to 5
(`Machine.invent`), which serve for tuning only.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from baselines.scaling import LOWEST_COST, LOWEST_RATE_PER_S
from rrl.agent import Agent, Proposable, Task, Transition
from rrl.seeding import Seed, whole_seed
from rrl.space import ConfigurationSpace

optuna.logging.set_verbosity(optuna.logging.WARNING)

Sampler = Literal["tpe", "gp"]
MOST_ASKED = 100  # trials in a row that are excluded


@dataclass(frozen=True)
class OptunaSettings:
    patience: int = 15  # trials in a row, the guard's included, without a better one: a search ends
    handed_on: int = 10  # best configurations of the study before, which a new one tries first
    startup_trials: int = 10  # at random before the sampler has a say; Optuna's default
    rate_factor: float = 1.5  # a load further away is another one; at 1.25 searches cost more than they won
    rate_window: int = 5  # intervals; the median of 5 intervals of 100 requests is known to within 5 %

    def __post_init__(self) -> None:
        for name in ("patience", "handed_on", "startup_trials", "rate_window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 1 < self.rate_factor < math.inf:
            raise ValueError(f"rate_factor must exceed 1, got {self.rate_factor:g}")


class OptunaSearch(Agent):
    """Searches with one study a load, then stays with the best it found there.

    The sampler is asked for the next configuration when a transition arrives. So replaying a journal resumes
    exactly. An interval without a cost, or with a gap, is repeated. An interval under a configuration that
    the guard chose is a trial of its own, and the proposal is dropped.
    """

    def __init__(
        self, task: Task, sampler: Sampler, seed: Seed = 0, settings: OptunaSettings | None = None
    ) -> None:
        if sampler not in ("tpe", "gp"):
            raise ValueError(f"unknown sampler {sampler!r}; known: tpe, gp")
        self.space, self._proposable = task.space, Proposable(task)
        self.settings = settings or OptunaSettings()
        self._sampler = sampler
        self._seeds = np.random.default_rng(whole_seed(seed))
        self._rates_per_s: deque[float] = deque(maxlen=self.settings.rate_window)
        self._studies = [self._study(math.nan)]
        self._present = self._studies[0]
        self._next = self._present.proposal()

    def act(self, observation: np.ndarray) -> np.ndarray:
        return self.space.action(self._next)

    def recommended(self) -> int | None:
        """The configuration of the lowest mean cost at this load; None before any was measured."""
        return next(iter(self._present.ranking), None)

    def update(self, transition: Transition) -> None:
        if not transition.has_cost:
            return
        rate_per_s = max(transition.measurement.arrival_rate_per_s, LOWEST_RATE_PER_S)
        self._follow_load(rate_per_s)
        if self._known(rate_per_s, self._present):
            self._present.tell(self.space.number_of_action(transition.action), transition.cost)
        self._next = self._present.proposal()

    def refused(self, number: int) -> None:
        self._proposable.refused(number)
        self._next = self._present.proposal()

    def _follow_load(self, measured_rate_per_s: float) -> None:
        """Takes up the study of the present load, a new one if there is none."""
        opening = len(self._rates_per_s) < self.settings.rate_window
        self._rates_per_s.append(measured_rate_per_s)
        rate_per_s = float(np.median(self._rates_per_s))
        if opening:
            self._present.rate_per_s = rate_per_s
        if self._known(rate_per_s, self._present):
            return
        before = self._present
        self._present = min(self._studies, key=lambda study: _factor(rate_per_s, study.rate_per_s))
        if not self._known(rate_per_s, self._present):
            self._present = self._study(rate_per_s)
            self._studies.append(self._present)
            for number in before.ranking[: self.settings.handed_on]:
                self._present.enqueue(number)

    def _known(self, rate_per_s: float, study: _Study) -> bool:
        return _factor(rate_per_s, study.rate_per_s) <= self.settings.rate_factor

    def _study(self, rate_per_s: float) -> _Study:
        seed = int(self._seeds.integers(2**31))
        startup = self.settings.startup_trials
        sampler = (
            optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)
            if self._sampler == "tpe"
            else optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup)
        )
        return _Study(self.space, self._proposable, sampler, self.settings.patience, rate_per_s, seed)


class _Study:
    """An Optuna study of one load, and the costs measured under it."""

    def __init__(
        self,
        space: ConfigurationSpace,
        proposable: Proposable,
        sampler: optuna.samplers.BaseSampler,
        patience: int,
        rate_per_s: float,
        seed: int,
    ) -> None:
        self.rate_per_s = rate_per_s
        self._space, self._proposable = space, proposable
        self._rng = np.random.default_rng(seed)
        self._patience = patience
        self._study = optuna.create_study(sampler=sampler)
        self._distributions: dict[str, BaseDistribution] = {
            knob.name: IntDistribution(0, len(knob.values) - 1) for knob in space.knobs
        }
        self._asked: optuna.Trial | None = None
        self._best = math.inf  # the lowest value of a trial
        self._since_best = 0  # trials since it was told
        self._totals = np.zeros(len(space))
        self._counts = np.zeros(len(space), dtype=int)

    @property
    def ranking(self) -> list[int]:
        """The configurations measured that may be proposed, by their mean cost, the lowest first."""
        measured = np.flatnonzero((self._counts > 0) & self._proposable.mask)
        return measured[np.argsort(self._totals[measured] / self._counts[measured], kind="stable")].tolist()

    @property
    def searching(self) -> bool:
        return self._since_best < self._patience

    def enqueue(self, number: int) -> None:
        """Makes a configuration one of the next trials."""
        self._study.enqueue_trial(self._parameters(number))

    def proposal(self) -> int:
        """The configuration to measure next."""
        if not self.searching and (ranking := self.ranking):
            return ranking[0]
        if self._asked is not None and not self._may_be(self._asked):
            self._study.tell(self._asked, state=TrialState.FAIL)
            self._asked = None
        if self._asked is None:
            self._asked = self._asked_for()
        return self._number(self._asked)

    def _asked_for(self) -> optuna.Trial:
        """A trial of what may be proposed: what is excluded fails unmeasured.

        Where a sampler names nothing else for long, one that may be is drawn.
        """
        for _ in range(MOST_ASKED):
            trial = self._study.ask(self._distributions)
            if self._may_be(trial):
                return trial
            self._study.tell(trial, state=TrialState.FAIL)
        self.enqueue(int(self._rng.choice(np.flatnonzero(self._proposable.mask))))
        return self._study.ask(self._distributions)

    def tell(self, number: int, cost: float) -> None:
        """One more measurement: of the trial that was asked for, or of another configuration."""
        self._totals[number] += cost
        self._counts[number] += 1
        if not self.searching:
            return
        value = math.log(max(cost, LOWEST_COST))
        if self._asked is not None and number == self._number(self._asked):
            self._study.tell(self._asked, value)
        else:
            if self._asked is not None:
                self._study.tell(self._asked, state=TrialState.FAIL)
            self._study.add_trial(
                create_trial(params=self._parameters(number), distributions=self._distributions, value=value)
            )
        self._asked = None
        self._since_best = 0 if value < self._best else self._since_best + 1
        self._best = min(self._best, value)

    def _parameters(self, number: int) -> dict[str, int]:
        return dict(zip(self._space.names, self._space.action(number).tolist(), strict=True))

    def _may_be(self, trial: optuna.Trial) -> bool:
        """True if it may be proposed."""
        return bool(self._proposable.mask[self._number(trial)])

    def _number(self, trial: optuna.Trial) -> int:
        return self._space.number_of_action(np.asarray([trial.params[name] for name in self._space.names]))


def _factor(a: float, b: float) -> float:
    """How many times the larger of two rates is the smaller."""
    return max(a, b) / min(a, b)
