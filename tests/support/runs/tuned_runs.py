"""A tuner over a simulated server, for the tests of what it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from envs.simulated import SimulatedServing
from rrl.agent import Agent, Transition
from rrl.guarding.guard import Guard
from rrl.interval import MeasuredInterval, Watch
from rrl.journal import Journal
from rrl.records import Header, Record
from rrl.space import ConfigurationSpace
from rrl.tuning.ending import Kept
from rrl.tuning.listener import Change, Listener
from rrl.tuning.loop import Tuning
from rrl.tuning.settings import TuningSettings
from rrl.views.run_metrics import RunMetrics

SPACE = ConfigurationSpace.of(instances=[1, 2, 4, 8], intra_op_threads=[1, 2])


SETTINGS = TuningSettings(intervals=12, baseline=2, validation=2)


class LooseTuning(Tuning):
    """A run whose parts a test may read and replace at will."""

    env: Any
    agent: Any
    guard: Any
    validation: Any
    pacing: Any


class Wanderer(Agent):
    """Proposes configurations at random, and remembers what it was taught."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self.taught: list[Transition] = []
        self.asked = 0

    def act(self, observation: np.ndarray) -> np.ndarray:
        self.asked += 1
        return self._rng.integers(SPACE.shape)

    def update(self, transition: Transition) -> None:
        self.taught.append(transition)


def simulated(kind: type[SimulatedServing] = SimulatedServing) -> Any:
    """Mean latency in ms by configuration: overloaded, overloaded, 6300, 180, 270 (start), 130, 240, 130."""
    env = kind(machine=0, space=SPACE, arrivals=10.0, start={"instances": 4, "intra_op_threads": 1})
    env.np_random = np.random.default_rng(0)
    return env


def header(env: SimulatedServing) -> Header:
    start = SPACE.configuration(env.start)
    return Header(
        SPACE,
        "latency",
        None,
        "wanderer",
        0,
        "simulated",
        "machine",
        start,
        start,
        5.0,
        "2026-01-01T00:00:00",
    )


def metrics_of(
    header: Header, in_force: Mapping[str, int], clock: Callable[[], float] = time.monotonic
) -> RunMetrics:
    """Those of a run that has begun, as its target has answered."""
    metrics = RunMetrics(clock)
    metrics.reached()
    metrics.begins(header, in_force)
    return metrics


def tuning(
    folder: Path,
    env: SimulatedServing | None = None,
    resume: bool = False,
    guard: Guard | None = None,
    **changes: Any,
) -> LooseTuning:
    env = env or simulated()
    journal = Journal.open_to_resume(folder) if resume else Journal.create(folder, header(env))
    values: dict[str, Any] = {"settings": SETTINGS} | changes
    return LooseTuning(env, Wanderer(), guard or Guard(env.start), journal, **values)


def run(tuning: Tuning) -> Kept:
    try:
        return tuning.run()
    finally:
        tuning.journal.close()


def kinds(records: list[Record]) -> list[str]:
    return [r.kind for r in records]


class StopAfter(Listener):
    def __init__(self, intervals: int) -> None:
        self.remaining = intervals

    def measured(self, record: Record) -> None:
        self.remaining -= 1

    def __call__(self) -> bool:
        return self.remaining <= 0


class Told(Listener):
    """Every change and notice, as an onlooker is told of them."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.notices: list[str] = []

    def changed(self, change: Change) -> None:
        self.changes.append(change)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    @property
    def times_s(self) -> list[float]:
        return [change.at.timestamp() for change in self.changes]


class Changes(Listener):
    def __init__(self) -> None:
        self.seen: list[Change] = []

    def changed(self, change: Change) -> None:
        self.seen.append(change)


class Refusing(SimulatedServing):
    """Keeps what it has where one configuration is asked for; somebody else changes it once."""

    refused, asked = 0, 0

    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        self.asked += 1
        refuses = number == self.refused
        measurement = replace(self._measurement(number, watch), gap="no memory" if refuses else "")
        return MeasuredInterval(measurement, changed=not refuses and self.asked == 2, refused=refuses)
