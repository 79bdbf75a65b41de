"""How the live environment waits: for a moment while somebody watches, and for a target that is away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rrl.interval import Watch
from rrl.measurement import Progress
from rrl.space import Configuration
from serving_adapter.target import (
    Applied,
    LeaseTaken,
    LostInChange,
    NoSuchKnob,
    NotPutBack,
    Overtaken,
    Target,
    TargetError,
    TargetLost,
)
from serving_adapter.target.reading import Reading

FIRST_RETRY_S = 0.5
MAX_RETRY_S = 2.0

UNCHANGED = Applied(in_place=True, cold_instances=0, changed=False)


@dataclass(frozen=True)
class Waiting:
    """Waits by a clock that tests replace."""

    target: Target
    poll_s: float  # how often a running interval is looked at
    reconnect_s: float  # how long to wait for a lost target
    changes: bool  # False: the target's configuration must stay as it is
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    # At the target while it waited, until they are cleared.
    looks: list[Reading] = field(default_factory=list)
    # Told again and again why a target is away, and for how long.
    away: list[Callable[[str, float], None]] = field(default_factory=list)

    def until(self, moment_s: float, in_force: Reading, watch: Watch, glances: bool = True) -> str:
        """Waits until a moment and shows the progress to the watch. Returns its reason to end, if any.

        Progress counts from the reading `in_force`. Without `glances` the target is not asked meanwhile.
        """
        while (left_s := moment_s - self.clock()) > 0:
            self.sleep(min(self.poll_s, left_s))
            if not glances or watch.interrupt is None or self.clock() >= moment_s:
                continue
            self.looks.append(self.target.glance())
            if reason := watch.interrupt(_progress(in_force, self.looks[-1])):
                return reason
        return ""

    def for_target(self, configuration: Configuration, lost: TargetLost, puts_back: bool = True) -> Applied:
        """Waits for a lost target, ever longer between attempts, and puts the configuration in force again.

        Returns what that changed. A configuration whose change may have brought the target down is not put in
        force again, nor is one that the target refuses once it is back: the next interval decides. Raises
        NotPutBack if nothing is in force then, LeaseTaken if another tuner has come first, NoSuchKnob if the
        target has lost one, and TargetLost if it stays away. Overtaken if another client has set another one
        meanwhile. Unless it `puts_back`, it changes nothing.
        """
        began_s = self.clock()
        end_s = began_s + self.reconnect_s
        wait_s = FIRST_RETRY_S
        reason = str(lost)
        while (left_s := end_s - self.clock()) > 0:
            self.sleep(min(wait_s, left_s))
            wait_s = min(2 * wait_s, MAX_RETRY_S)
            for told in self.away:
                told(reason, self.clock() - began_s)
            is_back = False
            try:
                self.target.connect(control=self.changes)
                is_back = True
                if self.changes and puts_back and not isinstance(lost, LostInChange):
                    return self.target.apply(configuration)
                return UNCHANGED
            except LostInChange as error:
                lost, reason = error, str(error)
            except (NotPutBack, LeaseTaken, NoSuchKnob, Overtaken):
                raise
            except TargetError as error:
                if is_back and not isinstance(error, TargetLost):
                    return UNCHANGED
                reason = str(error)
        raise TargetLost(f"the target did not come back within {self.reconnect_s:g} s: {reason}")


def _progress(in_force: Reading, now: Reading) -> Progress:
    """What happened since the configuration came into force. A restart makes the counters fall."""
    return Progress(
        elapsed_s=now.at_s - in_force.at_s,
        arrivals=max(0, now.arrivals - in_force.arrivals),
        completions=max(0, now.success - in_force.success),
        backlog=now.backlog,
        backlog_growth=now.backlog - in_force.backlog,
        failures=max(0, now.failure - in_force.failure),
    )
