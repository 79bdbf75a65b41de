"""`--apply-after-advise`: one change, asked for on the terminal, watched by the guard, undone if it is worse.

It is a tuning run whose agent knows a single configuration. The start is measured first, then the recommended
configuration. Both are judged and journalled as in any run.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

import numpy as np
from rich.console import Console

from rrl.agent import Agent, Transition
from rrl.belief.belief import Belief
from rrl.guarding.choice import ToKeep
from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.journal import Journal
from rrl.knobs import in_words
from rrl.objective import make_objective
from rrl.records import Header
from rrl.space import Configuration, ConfigurationSpace
from rrl.tuning.change_limits import ChangeLimits
from rrl.tuning.change_log import ChangeLog
from rrl.tuning.ending import Kept
from rrl.tuning.environment import Environment
from rrl.tuning.keeping import BestInStateFile, Keeping
from rrl.tuning.listener import Change, Listener
from rrl.tuning.loop import Tuning
from rrl.tuning.restore import RestorePoint
from rrl.tuning.settings import BASELINE_WITHOUT_VALIDATION, TuningSettings
from rrl.tuning.stop import handled_by
from rrl.views.terminal import make_view

AGENT = "advice"  # In the journal's header.
SETTINGS = TuningSettings(intervals=5, baseline=BASELINE_WITHOUT_VALIDATION, validation=0)


def check_can_ask(stdin: TextIO | None = None) -> None:
    """ValueError where nobody could answer."""
    if not (stdin or sys.stdin).isatty():
        raise ValueError(
            "--apply-after-advise asks on the terminal before it changes anything, and there is none here; "
            "run it in a terminal, or apply what --advise recommends by hand"
        )


def agreed(console: Console) -> bool:
    """Asks once. Anything but a yes is a no. Ctrl-C and SIGTERM raise KeyboardInterrupt."""
    try:
        with handled_by(signal.default_int_handler):  # A handler must raise: `input` would wait on.
            answer = console.input("apply it? \\[y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def check_allowed(limits: ChangeLimits, interval_s: float, clock: Callable[[], float] = time.time) -> None:
    """ValueError outside the change window, or too near to its end to undo the change."""
    longest_s = 2 * interval_s * (SETTINGS.baseline + SETTINGS.intervals)
    if pause := limits.pause(clock(), changes=2, lasting_s=longest_s):
        raise ValueError(f"nothing was applied, no change is allowed now: {pause}")


def two_configurations(found: Configuration, recommended: Configuration) -> ConfigurationSpace:
    """The smallest grid that holds both, over the knobs of the recommendation."""
    return ConfigurationSpace.of(**{name: sorted({found[name], recommended[name]}) for name in recommended})


class Recommended(Agent):
    """Proposes one configuration until the guard puts another in force, and the start from then on."""

    def __init__(self, space: ConfigurationSpace, start: int, recommended: int) -> None:
        self._space, self._start, self._proposal = space, start, recommended
        self._asked = False

    def act(self, observation: np.ndarray) -> np.ndarray:
        self._asked = True
        return self._space.action(self._proposal)

    def update(self, transition: Transition) -> None:
        if self._asked and self._space.number_of_action(transition.action) != self._proposal:
            self._proposal = self._start

    def explain(self) -> str:
        return "applies what was recommended, as agreed"


@dataclass
class ApplyingGuard(Guard):
    """Keeps what was applied unless it turned out worse than the start. A tuning run asks for more proof."""

    applied: int = 0

    def keeping(self, turn_costs: object = None) -> ToKeep:
        costs = self.choice.costs_at_present_load
        if self.applied not in costs or self.start not in costs:
            return ToKeep(self.start, "what was recommended could not be measured")
        if not self.fitness.fits(self.applied):
            return ToKeep(self.start, "what was recommended failed, was aborted or broke the limit")
        if self.expected.known:
            after, before = self.expected.costs_kept((self.applied, self.start), beside=self.start)
            words = f"while it is kept its cost is expected to be {after:.1f}, and {before:.1f} without it"
        else:
            after, before = (float(np.mean(costs[number])) for number in (self.applied, self.start))
            words = f"its mean cost was {after:.1f}, {before:.1f} before"
        if after <= before:
            return ToKeep(self.applied, f"what was recommended is no worse: {words}")
        return ToKeep(self.start, f"what was recommended is worse: {words}")


@dataclass
class AgreedChange:
    """The change somebody said yes to. `keeping` and `point` see to the target, however it ends.

    `check_allowed` has seen that the hour's changes suffice for it, and for undoing it where an hour may have
    two. It does not wait for more, as undoing is never held back.
    """

    env: Environment
    header: Header  # As of a tuning run.
    recommended: Configuration
    folder: Path  # Of the journal and the log of changes.
    point: RestorePoint
    keeping: Keeping
    limits: ChangeLimits = field(default_factory=ChangeLimits)
    restored: Change | None = None  # What put back the configuration that a killed run had found.

    def run(self, console: Console, stop: Callable[[], bool] = lambda: False) -> Kept:
        space, header = self.env.space, self._header()
        start = space.number(header.start)
        applied = space.number({name: self.recommended[name] for name in space.names})
        objective = make_objective(header.objective, header.slo_p95_ms)
        settings = GuardSettings(slo_p95_ms=header.slo_p95_ms, cost_is_latency=objective.unit == "ms")
        belief = Belief(space, objective, header.cores, found=header.found)
        guard = ApplyingGuard(start, settings, expectation=belief, applied=applied)
        log = Journal.create(self.folder, header)
        try:
            self.point.claim(
                header.found, header.found_config_pbtxt or "", header.settle_s + header.interval_s
            )
            with ExitStack() as stack:
                unless_begun = stack.enter_context(ExitStack())
                unless_begun.callback(self.keeping.leave)  # Nothing was changed.
                view = make_view(console, log, guard, SETTINGS, header.found)
                stack.callback(view.close)
                state = BestInStateFile(self.point, guard, space)
                listeners: list[Listener] = [ChangeLog(self.folder), view, state]
                if self.restored is not None:
                    self.limits.changed(self.restored.at.timestamp())
                    for listener in listeners:
                        listener.changed(self.restored)
                agent = Recommended(space, start, applied)
                run = (self.env, agent, guard, log, SETTINGS, listeners, stop, self.keeping.put_in_force)
                limits = self.limits.without_hourly_limit()
                tuning = Tuning(*run, limits=limits, leave=self.keeping.leave)
                unless_begun.pop_all()
                kept = tuning.run()
        finally:
            log.close()
            if self.keeping.done:
                self.point.release()
        in_force = in_words(space.configuration(kept.number)) if kept.known else "what another client set"
        console.print(f"in force: {in_force} ({kept.reason}); journal and changes.log in {self.folder}")
        return kept

    def _header(self) -> Header:
        return replace(self.header, agent=AGENT, intervals=SETTINGS.intervals, validation=SETTINGS.validation)
