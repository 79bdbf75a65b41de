"""The guard between any agent and a live target. Pure logic: it is told what happened and answers.

- It aborts an interval whose queue is plainly running away.
- It returns to the best configuration known when an interval went badly.
- It keeps the agent off configurations that were aborted lately.
- It says what to keep in force at the end: never a configuration under which requests failed, nor one that
  broke the limit where the start kept it.

In each interval the guard is asked in this order:

    enter, or admit -> watch, while the interval runs -> judge

`admit` is for the agent's proposals, and for the guard's own choices where it takes over. `enter` is for
configurations that somebody else chose. `replay` does all of it for an interval of an earlier run.

| symbol | here | meaning |
|---|---|---|
| A, D | `arrivals`, `completions` | requests in and out since the configuration came into force |
| G = A - D | `backlog_growth` | requests that piled up meanwhile |
| z | `runaway_sigmas` | a server that keeps up has drift E[G] <= 0 and Var[G] <= A + D |
| ĉ(1 ± ν/√n) | `pessimistic_mean`, `optimistic_mean` | mean cost of n intervals ± the noise ν of one |
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rrl.guarding.gain import in_words, unpaired_gain
from rrl.guarding.interval_memory import (
    COMPARABLE_LOAD,
    SAME_LOAD,
    IntervalMemory,
    Seen,
    at_load_of,
    costs_of,
    load_ratio,
    mean,
)
from rrl.guarding.turns import Turns
from rrl.journal import Decision, Kind, Record
from rrl.measured_costs import NOISE, USUAL_COMPLETIONS, best_known, optimistic_mean, pessimistic_mean
from rrl.measurement import Measurement, Progress, has_traffic
from rrl.objective import slo_violated


@dataclass(frozen=True)
class GuardSettings:
    """When the guard steps in.

    A configuration fails where more requests failed than all three failure settings allow.
    """

    slo_p95_ms: float | None = None  # the objective's limit: breaking it rolls back
    latency_factor: float = 3.0  # a mean latency this many times the start's, or the best's, rolls back
    runaway_sigmas: float = 4.0  # z: the queue grew beyond noise (one false alarm in 30,000 looks)
    runaway_wait_ms: tuple[float, float] = (250.0, 2000.0)  # bounds of the wait that a runaway queue adds
    watch_s: float = 1.0  # no interval is aborted before so many seconds
    watch_arrivals: int = 20  # no interval is aborted before so many arrivals
    cooldown: int = 20  # intervals for which an aborted or failing configuration is refused
    failures: int = 3  # failed requests that an interval may have
    failure_share: float = 0.01  # the share of an interval's arrivals that may fail
    failure_sigmas: float = 3.0  # how far beyond the start's rate, in standard deviations, failures may go
    noise: float = NOISE  # ν: relative standard deviation of one interval's cost
    drain_sigmas: float = 3.0  # a queue that goes down by more than this is one that an interval left behind
    drain_intervals: int = 5  # at most so many intervals in a row are spent on draining a queue


class Judgement(NamedTuple):
    """What the guard says of a finished interval."""

    rollback: bool  # run the next interval in the best configuration known
    learn: bool  # the interval tells what its configuration costs
    reason: str  # empty when all is well


class Admission(NamedTuple):
    """The configuration to run, who chose it, and why if that was not the agent."""

    number: int
    decision: Decision
    reason: str


class ToKeep(NamedTuple):
    """The configuration to keep in force at the end, and why."""

    number: int
    reason: str


@dataclass
class Guard:
    """Judges every interval in order. `start` is the number of the configuration found on the target."""

    start: int
    settings: GuardSettings = GuardSettings()
    over_budget: frozenset[int] = frozenset()  # configurations that use more cores than the model may
    turns: Turns = field(init=False)  # what the validation compares
    _memory: IntervalMemory = field(default_factory=IntervalMemory)
    _baseline: list[tuple[int, float]] = field(default_factory=list)  # completions, mean latency
    _aborted: dict[int, tuple[int, float]] = field(default_factory=dict)  # in which interval, at which rate
    _failing: dict[int, int] = field(default_factory=dict)  # how often each served since its requests failed
    _start_failures: int = 0
    _start_arrivals: int = 0
    _gaps: dict[int, tuple[int, int]] = field(default_factory=dict)  # how often it was lost, and last when
    _intervals: int = 0
    _takeover: Admission | None = None  # the guard's choice of the next interval
    _precaution: bool = False  # nothing bad is known of the configuration in force, even if it takes over
    _rolled_back: bool = False  # the interval in force follows a rollback
    _draining: int = 0  # intervals in a row that drained a queue left behind
    _safe: tuple[int, ...] = ()  # what a rollback would return to, or the start
    _in_force: int = -1  # none yet

    def __post_init__(self) -> None:
        self.turns = Turns(self.start, self._memory)

    @property
    def start_latency_ms(self) -> float:
        """Mean latency of the baseline intervals; NaN before the first."""
        completions = sum(n for n, _ in self._baseline)
        return sum(n * ms for n, ms in self._baseline) / completions if completions else math.nan

    @property
    def best(self) -> int:
        """The best configuration known at the present load, or at the nearest load at which a fit one is."""
        near = self._memory.near_present_load()
        unfit = self._unfit(near)
        fit = [seen for seen in near if seen.number not in unfit]
        fit = fit or self._memory.nearest([seen for seen in self._memory.all if seen.number not in unfit])
        return best_known(costs_of(fit), self.settings.noise) if fit else self.start

    @property
    def costs_at_present_load(self) -> dict[int, list[float]]:
        """Of each configuration that was measured near it."""
        return costs_of(self._memory.near_present_load())

    def trusts(self, number: int) -> bool:
        """True if this configuration was measured near the present load, and nothing speaks against it.

        It must be fit, and no other may have been measured better beyond noise at the same load.
        """
        near = self._memory.near_present_load()
        unfit = self._unfit(near)
        own = [seen for seen in near if seen.number == number]
        if number in unfit or not own:
            return False
        rate_per_s = mean([seen.rate_per_s for seen in own])
        others = [s for s in near if s.number not in {number, *unfit}]
        alike = [s for s in others if load_ratio(s.rate_per_s, rate_per_s) <= COMPARABLE_LOAD]
        own_costs = [seen.cost for seen in own]
        return not any(unpaired_gain(own_costs, each).beyond_noise for each in costs_of(alike).values())

    @property
    def takes_over(self) -> bool:
        """True if the next interval is the guard's: the agent need not be asked."""
        return self._takeover is not None

    @property
    def must_act(self) -> bool:
        """True if it takes over because of what is in force, so that no limit may stop it."""
        return self.takes_over and not self._precaution

    def knows(self, number: int) -> bool:
        """True if this configuration was measured, at whatever load."""
        return self._memory.knows(number)

    def fits(self, number: int) -> bool:
        """False if requests failed under it, if it was aborted lately, or if it alone broke the limit."""
        return number not in self._unfit(self._memory.near_present_load())

    def was_lost_again(self, number: int) -> bool:
        """True if the target was lost under it more than once and it has not served for long since."""
        times, _ = self._gaps.get(number, (0, 0))
        return times > 1

    def is_worse(self, number: int) -> bool:
        """True if it is not fit, or cost more than the start at the present load, beyond noise."""
        costs = self.costs_at_present_load
        gain = unpaired_gain(costs.get(number, []), costs.get(self.start, []))
        return not self.fits(number) or gain.beyond_noise

    def watch(self, progress: Progress) -> str:
        """Why to abort the running interval; empty if it may go on. What is safe is never aborted."""
        s = self.settings
        if self._in_force in self._safe:
            return ""
        if progress.elapsed_s < s.watch_s or progress.arrivals < s.watch_arrivals:
            return ""
        growth = progress.backlog_growth
        noise = s.runaway_sigmas * _noise(progress)
        wait_ms = 1e3 * growth * progress.elapsed_s / max(progress.completions, 1)
        if growth <= noise or wait_ms <= self._runaway_wait_ms():
            return ""
        return (
            f"the queue is running away: {growth} more requests waiting after {progress.elapsed_s:.1f} s "
            f"(a wait of {wait_ms:.0f} ms)"
        )

    def overloads(self, measurement: Measurement) -> bool:
        """True if the queue grew in this interval by more than one σ of its noise, and is long at its end."""
        long_ms, _ = self.settings.runaway_wait_ms
        return measurement.backlog_growth > _noise(measurement) and self._wait_ms(measurement) > long_ms

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
        self._intervals += 1
        self._precaution = self._tells_nothing_bad(number, measurement)
        if measurement.gap:
            times, _ = self._gaps.get(number, (0, 0))
            self._gaps[number] = times + 1, self._intervals
            if self.was_lost_again(number):  # once is chance; the second time it may be to blame
                self._abort(number, 0.0)
            return self._judgement(True, False, measurement.gap)
        if not has_traffic(measurement):
            return self._judgement(True, False, "no requests arrive")
        if share == 1 or not self._memory.rate_per_s:  # a short turn's few requests tell no load
            self._memory.rate_per_s = measurement.arrival_rate_per_s
        # After a rollback, failures while settling belong to the configuration before.
        before = [] if settling is None or self._rolled_back else [settling]
        failed = self._failed(number, [*before, measurement])
        failing = failed > 0
        # A rollback may find requests waiting that can only fail now; any other drain must not lose any.
        drains = self._drains(measurement) and (self._rolled_back or not failing)
        if drains and self._draining < self.settings.drain_intervals:
            self._draining += 1
            return self._drain(number, measurement)
        self._draining = 0
        if failing:
            self._failing[number] = 0
        completed = math.isfinite(cost)
        if failing or measurement.aborted or not completed:
            self._abort(number, measurement.arrival_rate_per_s)
        if not completed:
            return self._judgement(number != self.start, False, "nothing was completed")
        if kind == "baseline":
            self._baseline.append((measurement.completions, measurement.latency.mean_ms))
        latency_ms = _latency_ms(measurement)
        self._memory.add(
            Seen(
                number,
                measurement.arrival_rate_per_s,
                cost,
                latency_ms,
                broke_limit=share == 1 and slo_violated(measurement, self.settings.slo_p95_ms),
                completions=measurement.completions,
                is_turn=kind == "validation",
            )
        )
        self.turns.told(number, kind, share)
        if not failing:
            self._forgive(number)
        reason = f"{failed} requests failed" if failing else self._fault(latency_ms, measurement)
        return self._judgement(bool(reason) and number not in (self.start, self.best), True, reason)

    def admit(self, proposal: int | None) -> Admission:
        """What to run in the next interval: the agent's proposal, or the guard's choice where it takes over.

        There need be no proposal when the guard `takes_over`.
        """
        if self._takeover is not None:
            number, decision, reason = self._takeover
            rolls_back = decision == "rollback"
            self._rolled_back = rolls_back or (self._rolled_back and decision == "hold")
            return self._enter(self.best if rolls_back else number, decision, reason)
        self._rolled_back = False
        if proposal is None:
            raise ValueError("the guard does not take over: it needs the agent's proposal")
        best = self.best
        if proposal in self.over_budget:
            return self._enter(best, "refused", "it uses more cores than the budget leaves")
        if proposal != best and self._cooling(proposal):
            return self._enter(best, "refused", "it was aborted or failed lately at this or a lower load")
        return self._enter(proposal, "agent", "")

    def enter(self, number: int) -> None:
        """The next interval runs a configuration that neither agent nor guard chose.

        It is one of the start, a turn of the validation, or one that waits until changes are allowed.
        """
        self._rolled_back = False
        self._enter(number, "schedule", "")

    def replay(self, record: Record) -> None:
        """Takes in an interval of an earlier run of the same journal."""
        if record.decision in ("schedule", "wait"):
            self.enter(record.number)
        else:
            self.admit(record.number)
        self.judge(record.number, record.cost, record.measurement, record.kind, record.share, record.settling)

    def to_keep(self, turn_costs: Mapping[int, Sequence[float]] | None = None) -> int:
        """What to keep in force: the best known if shown to cost less than the start, else the start.

        `turn_costs` are the costs of both, measured in turns. The best's must be lower beyond noise. It is
        enough, too, that they are lower and were lower beyond noise before the turns. A low load in the turns
        hides what a configuration is worth.

        Without turns, as where the run was stopped, the best known must be better even with the noise of both
        held against it.
        """
        return self.keeping(turn_costs).number

    def keeping(self, turn_costs: Mapping[int, Sequence[float]] | None = None) -> ToKeep:
        """What to keep in force, and why."""
        if not turn_costs:
            return self._unvalidated()
        if not all(self.fits(number) for number in turn_costs):
            return ToKeep(self.start, "the best known failed, was aborted or broke the limit in its turns")
        gain, best = self.turns.gain(turn_costs), self.turns.best_of(turn_costs)
        if gain.beyond_noise:
            return ToKeep(best, f"{in_words(gain)}, measured in turns with it")
        before = self.turns.gain_before(best)
        if gain.undecided and before.beyond_noise:
            return ToKeep(
                best, f"{in_words(gain)} in turns, and before them {in_words(before)} at a like load"
            )
        return ToKeep(self.start, f"nothing was better beyond noise: in turns the best had {in_words(gain)}")

    def _unvalidated(self) -> ToKeep:
        best = self.best
        seen = self._memory.near_present_load()
        if all(each.number != self.start for each in seen):  # not measured at this load: compare where it was
            seen = at_load_of(self.start, self._memory.all)
        costs = costs_of(seen)
        if best not in costs or self.start not in costs:
            return ToKeep(self.start, "nothing else is known well enough")
        noise = self.settings.noise * _times_noisier(seen, {self.start, best})
        if pessimistic_mean(costs[best], noise) < optimistic_mean(costs[self.start], noise):
            return ToKeep(best, "the best known, better than the start even with noise held against it")
        return ToKeep(self.start, "nothing is known to be better beyond noise")

    def _enter(self, number: int, decision: Decision, reason: str) -> Admission:
        self._takeover = None
        self._in_force = number
        self._safe = (self.start, self.best)
        return Admission(number, decision, reason)

    def _judgement(self, rollback: bool, learn: bool, reason: str) -> Judgement:
        self._takeover = Admission(self.best, "rollback", reason) if rollback else None
        return Judgement(rollback, learn, reason)

    def _tells_nothing_bad(self, number: int, measurement: Measurement) -> bool:
        """True where the interval says nothing, unless the target was lost under what would not be kept."""
        if measurement.gap:
            return number in (self.start, self.to_keep())
        return not has_traffic(measurement)

    def _forgive(self, number: int) -> None:
        """Takes nothing amiss any more of a configuration that has served for long since.

        If the target was lost under it, that was not its fault: restarts come every night. If requests failed
        under it, clients had sent what cannot be served.
        """
        _, lost = self._gaps.get(number, (0, self._intervals))
        if self._intervals - lost > self.settings.cooldown:
            del self._gaps[number]
        if number in self._failing:
            self._failing[number] += 1
            if self._failing[number] > self.settings.cooldown:
                del self._failing[number]

    def _abort(self, number: int, rate_per_s: float) -> None:
        if number != self.start:
            self._aborted[number] = (self._intervals, rate_per_s)

    def _failed(self, number: int, seen: Sequence[Measurement]) -> int:
        """How many requests failed, if chance and the start's own failures do not explain them; else 0."""
        failures, arrivals = sum(each.failures for each in seen), sum(each.arrivals for each in seen)
        if number == self.start:
            self._start_failures += failures
            self._start_arrivals += arrivals
            return 0
        s = self.settings
        expected = self._start_failures / max(self._start_arrivals, 1) * arrivals
        chance = expected + s.failure_sigmas * math.sqrt(expected)
        allowed = max(s.failures, s.failure_share * arrivals, chance)
        return failures if failures > allowed else 0

    def _unfit(self, near: Sequence[Seen]) -> set[int]:
        """The configurations that are never best, for one of these reasons.

        - Requests failed under them, and they have not served for long since.
        - They were aborted lately.
        - They broke the limit in one of the intervals `near`, in none of which the start broke it.
        """
        broke = {seen.number for seen in near if seen.broke_limit}
        if self.start in broke:
            broke = set()
        cooling = {number for number in self._aborted if self._cooling(number)}
        return broke | cooling | self._failing.keys()

    def _cooling(self, number: int) -> bool:
        """True if it was aborted or failed lately, at the present load or at a lower one."""
        if number not in self._aborted:
            return False
        when, rate_per_s = self._aborted[number]
        lately = self._intervals - when <= self.settings.cooldown
        return lately and rate_per_s <= self._memory.rate_per_s * SAME_LOAD

    def _runaway_wait_ms(self) -> float:
        """The wait that a queue may grow by: the limit, or a multiple of the latency at the start."""
        if self.settings.slo_p95_ms is not None:
            return self.settings.slo_p95_ms
        low, high = self.settings.runaway_wait_ms
        start_ms = self.start_latency_ms
        return low if math.isnan(start_ms) else min(max(self.settings.latency_factor * start_ms, low), high)

    def _drains(self, measurement: Measurement) -> bool:
        """True while a queue that an interval before left behind goes down."""
        sigmas = 1.0 if self._rolled_back else self.settings.drain_sigmas
        shrinkage = -measurement.backlog_growth
        return shrinkage >= 5 and shrinkage > sigmas * _noise(measurement)

    def _drain(self, number: int, measurement: Measurement) -> Judgement:
        """Nothing is learned, as the latency was the old queue's.

        A configuration that drains a queue can bear the load, so it stays until the queue is gone.
        """
        if self._wait_ms(measurement) > self._runaway_wait_ms() or not self._rolled_back:
            self._takeover = Admission(number, "hold", "draining the queue")
        return Judgement(False, False, "drained the queue that was left behind")

    def _wait_ms(self, measurement: Measurement) -> float:
        return 1e3 * measurement.backlog / max(measurement.completion_rate_per_s, 1e-3)

    def _fault(self, latency_ms: float, measurement: Measurement) -> str:
        """What was wrong with the interval, in words."""
        if measurement.aborted:
            return measurement.aborted
        limit_ms = self.settings.slo_p95_ms
        if slo_violated(measurement, limit_ms):
            return f"p95 of {measurement.latency.p95_ms:.0f} ms broke the limit of {limit_ms:g} ms"
        best = self.best
        best_ms = mean([s.latency_ms for s in self._memory.near_present_load() if s.number == best])
        reference_ms = max(_or_zero(self.start_latency_ms), _or_zero(best_ms))
        if reference_ms and latency_ms > self.settings.latency_factor * reference_ms:
            return f"mean latency of {latency_ms:.0f} ms, {latency_ms / reference_ms:.1f}x that at the start"
        return ""


def _latency_ms(measurement: Measurement) -> float:
    """Mean latency. That of an aborted interval includes the time its backlog needs to drain."""
    return _or_zero(measurement.latency.mean_ms) + (measurement.drain_ms if measurement.aborted else 0.0)


def _noise(seen: Progress | Measurement) -> float:
    """√(A + D): the largest standard deviation that G can have where the server keeps up."""
    return math.sqrt(seen.arrivals + seen.completions)


def _times_noisier(seen: Sequence[Seen], numbers: Collection[int]) -> float:
    """How many times noisier these costs are than those of intervals with `USUAL_COMPLETIONS`; at least 1."""
    completions = mean([each.completions for each in seen if each.number in numbers])
    return max(1.0, math.sqrt(USUAL_COMPLETIONS / max(completions, 1)))


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
