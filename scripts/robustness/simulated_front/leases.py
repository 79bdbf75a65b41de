"""Who asked for the lease on the model, what the server said, and whether that is right.

Who is refused changes nothing. A lease that has ended is free, but nobody gets it while a change of its last
owner is under way. A change by hand asks for none and is let through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from scripts.robustness.simulated_front.virtual_time import SimulatedLoop

STEPS_TO_HEAR = 3  # of the loop, from the end of a change until its client is seen to have the answer
NOT_TAKEN = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE)  # refused before the lease is


@dataclass
class AskedLease:
    """One load that asked for the lease, when it reached the server and when its answer was heard."""

    owner: str
    duration_ms: int
    at_ns: int
    step: int
    code: grpc.StatusCode | None = None
    answered_step: int = 0


class LeaseLog:
    """Every load that asked for the lease, in the order in which they reached the server."""

    def __init__(self, loop: SimulatedLoop, note: Callable[..., None]) -> None:
        self._loop, self._note = loop, note
        self._asked: list[AskedLease] = []

    def asked(self, owner: str, duration_ms: int) -> AskedLease:
        """A load is sent, which the server takes before any time passes."""
        asked = AskedLease(owner, duration_ms, self._loop.now_ns(), self._loop.steps)
        self._asked.append(asked)
        self._note("asks for the lease", owner, f"{duration_ms} ms")
        return asked

    def answered(self, asked: AskedLease, code: grpc.StatusCode) -> None:
        asked.code, asked.answered_step = code, self._loop.steps
        self._note("hears of the lease", asked.owner, code.name)

    def wrong(self) -> str:
        """Who got the lease, or was refused it, against the rule, in a sentence; empty where nobody did."""
        owner, ends_ns = "", 0
        taken: list[AskedLease] = []
        for asked in self._asked:
            if asked.code in (None, grpc.StatusCode.CANCELLED):  # the end: nobody was told what became of it
                return ""
            if asked.code in NOT_TAKEN:
                continue
            is_held = asked.owner != owner and asked.at_ns < ends_ns
            others = [one.answered_step - asked.step for one in taken if one.owner != asked.owner]
            if asked.code == grpc.StatusCode.FAILED_PRECONDITION:
                if not is_held and not any(steps >= 0 for steps in others):
                    return f"{asked.owner} was refused the lease at {_ms(asked.at_ns)}, but it was free"
                continue
            if is_held:
                return f"{asked.owner} got the lease at {_ms(asked.at_ns)} that {owner} had"
            if any(steps > STEPS_TO_HEAR for steps in others):
                return f"{asked.owner} got the lease at {_ms(asked.at_ns)} while another changed the model"
            owner, ends_ns = asked.owner, asked.at_ns + 1_000_000 * asked.duration_ms
            taken.append(asked)
        return ""


def _ms(at_ns: int) -> str:
    return f"{at_ns / 1e6:.3f} ms"
