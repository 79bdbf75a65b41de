"""What is drawn and what is told where processes are simulated: fates, and who hears of them."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Protocol

from scripts.robustness.simulated_front.checked_models import CheckedModel
from serving_adapter.server.workers.messages import ForkWorker, RunBatch

SLOW_FACTOR = 100
FIRST_PID = (1 << 22) + 1  # beyond what Linux gives, so that no signal can reach a real process


class Deeds:
    """What can go wrong with a build or a fork."""

    FINE, FAILS, DIES, HANGS, SLOW = "fine", "fails", "dies", "hangs", "slow"
    ALL_BUT_FINE = (FAILS, DIES, HANGS, SLOW)


@dataclass
class FaultPlan:
    """What goes wrong with the builds and forks to come, first things first; then nothing does."""

    builds: list[str] = field(default_factory=list)
    forks: list[str] = field(default_factory=list)

    def next_build(self) -> str:
        return self.builds.pop(0) if self.builds else Deeds.FINE

    def next_fork(self) -> str:
        return self.forks.pop(0) if self.forks else Deeds.FINE


class WatchedParent(Protocol):
    """What is to be known of a worker's zygote."""

    references: list[str]

    @property
    def busy_workers(self) -> int:
        """How many of its workers hold a batch."""


class WatchedWorker(Protocol):
    """What is to be known of a worker that something happens to."""

    pid: int
    holds_of: str
    """The reference of the model that runs its batch."""
    threads: ForkWorker

    @property
    def zygote(self) -> WatchedParent: ...


class ProcessWatch(Protocol):
    """Who is told of what the processes see."""

    def batch_reached(self, worker: WatchedWorker, order: RunBatch, numbers: list[int]) -> None: ...

    def batch_left(self, worker: WatchedWorker, numbers: list[int]) -> None:
        """The worker has answered it."""

    def worker_ended(self, worker: WatchedWorker, held: list[int]) -> None: ...

    def broken(self, sentence: str) -> None: ...

    def note(self, kind: str, *facts: object) -> None: ...


@dataclass
class Fates:
    """The draws, the model and the watch that the processes of one simulation share."""

    draw: random.Random
    model: CheckedModel
    has_parallel_branches: bool
    mean_service_s: float
    watch: ProcessWatch
    faults: FaultPlan = field(default_factory=FaultPlan)

    def __post_init__(self) -> None:
        self._pids = itertools.count(FIRST_PID)

    def next_pid(self) -> int:
        return next(self._pids)

    def duration_s(self, mean_s: float, deed: str = Deeds.FINE) -> float:
        return self.draw.expovariate(1 / mean_s) * (SLOW_FACTOR if deed == Deeds.SLOW else 1)
