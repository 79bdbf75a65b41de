"""`rrl/LiveServing-v0`: a running inference server under whatever load it has, one interval a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from envs.joint_settling import JointSettling, settling_after
from envs.profiler import measure
from envs.serving import ServingEnv
from envs.settling import MAX_SETTLING_INTERVALS, Settling
from envs.suspension import MIN_SUSPENDED_S, suspended_s
from envs.target_space import check_space, cores_of, default_space
from envs.waiting import UNCHANGED, Waiting
from rrl.interval import Interval, MeasuredInterval, Watch
from rrl.knobs import change_in_words, in_words
from rrl.measurement import Measurement, SoFar
from rrl.objective import MeanLatency, Objective
from rrl.space import Configuration, ConfigurationSpace
from serving_adapter.target import (
    Applied,
    LeaseTaken,
    ModelAbsent,
    NoSuchKnob,
    NotPutBack,
    Overtaken,
    RequestsRefused,
    Target,
    TargetError,
    TargetLost,
    open_target,
)
from serving_adapter.target.reading import Reading

POLL_S = 0.5
POLL_OF_WHOLE_PAGE_S = 1.0
LOOK_SHARES = (0.25, 0.5, 0.75)  # of an interval's usual time: when it is asked whether it has told enough
MAX_REFUSALS_IN_A_ROW = 3
RECONNECT_S = 120.0


class _Refused(Exception):
    """The server keeps the configuration it has."""


@dataclass
class _Running:
    """What is known so far of an interval that runs, also where the target is lost in it."""

    configuration: Configuration
    watch: Watch
    share: float  # of its usual time that it is measured for
    changed: bool = False
    replaced: Configuration = field(default_factory=dict)
    refused: bool = False
    settling: Measurement | None = None
    set_by_others: Configuration = field(default_factory=dict)
    gave_way: bool = False


class LiveServing(ServingEnv):
    """
    ## Description

    The server is a live target; the requests are its users'. A step puts a configuration in force, lets it
    settle, and measures the rest of the interval. Time is the wall's. Settling lasts `settle_s` at least,
    twice as long after a new load of the model, and until, for at most two more intervals,

    - as many requests have been answered as were queued when the configuration came into force, and what
      queued behind them no longer drains: the queue is short, or gets no shorter,
    - what a stock Triton loaded before has drained: at most 5% of the answers still come from it,
    - where processes were started, 3 batches have been run for each instance: Triton gives a batch to the
      instance that has been idle longest, so each has had its share (`envs/settling.py`).

    A step that goes on with the configuration in force changes nothing, so nothing has to settle: it is
    measured from the last reading, the end of the step before, to its own end. It costs the target one
    reading, one call of ModelConfig, and one that prolongs the tuner's lease. A reading is one call of
    ModelStatistics and one fetch of the metrics page. Of our own server it is the page, which tells all, and
    one call for the moments of arrival. A step with a change costs three readings at least, and one more
    every `poll_s` while it settles longer. As long as somebody watches (`Watch.interrupt`) it also costs a
    glance at the page every `poll_s`. At a server that knows the page's filter a glance costs next to
    nothing, so there it is taken in every step.

    The target may restart or vanish within an interval. Then the environment waits, connects again, and puts
    the configuration in force again, unless the target was lost in the middle of the change to it. It returns
    a measurement whose `gap` says so; nothing may be learned from it. After `reconnect_s` without the target
    it raises `TargetLost`. A configuration that the server refuses leaves a gap, too, and after several in a
    row raises `TargetError`. Without traffic the measurement has no arrivals and the mean latency is NaN.

    Nodes that a server's cluster lost, or got again, leave a gap that is `gap_by_others`: what is in force
    stays so, and no configuration is blamed for it.

    ## Action Space, Observation Space, Rewards, Episode End

    As in `ServingEnv`. The episode never ends.

    `info` has also

    - `apply_ms`: how long the change took to be in force,
    - `changed`: whether there was one. Where another client, or a restart, had changed the configuration, the
      same one is put in force again,
    - `refused`: whether the server kept what it had,
    - `settling`, after a change: a `Measurement` from the last reading before the change to the first after
      it, so that no request is missing from what a change cost,
    - `share`, of an interval that was measured for less than its usual time: the share of it.

    A `Watch` that `gives_way` ends the interval at its begin where another client has changed what is tuned
    since the last look. Else the step's own configuration replaces it. What another client sets in the middle
    of a step's own change stays in any case, for that step.

    ## Starting State

    The configuration found on the target, or the grid's nearest to it. `found` holds what was found. The
    environment does not put it back when it closes: whoever owns the guard decides what to keep in force.

    ## Arguments

    | Parameter     | Type                      | Default       | Description                              |
    |---------------|---------------------------|---------------|------------------------------------------|
    | `target`      | `Target` or `"HOST:PORT"` |               | connected already, or an address         |
    | `space`       | `ConfigurationSpace`, str | default_space | the grid, e.g. `"instances=1:4"`         |
    | `objective`   | `Objective`               | MeanLatency   | what to minimise                         |
    | `interval_s`  | float                     | 5.0           | from one decision to the next            |
    | `settle_s`    | float                     | 1.0           | to settle after a change, not measured   |
    | `poll_s`      | float or None             | None          | how often a running interval is seen;    |
    |               |                           |               | None: 0.5, or 1 where it takes all of    |
    |               |                           |               | the page                                 |
    | `reconnect_s` | float                     | 120.0         | how long to wait for a lost target       |
    | `advise`      | bool                      | False         | measures what is in force, no change     |
    | `known`       | configuration or None     | None          | another that the target was found in,    |
    |               |                           |               | earlier: its values need not be checked  |

    `clock`, `sleep` and `suspended` replace the monotonic clock in tests.

    ## Version History

    * v0: initial version
    """

    def __init__(
        self,
        target: Target | str,
        space: ConfigurationSpace | str | None = None,
        objective: Objective | None = None,
        interval_s: float = 5.0,
        settle_s: float = 1.0,
        poll_s: float | None = None,
        reconnect_s: float = RECONNECT_S,
        advise: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        known: Configuration | None = None,
        suspended: Callable[[], float] = suspended_s,
    ) -> None:
        if not 0 <= settle_s < interval_s or (poll_s is not None and poll_s <= 0):
            raise ValueError(
                "an interval needs 0 <= settle_s < interval_s and poll_s > 0, got "
                f"settle_s={settle_s:g}, interval_s={interval_s:g}, poll_s={poll_s}"
            )
        if isinstance(target, str):
            target = open_target(target)
            target.connect(control=not advise)
        self.target: Target = target
        self.found = target.configuration()
        if space is None:
            space = default_space(target.knobs(), cores_of(target), target.room())
        elif isinstance(space, str):
            space = ConfigurationSpace.parse(space)
        if self.found or not advise:
            check_space(space, target.knobs(), self.found, known or {})
        chosen: Objective = objective or MeanLatency()
        check_objective(chosen, target.read())
        start = {knob.name: self.found.get(knob.name, knob.values[0]) for knob in space.knobs}
        super().__init__(space, chosen, space.nearest(start))
        self.fixed = {name: value for name, value in self.found.items() if name not in space.names}
        if poll_s is None:
            poll_s = POLL_S if target.glance_is_cheap else POLL_OF_WHOLE_PAGE_S
        self.interval_s, self.settle_s, self.advise = interval_s, settle_s, advise
        self._clock, self._sleep = clock, sleep
        self._waiting = Waiting(target, poll_s, reconnect_s, not advise, clock, sleep)
        self._suspended, self._suspended_s = suspended, suspended()  # until the last interval's end
        self._refusals, self._applied_once = 0, False
        self._last: Reading | None = None  # since which nothing has gone uncounted
        self._held: Configuration | None = None  # in force then, and settled
        self._looked: tuple[Reading, Configuration] | None = None  # at the target last: all that is tuned
        self._apply_ms = math.nan  # how long the last change took to be in force

    def close(self) -> None:
        self.target.close()

    def tell_away(self, told: Callable[[str, float], None]) -> None:
        """Has a lost target told of, again and again: why it is away, and for how many seconds."""
        self._waiting.away.append(told)

    def _begin(self, number: int) -> None:
        """Nothing to prepare: every interval puts its configuration in force."""

    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        running = _Running(self.space.configuration(number), watch, watch.share)
        self._waiting.looks.clear()
        began_s = self._clock()
        try:
            measurement = self._attempt(running, began_s)
        except Overtaken as error:
            measurement = self._overtaken(running, error, began_s)
        return MeasuredInterval(
            measurement,
            running.changed,
            running.refused,
            running.settling,
            running.share,
            running.replaced,
            self._apply_ms,
            running.set_by_others,
            running.gave_way,
        )

    def _info(self, interval: Interval) -> dict[str, Any]:
        info = super()._info(interval) | {"changed": interval.changed, "refused": interval.refused}
        if not math.isnan(interval.apply_ms):
            info["apply_ms"] = interval.apply_ms
        if interval.settling is not None:
            info["settling"] = interval.settling
        if interval.share < 1:
            info["share"] = interval.share
        return info

    def _attempt(self, running: _Running, began_s: float) -> Measurement:
        """The interval, or a gap where the target is lost in it or refuses its configuration."""
        try:
            looks_on = running.watch.hands_off
            return (self._look_on if looks_on else self._measurement)(running, began_s)
        except TargetLost as error:
            self._looked = None
            puts_back = not running.watch.hands_off
            again = self._waiting.for_target(running.configuration, error, puts_back)
            running.changed |= again.changed
            running.replaced = again.replaced or running.replaced
            gap, by_others = str(error), isinstance(error, ModelAbsent)
        except _Refused as error:
            running.refused = True
            self._sleep(self.interval_s)
            gap, by_others = str(error), False
        return Measurement(self._clock() - began_s, 0, 0, 0, gap=gap, gap_by_others=by_others)

    def _overtaken(self, running: _Running, error: Overtaken, began_s: float) -> Measurement:
        """Another client's configuration came into force in the middle of the change to this one."""
        before = {} if self._looked is None else self._looked[1]
        running.changed, running.replaced, running.gave_way = True, before, True
        self._apply_ms = math.nan
        with suppress(TargetLost):  # the next interval waits for it
            now = self._tuned(self.target.configuration())
            if now != before and len(now) == len(self.space.knobs):
                running.set_by_others = now
            self._looked = self.target.read(), now
        return Measurement(self._clock() - began_s, 0, 0, 0, gap=str(error), gap_by_others=True)

    def _measurement(self, running: _Running, began_s: float) -> Measurement:
        held, self._held = self._held, None
        last, self._last = self._last, None
        is_held = last is not None and running.configuration == held
        if last is not None and is_held and self._clock() < last.at_s + self.interval_s:
            self._apply_ms = 0.0
            return self._held_interval(running, last)
        if running.watch.gives_way and (others := self._set_since()):
            self._apply_ms, running.set_by_others, running.gave_way = math.nan, others, True
            gap = f"another client changed the configuration before the interval: {in_words(others)}"
            return Measurement(self._clock() - began_s, 0, 0, 0, gap=gap, gap_by_others=True)
        applied = UNCHANGED if self.advise else self._apply(running.configuration)
        self._apply_ms = 1e3 * (self._clock() - began_s)
        running.changed, running.replaced = applied.changed, applied.replaced
        return self._changed_interval(running, applied, last)

    def _held_interval(self, running: _Running, before: Reading) -> Measurement:
        """Goes on from the last reading: nothing has changed since."""
        end_s = before.at_s + running.share * self.interval_s
        aborted = self._waiting.until(end_s, before, running.watch, glances=self.target.glance_is_cheap)
        return self._finished(running, before, before, self.target.read(), aborted)

    def _changed_interval(self, running: _Running, applied: Applied, earlier: Reading | None) -> Measurement:
        in_force = self.target.read()
        settling = settling_after(applied, in_force, {**self.found, **running.configuration})
        aborted, before = self._settle(settling, running.watch)
        if earlier is not None and applied.changed:
            settling_part = measure(earlier, in_force if aborted else before)
            running.settling = None if settling_part.gap else settling_part
        if aborted:
            return self._finished(running, in_force, in_force, before, aborted)
        aborted = self._watch_until_enough(running, in_force, before)
        return self._finished(running, in_force, before, self.target.read(), aborted)

    def _watch_until_enough(self, running: _Running, in_force: Reading, before: Reading) -> str:
        """Watches while it is measured: for its share of the usual time, or until that has told enough."""
        usual_s, watch = self.interval_s - self.settle_s, running.watch
        for look in LOOK_SHARES:
            if watch.enough is None or look >= watch.share:
                break
            if aborted := self._waiting.until(before.at_s + look * usual_s, in_force, watch):
                return aborted
            self._waiting.looks.append(self.target.read())
            so_far = measure(before, self._waiting.looks[-1])
            cost = self.cost(so_far, running.configuration)
            if watch.enough(SoFar(look, cost, so_far.completions)):
                running.share = look
                return ""
        return self._waiting.until(before.at_s + watch.share * usual_s, in_force, watch)

    def _finished(
        self, running: _Running, in_force: Reading, before: Reading, after: Reading, aborted: str
    ) -> Measurement:
        measurement = replace(measure(before, after, self._waiting.looks), aborted=aborted)
        gap, by_nodes = _gap(in_force, after)  # while it settled counts as well
        lost = gap and not by_nodes
        self.target.prolong_lease()  # what happened while another tuner had it says nothing of this one
        slept = self._slept()
        if slept:
            running.settling = None
        self._looked = None if lost else (after, running.configuration)
        others = "" if lost else slept or self._changed_by_others(running, after)
        if not (gap or others):
            self._last = after
            if not aborted:
                self._held = running.configuration
        return replace(measurement, gap=others or gap, gap_by_others=by_nodes or bool(others))

    def _slept(self) -> str:
        """That this machine was suspended: its clock does not tell how long the counters went on for."""
        before_s, self._suspended_s = self._suspended_s, self._suspended()
        if self._suspended_s - before_s < MIN_SUSPENDED_S:
            return ""
        return f"this machine was suspended for {self._suspended_s - before_s:.0f} s within the interval"

    def _look_on(self, running: _Running, began_s: float) -> Measurement:
        """An interval in what others have set, of which nothing is learned."""
        self._held = self._last = None
        self._apply_ms = math.nan
        self._sleep(self.interval_s)
        self.target.prolong_lease()
        running.set_by_others = self._tuned(self.target.configuration())
        self._looked = self.target.read(), running.set_by_others
        gap = "what another client has set stays in force"
        return Measurement(self._clock() - began_s, 0, 0, 0, gap=gap, gap_by_others=True)

    def _set_since(self) -> Configuration:
        """What another client has set of the tuned knobs since the last look; empty if nothing.

        What a server that was started anew has is nobody's choice.
        """
        if self.advise or self._looked is None:
            return {}
        before, looked = self._looked
        now = self._tuned(self.target.configuration())
        if now == looked or len(now) < len(self.space.knobs):
            return {}
        reading = self.target.read()
        self._looked = reading, now
        gap, by_nodes = _gap(before, reading)
        return {} if gap and not by_nodes else now

    def _tuned(self, configuration: Configuration) -> Configuration:
        return {name: configuration[name] for name in self.space.names if name in configuration}

    def _changed_by_others(self, running: _Running, after: Reading) -> str:
        """What another client has changed since this configuration came into force; empty if nothing."""
        if self.advise:
            return ""
        configuration, now = running.configuration, self.target.configuration()
        if gone := [in_words({name: value}) for name, value in configuration.items() if name not in now]:
            return f"another client took away what is tuned, within the interval: {', '.join(gone)}"
        if changed := _differing(configuration, now):
            running.set_by_others = self._tuned(now)
            self._looked = after, running.set_by_others
            return f"another client changed the configuration within the interval: {changed}"
        if changed := _differing(self.fixed, now):
            self.fixed = {**self.fixed, **{name: now[name] for name in self.fixed if name in now}}
            return f"another client changed what is not tuned, and what stays so: {changed}"
        return ""

    def _apply(self, configuration: Configuration) -> Applied:
        """A server may refuse one configuration, for lack of memory say: that interval is a gap.

        It is an error where several are refused in a row, or the very first, or where the configuration from
        before is not in force after it. So it is where that says nothing of the configuration: another tuner
        has the lease, or somebody took the knob away or set another value. A change that would have users'
        requests refused counts as none.
        """
        try:
            applied = self.target.apply(configuration)
        except (TargetLost, NotPutBack, LeaseTaken, NoSuchKnob, Overtaken):
            raise
        except RequestsRefused as error:
            raise _Refused(str(error)) from None
        except TargetError as error:
            self._refusals += 1
            if self._refusals > MAX_REFUSALS_IN_A_ROW or not self._applied_once:
                raise
            raise _Refused(str(error)) from None
        self._refusals, self._applied_once = 0, True
        return applied

    def _settle(self, settling: Settling | JointSettling, watch: Watch) -> tuple[str, Reading]:
        """Why the interval ended while it settled, or "" and the reading from which it is measured."""
        in_force = settling.in_force
        settled_s = in_force.at_s + settling.at_least_s(self.settle_s)
        aborted = self._waiting.until(settled_s, in_force, watch)
        last_s = settled_s + MAX_SETTLING_INTERVALS * self.interval_s
        readings = [in_force, self.target.read()]
        while not aborted and readings[-1].at_s < last_s and not settling.is_over(readings):
            next_s = readings[-1].at_s + self._waiting.poll_s
            aborted = self._waiting.until(next_s, in_force, watch)
            readings.append(self.target.read())
        return aborted, readings[-1]


def _gap(before: Reading, after: Reading) -> tuple[str, bool]:
    """Why nothing may be learned between two readings, if so; and whether only nodes of a cluster made it."""
    measurement = measure(before, after)
    return measurement.gap, measurement.gap_by_others


def _differing(expected: Configuration, now: Configuration) -> str:
    """The knobs whose value is another now: `instances 2 -> 3`."""
    different = {name: now[name] for name, value in expected.items() if now.get(name, value) != value}
    return change_in_words(expected, different) if different else ""


def check_objective(objective: Objective, reading: Reading) -> None:
    """ValueError where the target does not tell what the objective goes by."""
    if objective.slo_p95_ms is not None and reading.latency is None:
        raise ValueError(
            "the target tells no latency percentiles, so a p95 limit cannot be watched; give the metrics URL "
            "of an rrl-serve, or of an rrl-tap that its requests pass already, send a load of the run's own "
            "with --bench, or tune the mean latency without a limit"
        )
