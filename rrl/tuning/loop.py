"""The tuning loop: intervals of the start, the search, the validation, and what is kept at the end.

    agent.act -> guard.admit -> env.run -> cost -> guard.judge -> journal -> agent.keep_off, agent.update

It runs over any environment, simulated or live. Its other trades are beside it: `pacing` and `scheduled`
(limits and waits), `validation` (the turns), `ending` (what is kept), `telling` (listeners) and `unattended`
(silence, changes by hand, and a run that never ends).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from rrl.agent import Agent
from rrl.guarding.choice import ToKeep
from rrl.guarding.guard import Admission, Guard
from rrl.interval import UNWATCHED, Watch
from rrl.journal import Journal
from rrl.measurement import Progress
from rrl.objective import unit_of
from rrl.records import Kind, Record, changes_of_lost_intervals_s
from rrl.space import Configuration
from rrl.tuning.change_limits import ChangeLimits
from rrl.tuning.decision_words import reason_in_words
from rrl.tuning.ending import EndOfRun, Kept
from rrl.tuning.environment import Environment
from rrl.tuning.giving_up import Patience
from rrl.tuning.in_force import InForce
from rrl.tuning.listener import Listener
from rrl.tuning.pacing import Pacing, TimeUp
from rrl.tuning.record_writer import RecordWriter
from rrl.tuning.scheduled import Scheduled
from rrl.tuning.set_by_others import TakenOver
from rrl.tuning.settings import TuningSettings
from rrl.tuning.stop import Stopped
from rrl.tuning.telling import Telling
from rrl.tuning.unattended.foreign_changes import ForeignChanges
from rrl.tuning.unattended.resting import Resting
from rrl.tuning.unattended.rotation import ROTATION, Rotation, RotationSettings
from rrl.tuning.unattended.watching import SILENT_INTERVALS, KnownBest, Proposal, Watching
from rrl.tuning.validation import Validation


@dataclass
class Tuning:
    """A run on one environment, from its first interval to what it keeps in force."""

    env: Environment
    agent: Agent
    guard: Guard
    journal: Journal
    settings: TuningSettings = field(default_factory=TuningSettings)
    listeners: Sequence[Listener] = ()
    stop: Callable[[], bool] = lambda: False
    put_in_force: Callable[[int], None] | None = None  # at the end; None: an interval of the environment
    limits: ChangeLimits = field(default_factory=ChangeLimits)
    found: Configuration | None = None  # in force at the beginning; None: the start
    changed_before_s: Sequence[float] = ()  # Unix times of changes that no record tells of
    known_best: KnownBest | None = None  # by load, for a run that watches
    rotation: RotationSettings = ROTATION  # of the journal of one that watches
    leave: Callable[[], None] = lambda: None  # told where the target is left as others set it
    clock: Callable[[], float] = time.time  # Unix time
    monotonic: Callable[[], float] = time.monotonic  # s; nobody sets it

    def __post_init__(self) -> None:
        env, guard, journal, clock = self.env, self.guard, self.journal, self.clock
        self.telling = Telling(self.listeners, clock)
        self.pacing = Pacing(self.limits, journal, self.settings, clock, self.monotonic)
        changes = (self.limits, self.telling, self.pacing.now_s)
        self.in_force = InForce(env.space, guard.start, self.found, *changes)
        self.records = RecordWriter(journal, env.space, self.in_force, clock)
        self.patience = Patience()
        self.scheduled = Scheduled(self.interval, guard, self.in_force, self.pacing)
        parts = (guard, self.scheduled, self.in_force, self.pacing)
        self.validation = Validation(self.settings.validation, self.agent, *parts)
        policy, watches = self.settings.on_foreign_change, self.settings.watches
        self.foreign = ForeignChanges(policy, guard, self.in_force, watches)
        self.resting = Resting(self.interval, *parts, self.foreign, self.records)
        ways = (self.put_in_force, self.leave)
        self.end = EndOfRun(env, guard, journal, self.in_force, self.telling, self.foreign, *ways)
        self._thought_s = 0.0  # about the last interval, by agent and guard
        self.watching: Watching | None = None
        self.journal_rotation: Rotation | None = None
        if watches:
            threads_cost = unit_of(self.journal.header.objective) == "threads"
            self.watching = Watching(guard, env.space.threads, self.known_best, threads_cost)
            self.journal_rotation = Rotation(journal, guard.memory, self.telling, self.rotation)

    def run(self) -> Kept:
        """Replays the journal, goes on from there, and keeps the better configuration in force."""
        for at_s in changes_of_lost_intervals_s(self.journal.header):
            self.limits.changed(at_s)
        for record in self.journal.records:
            self._replay(record)
        for at_s in self.changed_before_s:
            self.in_force.count(at_s)
        self.pacing.begin()
        return self.end.after(self._phases)

    def finished(self, kind: Kind) -> int:
        """How many of the run's intervals of this kind are in the journal."""
        return self.records.finished(kind)

    def interval(
        self, kind: Kind, choice: Admission, watch: Watch = UNWATCHED, decision_ms: float = math.nan
    ) -> Record:
        """One interval under what the guard admitted: run it, have it judged, journal it, learn from it."""
        if self.stop():  # while agent and guard thought: nothing else is put in force for it
            raise Stopped
        before = self.in_force.number
        changes = choice.number != before and not watch.hands_off
        if changes:
            choice = self._explained(choice)
        self.telling.decided(kind, choice)
        if changes:
            reason = reason_in_words(kind, choice.decision, choice.reason)
            self.in_force.change(choice.number, choice.decision, reason)
        watch = replace(watch, interrupt=self._interrupt, gives_way=self.foreign.gives_way)
        seen = self.env.run(choice.number, watch)
        self.in_force.confirm(seen, before, self.records.last_gap)
        if self.stop():
            raise Stopped
        judged = (seen.number, seen.cost, seen.measurement, kind, seen.share, seen.settling)
        began_s = time.perf_counter()
        judgement = self.guard.judge(*judged)
        self._thought_s = time.perf_counter() - began_s
        if judgement.gap:
            nothing = replace(seen.measurement, gap=judgement.gap, gap_by_others=True)
            seen = replace(seen, measurement=nothing, cost=math.nan)
        left_to_others = watch.hands_off or seen.gave_way
        record = self.records.write(kind, choice, seen, judgement, decision_ms, left_to_others)
        began_s = time.perf_counter()
        self._teach(record)
        self._thought_s += time.perf_counter() - began_s
        self.telling.measured(record)
        if self.journal_rotation is not None:
            self.journal_rotation.after_interval()
        if self.watching is None:
            self.patience.check(record, has_explored=self.finished("tune") > 0)
        if kind != "tune" and self._silence_used_up:
            raise TimeUp("no requests came in all the intervals that were left")
        self.foreign.take_in(seen, changes)
        return record

    def _phases(self) -> ToKeep:
        with suppress(TakenOver):
            self._measure_start()
        self.resting.observe()
        self._search()
        costs = None
        with suppress(TakenOver):
            costs = self.validation.costs() if self.in_force.adopted is None else None
        return self.guard.keeping(costs)

    def _measure_start(self) -> None:
        """Once at least, as a resumed run needs an observation. Only once where users suffer in it."""
        if self._goes_on_watching:
            self.scheduled.measured("wait", self.in_force.number or 0)
            return
        missing = 0 if self.finished("tune") else self.settings.baseline - self.finished("baseline")
        for _ in range(max(1, missing)):
            record = self.scheduled.measured("baseline", self.guard.start)
            if self.guard.hurts(record.measurement):
                return

    def _search(self) -> None:
        while self._used < self.settings.intervals and not self.pacing.search_is_over:
            with suppress(TakenOver):
                if self.foreign.stands_back:
                    self.resting.stand_back()
                elif pause := self.pacing.pause_before_exploring():
                    self.scheduled.wait(pause)
                elif self.watching is not None and self.records.silent_in_a_row >= SILENT_INTERVALS:
                    self.resting.in_silence(self.watching)
                else:
                    self._decide()

    def _decide(self) -> None:
        began_s = time.perf_counter()
        proposal = None if self.guard.takes_over else self._proposal()
        choice = self.guard.admit(None if proposal is None else proposal.number)
        if proposal is not None and proposal.reason and choice.decision == "agent":
            choice = choice._replace(decision="table", reason=proposal.reason)
        took_s = self._thought_s + time.perf_counter() - began_s
        self.interval("tune", choice, decision_ms=1e3 * took_s)

    def _proposal(self) -> Proposal:
        assert self.records.observation is not None
        number = self.env.space.number_of_action(self.agent.act(self.records.observation))
        if self.watching is None or self.in_force.number is None:
            return Proposal(number)
        return self.watching.choose(self.in_force.number, number)

    @property
    def _used(self) -> int:
        """How many of the intervals of the search are used up."""
        return self.finished("tune") + (self.records.silent if self.settings.counts_silence else 0)

    @property
    def _silence_used_up(self) -> bool:
        return self.settings.counts_silence and self.records.silent >= self.settings.intervals

    @property
    def _goes_on_watching(self) -> bool:
        """True for one that watched before: what it left in force needs no measurement of the start."""
        began = self.finished("tune") > 0 and self.in_force.number is not None
        return self.settings.watches and began

    def _teach(self, record: Record) -> None:
        """Every interval that counts makes the agent think anew; only one that is learned tells it a cost."""
        self.agent.keep_off(self.guard.refuses)
        if record.counted:
            self.agent.update(record.lesson)
        elif record.not_taken:
            self.agent.refused(record.number)

    def _replay(self, record: Record) -> None:
        self.guard.replay(record)
        self._teach(record)
        for at_s in record.changed_at_s:
            self.limits.changed(at_s)
        self.agent.finish_training()  # the next update needs its network
        self.telling.replayed(record)

    def _interrupt(self, progress: Progress) -> str:
        return "stopped" if self.stop() else self.guard.watch(progress)

    def _explained(self, choice: Admission) -> Admission:
        """With the agent's reason for the change, where the choice is the agent's."""
        if choice.decision != "agent":
            return choice
        explores = (
            "the agent proposes it" if self.guard.memory.knows(choice.number) else "the agent explores it"
        )
        why = self.agent.explain()
        return choice._replace(reason=f"the agent: {why}" if why else explores)
