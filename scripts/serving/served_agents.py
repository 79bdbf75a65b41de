"""Agents that tune a running server for a benchmark: as `rrl-tune` does, or through its loop unguarded."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from baselines import DEFAULT_AGENT
from envs.live import LiveServing
from rrl import journal
from rrl.agent import Agent
from rrl.guarding.guard import Admission, Guard
from rrl.journal import Journal
from rrl.objective import MeanLatency
from rrl.records import Header, Record
from rrl.space import Configuration, ConfigurationSpace
from rrl.tuning.listener import Listener
from rrl.tuning.loop import Tuning
from rrl.tuning.settings import TuningSettings
from scripts.serving.processes import tune_command
from serving_adapter.target import OpenInferenceTarget

DEFAULT, RULE, SWEEP = DEFAULT_AGENT, "rule", "sweep"
AGAIN = f"{DEFAULT}-again"  # the default agent once more: what the two differ by is noise
REACH = 1.05  # of the sweep's best: near
SETTLED_SHARE = 0.9  # of the intervals that follow


@dataclass(frozen=True)
class Served:
    """A running server under load, the grid to tune it in, and the length of an interval."""

    target: OpenInferenceTarget
    space: ConfigurationSpace
    found: dict[str, int]
    seed: int
    interval_s: float
    settle_s: float
    folder: Path

    def number(self, configuration: Configuration) -> int:
        """On the grid, of a configuration that may have more knobs."""
        return self.space.number({name: configuration[name] for name in self.space.names})


@dataclass(frozen=True)
class TunedRun:
    """One agent's journal, and what it leaves."""

    header: Header
    records: list[Record]
    left: int
    choices: tuple[int, ...] = ()  # what it would have left after each of the records, where it was asked

    @property
    def tuning(self) -> list[Record]:
        return [r for r in self.records if r.kind == "tune" and r.counted]


class WatchOnly(Guard):
    """Aborts what runs away but chooses nothing itself: what the agent proposes is visited."""

    @property
    def takes_over(self) -> bool:
        return False

    def admit(self, proposal: int | None) -> Admission:
        assert proposal is not None
        self.enter(proposal)
        return Admission(proposal, "agent", "")


class Unguarded(WatchOnly):
    """Aborts nothing either. An interval that drained the queue of the one before still teaches nothing."""

    def watch(self, progress: object) -> str:
        return ""


def tuned_by_command(
    served: Served,
    agent: str,
    intervals: int,
    arguments: Sequence[object] = (),
    ended: Callable[[], bool] = lambda: False,
) -> TunedRun:
    """A run of `rrl-tune` as it is; it is asked to stop once `ended`, as Ctrl-C does."""
    out = served.folder / agent
    what = ("--target", served.target.address, "--agent", agent, "--seed", served.seed)
    length = ("--intervals", intervals, "--out", out)
    pace = ("--interval-s", served.interval_s, "--settle-s", served.settle_s)
    command = tune_command(*what, *length, *pace, "--knobs", served.space, *arguments)
    with (served.folder / f"{agent}.log").open("w") as log:
        tuner = subprocess.Popen(command, stdout=log, start_new_session=True)
        try:
            _wait(tuner, ended)
        finally:
            tuner.kill()
            tuner.wait()
    if tuner.returncode not in (0, 130):
        raise RuntimeError(f"rrl-tune ended with {tuner.returncode} (see {log.name})")
    header, records = journal.read(out)
    return TunedRun(header, records, served.number(served.target.configuration()))


def _wait(tuner: subprocess.Popen[bytes], ended: Callable[[], bool]) -> None:
    while tuner.poll() is None and not ended():
        time.sleep(0.1)
    if tuner.poll() is None:
        tuner.send_signal(signal.SIGINT)
        tuner.wait(120)


def tuned_in_the_loop(
    served: Served,
    name: str,
    agent: Agent,
    guard: Callable[[int], Guard],
    settings: TuningSettings,
    stop: Callable[[], bool] = lambda: False,
) -> TunedRun:
    """A run through `rrl-tune`'s loop, with its guard or another.

    A guard that chooses nothing chooses not what is left either: that is what the agent says is best, or the
    lowest mean cost measured.
    """
    env = LiveServing(served.target, served.space, MeanLatency(), served.interval_s, served.settle_s)
    header = Header(
        space=served.space,
        objective="latency",
        slo_p95_ms=None,
        agent=name,
        seed=served.seed,
        target=served.target.address,
        model=served.target.model,
        found=served.found,
        start=served.space.configuration(env.start),
        interval_s=served.interval_s,
        settle_s=served.settle_s,
        intervals=settings.intervals,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    log = Journal.create(served.folder / name, header)
    judge = guard(env.start)
    choices = Choices(agent, judge)
    tuning = Tuning(env, agent, judge, log, settings, [choices], stop, put_in_force=lambda number: None)
    kept = tuning.run()
    log.close()
    left = choices.numbers[-1] if isinstance(judge, WatchOnly) and choices.numbers else kept.number
    served.target.apply(served.space.configuration(left))
    return TunedRun(header, log.records, left, tuple(choices.numbers))


class Choices(Listener):
    """What would be left after every interval: the guard's best, or what an agent without a guard chooses."""

    def __init__(self, agent: Agent, guard: Guard) -> None:
        self.numbers: list[int] = []
        self._agent, self._guard = agent, guard
        self._records: list[Record] = []

    def measured(self, record: Record) -> None:
        self._records.append(record)
        if not isinstance(self._guard, WatchOnly):
            self.numbers.append(self._guard.choice.best_to_keep)
        else:
            recommended = self._agent.recommended()
            self.numbers.append(cheapest(self._records) if recommended is None else recommended)


def cheapest(records: Sequence[Record]) -> int:
    """The configuration of the lowest mean cost."""
    costs: dict[int, list[float]] = {}
    for record in records:
        if record.learned:
            costs.setdefault(record.number, []).append(record.cost)
    if not costs:
        return records[0].number
    return min(costs, key=lambda number: sum(costs[number]) / len(costs[number]))


def settled_after(near: Sequence[bool], share: float = SETTLED_SHARE) -> int | None:
    """The number, from 1, of the first near interval from which on at least this share is near."""
    for k, is_near in enumerate(near):
        if is_near and sum(near[k:]) >= share * len(near[k:]):
            return k + 1
    return None
