"""How batches in service go together, told apart by how well intervals can be replayed.

| hypothesis | a batch takes | n, the busy instances of its service time |
|---|---|---|
| fixed | a time that is fixed at its start | when it starts |
| sharing | longer whenever another starts beside it | on average while it runs |

Each has service times and model errors of its own. A target must tell arrivals, and the time-averaged number
of busy instances (`ServiceTimes.mean_busy`). Else batches count as fixed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rrl.belief.load.forecast import MEMORY
from rrl.belief.model_error import ModelDiscrepancy
from rrl.belief.replay import Replay
from rrl.belief.service_times import ServiceTimeModel
from rrl.queueing.windows import as_windows

# The hypotheses are compared after every so many intervals.
COMPARED = 4
MIN_NATS = 1.0  # by which the other must explain them better to be taken
FIXED, SHARING = False, True


@dataclass
class Hypothesised:
    """What is believed under one hypothesis."""

    sharing: bool
    service_times: ServiceTimeModel
    model_error: ModelDiscrepancy


class SeenLatency(NamedTuple):
    """An interval, to be replayed."""

    time: int  # the interval's number since the first
    number: int
    stretch: tuple[np.ndarray, float]  # offsets of its arrivals and duration in seconds
    observed_ms: float
    variance: float  # of the noise of ln of it


class Disciplines:
    """The hypotheses, and the one that is in force."""

    def __init__(self, make: Callable[[bool], Hypothesised]) -> None:
        self._make = make
        self.in_force = make(FIXED)
        self.other: Hypothesised | None = None
        """None while the target has told nothing that its service times could be of."""
        self._seen: deque[SeenLatency] = deque(maxlen=MEMORY)
        self._intervals = 0

    @property
    def all(self) -> list[Hypothesised]:
        return [self.in_force] if self.other is None else [self.in_force, self.other]

    def begin(self, varies: bool, intervals: int) -> None:
        """After so many intervals the target begins to tell the instances busy on average.

        Where batches alike take times that vary, processors are taken to be shared until intervals say
        otherwise.
        """
        self.other = self._make(SHARING)
        self.other.service_times.skip(intervals)
        if varies and not self.in_force.service_times.known:
            self.in_force, self.other = self.other, self.in_force

    def compare(self, seen: SeenLatency, replay: Replay) -> bool:
        """Takes in an interval, and now and then the hypothesis that explains the last ones better.

        True if it has compared: the replay's service times are others then.
        """
        self._seen.append(seen)
        self._intervals += 1
        if self.other is None or not self.other.service_times.known or self._intervals % COMPARED:
            return False
        self.other.service_times.fit()
        logs = [self._replayed(each, replay) for each in self.all]
        finite = np.flatnonzero(np.isfinite(logs).all(axis=0))
        errors = [self._errors(of_each, finite) for of_each in logs]
        if errors[1].log_evidence > errors[0].log_evidence + MIN_NATS:
            self.other.model_error = errors[1]
            self.in_force, self.other = self.other, self.in_force
        return True

    def _replayed(self, hypothesis: Hypothesised, replay: Replay) -> np.ndarray:
        """(intervals,) ln of the mean latency expected of each that is remembered."""
        replay.refresh(hypothesis.service_times.service_time_s())
        slow = hypothesis.service_times.slowness_seen
        logs = np.empty(len(self._seen))
        numbers = np.array([each.number for each in self._seen])
        for number in np.unique(numbers):
            which = np.flatnonzero(numbers == number)
            alike = [self._seen[k] for k in which]
            slowness = np.exp([slow.get(each.time, 0.0) for each in alike])
            windows = as_windows([each.stretch for each in alike], slowness=slowness)
            found = replay.replayed(np.array([number]), np.ones(1), windows, hypothesis.sharing)
            logs[which] = np.log(found.mean_ms[0])
        return logs

    def _errors(self, logs: np.ndarray, which: np.ndarray) -> ModelDiscrepancy:
        """What these intervals say, given what was expected of all."""
        errors = self.in_force.model_error.anew()
        seen = [self._seen[k] for k in which]
        errors.learn_all(
            (each.number, math.log(each.observed_ms) - expected, each.variance)
            for each, expected in zip(seen, logs[which].tolist(), strict=True)
        )
        return errors
