"""The guard between any agent and a live target. Pure logic: it is told what happened and answers.

- It aborts an interval in which more requests fail than under the start.
- It aborts one whose queue is plainly running away, if what is safe bears clearly more.
- It returns to the best configuration known when an interval went badly, unless it would have gone as badly
  there, or that is expected to be worse now. A burst, a slow machine and silence move nothing.
- It keeps the agent off configurations that were aborted lately.
- It says what to keep in force at the end: never a configuration under which requests failed, nor one that
  broke the limit where the start kept it. A start under which requests fail is left, too.

In each interval the guard is asked in this order:

    enter, or admit -> watch, while the interval runs -> judge

`admit` is for the agent's proposals, and for the guard's own choices where it takes over. `enter` is for
configurations that somebody else chose. `replay` does all of it for an interval of an earlier run.

| part | what it answers |
|---|---|
| `memory` | what the intervals of each configuration cost, and at which load |
| `fitness` | whether something went wrong under a configuration, and whether that is forgiven |
| `turns` | what the turns of the best and the start show |
| `choice` | which configuration is best, and which to keep |
| `_gaps` | whether an interval says nothing of its configuration, and what follows |
| `_check` | what was wrong with an interval, and whether its configuration is to blame |
| `fitness.outage` | whether the target fails all requests, whatever is in force |
| `expected` | what each would have cost under the same arrivals, if the guard was given an expectation |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rrl.guarding.backlog import Draining, Looks, overloads, runs_away
from rrl.guarding.choice import Choice, ToKeep
from rrl.guarding.expectation import CostExpectation, LikeWithLike
from rrl.guarding.fitness import Fitness
from rrl.guarding.gaps import Gap, Gaps
from rrl.guarding.interval_check import Finding, IntervalCheck, latency_ms
from rrl.guarding.interval_memory import IntervalMemory, Seen
from rrl.guarding.outage import TEXTS
from rrl.guarding.settings import GuardSettings
from rrl.guarding.turns import Costs, Turns
from rrl.measurement import Measurement, Progress, all_failed
from rrl.objective import slo_violated
from rrl.records import Decision, Kind, Record


class Judgement(NamedTuple):
    """What the guard says of a finished interval."""

    rollback: bool  # run the next interval in the best configuration known
    learn: bool  # the interval tells what its configuration costs
    reason: str  # empty when all is well
    gap: str = ""  # why the interval says nothing of its configuration, whatever was measured


class Admission(NamedTuple):
    """The configuration to run, who chose it, and why if that was not the agent."""

    number: int
    decision: Decision
    reason: str


class UnderGuard(NamedTuple):
    """What is in force, as the guard let it in."""

    number: int = -1  # none yet
    safe: tuple[int, ...] = ()  # the start, what a rollback would return to, and what would be kept
    after_rollback: bool = False  # it came by a rollback, or drains the queue that one met


class Takeover(NamedTuple):
    """The guard's choice of the next interval."""

    choice: Admission
    must_act: bool  # something bad may be in force, so that no limit may stop it


@dataclass
class Guard:
    """Judges every interval in order. `start` is the number of the configuration found on the target."""

    start: int
    settings: GuardSettings = field(default_factory=GuardSettings)
    over_budget: frozenset[int] = frozenset()  # configurations that use more cores than the model may
    expectation: CostExpectation | None = None  # None: what was measured is compared, whenever it was

    def __post_init__(self) -> None:
        self.expected = LikeWithLike(self.expectation)
        self.memory = IntervalMemory(self.settings.closed_loop)
        self.fitness = Fitness(self.start, self.settings, self.memory)
        self.turns = Turns(self.start, self.memory)  # what the validation compares
        parts = (self.memory, self.fitness, self.turns, self.expected)
        self.choice = Choice(self.start, self.settings, *parts)
        self._check = IntervalCheck(self.settings, self.choice)
        self._gaps = Gaps(self.choice)
        self._looks = Looks()
        self._draining = Draining(self.settings)
        self._in_force = UnderGuard()
        self._next: Takeover | None = None

    @property
    def best(self) -> int:
        """The best configuration known at the present load."""
        return self.choice.best

    @property
    def takes_over(self) -> bool:
        """True if the next interval is the guard's: the agent need not be asked."""
        return self._next is not None

    @property
    def must_act(self) -> bool:
        """True if it takes over because of what is in force, so that no limit may stop it."""
        return self._next is not None and self._next.must_act

    @property
    def refuses(self) -> frozenset[int]:
        """The configurations that it would not admit now, those over budget excepted."""
        fitness = self.fitness
        return (fitness.cooling | fitness.failing_as_the_start | fitness.losing) - self.choice.safe

    def keeping(self, turn_costs: Costs | None = None) -> ToKeep:
        """What to keep in force at the end, and why."""
        return self.choice.to_keep(turn_costs)

    def to_keep(self, turn_costs: Costs | None = None) -> int:
        """What to keep in force at the end."""
        return self.keeping(turn_costs).number

    def hurts(self, measurement: Measurement) -> bool:
        """True if users suffer: the queue grew beyond noise and is long, or many requests failed."""
        return overloads(measurement, self.settings) or self.fitness.many_fail(measurement)

    def admit(self, proposal: int | None) -> Admission:
        """What to run in the next interval: the agent's proposal, or the guard's choice where it takes over.

        There need be no proposal when the guard `takes_over`.
        """
        if self._next is not None:
            number, decision, reason = self._next.choice
            rolls_back = decision == "rollback"
            after_rollback = rolls_back or (self._in_force.after_rollback and decision == "hold")
            choice = Admission(self.best if rolls_back else number, decision, reason)
            return self._enter(choice, after_rollback)
        if proposal is None:
            raise ValueError("the guard does not take over: it needs the agent's proposal")
        best = self.best
        if proposal in self.over_budget:
            return self._enter(Admission(best, "refused", "it uses more cores than the budget leaves"))
        if proposal in self.refuses:
            why = "it was aborted or failed lately at this or a lower load"
            if proposal in self.fitness.losing:
                why = "the target is lost under it more often than under others"
            elif not self.fitness.cools(proposal):
                why = "more requests fail under it than under others"
            return self._enter(Admission(best, "refused", why))
        return self._enter(Admission(proposal, "agent", ""))

    def enter(self, number: int) -> None:
        """The next interval runs a configuration that neither agent nor guard chose.

        It is one of the start, a turn of the validation, or one that waits until changes are allowed.
        """
        self._enter(Admission(number, "schedule", ""))

    def stay_in(self, number: int, reason: str) -> None:
        """The next interval runs in this configuration, which somebody else has put in force."""
        self._hold(number, reason, must_act=False)

    def watch(self, progress: Progress) -> str:
        """Why to abort the running interval; empty if it may go on. What is safe is never aborted."""
        self._looks.add(progress)
        if self._in_force.number in self._in_force.safe:
            return ""
        if failing := self.fitness.fails_already(progress):
            return failing
        reason = runs_away(progress, self.settings, self.memory.start_latency_ms)
        return reason if reason and self._safe_bears_better() else ""

    def judge(
        self,
        number: int,
        cost: float,
        measurement: Measurement,
        kind: Kind = "tune",
        share: float = 1.0,
        settling: Measurement | None = None,
    ) -> Judgement:
        """Takes in a finished interval, and says whether to roll back and whether to learn from it.

        `share` is the share of its usual time that it was measured for. `settling` is what was seen before
        that, from a change until it had settled.
        """
        self.fitness.count_interval(number)
        self._next = None
        if gap := self._gaps.find(number, measurement):
            return self._after_gap(number, gap)
        tells_load = share == 1 and measurement.arrivals > 0  # a short turn's few requests do not
        if tells_load or not self.memory.rate_per_s:
            self.memory.rate_per_s = self.memory.load_of(measurement)
        after_rollback, outage = self._in_force.after_rollback, self.fitness.outage
        if all_failed(measurement) and (outage.suspected or self.fitness.many_fail(measurement)):
            drains = self._draining.goes_on(measurement, after_rollback, failing=True)
            if not drains and (gap := self._gaps.all_failed(number, measurement)):
                return self._after_gap(number, gap)
            failed = self._learn(number, measurement, settling)
        else:
            if measurement.completions:
                for blamed, seen in outage.served(number).items():
                    self.fitness.all_failed(blamed, seen)
            elif overloads(measurement, self.settings):
                outage.hung(number)
            failed = self._learn(number, measurement, settling)
            drains = self._draining.goes_on(measurement, after_rollback, failing=failed > 0)
        if drains:
            return self._drain(number, measurement)
        if failed:
            self.fitness.failing(number)
        costs = math.isfinite(cost)
        if not costs and measurement.completions and not failed:
            return Judgement(False, False, "the latency that the objective goes by was not told")
        if failed or not costs or self._check.aborted_by_its_fault(number, measurement):
            self.fitness.aborted(number, self.memory.load_of(measurement))
        if not costs:
            nothing = f"{failed} requests failed" if measurement.completions else "nothing was completed"
            return (
                Judgement(False, False, nothing) if number == self.start else self._roll_back(False, nothing)
            )
        fault = self._take_in(number, cost, measurement, kind, share)
        if failed:
            return self._verdict(number, f"{failed} requests failed", always=True)
        self.fitness.served(number)
        if fault.excused or not fault.reason:
            return Judgement(False, True, fault.reason)
        return self._verdict(number, fault.reason, always=False)

    def replay(self, record: Record) -> None:
        """Takes in an interval of an earlier run of the same journal."""
        if record.decision in ("schedule", "wait", "idle"):
            self.enter(record.number)
        else:
            self.admit(record.number)
        measurement = record.measurement
        if measurement.gap in TEXTS:  # it was said by the guard, which says it again
            measurement = replace(measurement, gap="", gap_by_others=False)
        self.judge(record.number, record.cost, measurement, record.kind, record.share, record.settling)

    def _enter(self, choice: Admission, after_rollback: bool = False) -> Admission:
        self._next = None
        self._looks = Looks()
        self._in_force = UnderGuard(choice.number, (self.start, *self.choice.safe), after_rollback)
        return choice

    def _safe_bears_better(self) -> bool:
        """True if what is safe is expected to bear clearly more than what is in force bears now.

        That is what it is seen to answer a second while its queue grows, or what it is known to bear. While
        neither is known, nothing is.
        """
        if not self.expected.known:
            return True
        number, safe = self._in_force.number, self._in_force.safe
        bears_per_s = self._looks.throughput_per_s
        if bears_per_s is None:
            return False
        if self.memory.knows(number):
            bears_per_s = max(bears_per_s, self.expected.capacity_per_s(number))
        most_per_s = max(map(self.expected.capacity_per_s, safe))
        return most_per_s > self.settings.bears_better * bears_per_s

    def _after_gap(self, number: int, gap: Gap) -> Judgement:
        if gap.rolls_back:
            judgement = self._roll_back(False, gap.reason, gap.must_act)
        else:
            judgement = self._hold(number, gap.reason, gap.must_act)
        return judgement._replace(gap=gap.reason) if gap.measured else judgement

    def _learn(self, number: int, measurement: Measurement, settling: Measurement | None) -> int:
        """Learns what the interval tells of its configuration; how many requests failed by its fault."""
        self.expected.learn(number, measurement)
        # After a rollback, failures while settling belong to the configuration before.
        before = [] if settling is None or self._in_force.after_rollback else [settling]
        return self.fitness.failures(number, [*before, measurement])

    def _drain(self, number: int, measurement: Measurement) -> Judgement:
        after_rollback, start_ms = self._in_force.after_rollback, self.memory.start_latency_ms
        if self._draining.must_stay(measurement, after_rollback, start_ms):
            self._hold(number, "draining the queue")
        return Judgement(False, False, "drained the queue that was left behind")

    def _take_in(
        self, number: int, cost: float, measurement: Measurement, kind: Kind, share: float
    ) -> Finding:
        """Remembers the interval, and says what was wrong with it."""
        fault = self._check.find(cost, measurement)
        broke_limit = share == 1 and slo_violated(measurement, self.settings.slo_p95_ms)
        seen = Seen(
            number,
            self.memory.load_of(measurement),
            cost,
            latency_ms(measurement),
            broke_limit=broke_limit and not (fault.excused or fault.start_too),
            overloaded=overloads(measurement, self.settings),
            completions=measurement.completions,
            kind=kind,
        )
        self.memory.add(seen)
        self.turns.take_in(number, kind, share)
        return fault

    def _verdict(self, number: int, reason: str, always: bool) -> Judgement:
        """Rolls back, unless there is nothing to roll back to that is expected to be better."""
        if not always and not self.choice.improves_on(number):
            return Judgement(False, True, f"{reason}; nothing known is expected to be better now")
        if number in (self.start, *self.choice.safe):
            return Judgement(False, True, reason)
        return self._roll_back(True, reason)

    def _roll_back(self, learn: bool, reason: str, must_act: bool = True) -> Judgement:
        self._next = Takeover(Admission(self.best, "rollback", reason), must_act)
        return Judgement(True, learn, reason)

    def _hold(self, number: int, reason: str, must_act: bool = True) -> Judgement:
        self._next = Takeover(Admission(number, "hold", reason), must_act)
        return Judgement(False, False, reason)
