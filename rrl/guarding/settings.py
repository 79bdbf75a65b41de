"""When the guard steps in."""

from __future__ import annotations

from dataclasses import dataclass

from rrl.measured_costs import NOISE


@dataclass(frozen=True)
class GuardSettings:
    """A configuration fails where more requests failed than all three failure settings allow."""

    slo_p95_ms: float | None = None  # the objective's limit: breaking it rolls back
    latency_factor: float = 3.0  # a cost this many times the start's, under the same arrivals, rolls back
    cost_is_latency: bool = (
        True  # False: a high cost is no harm to users, as of the objective least-resources
    )
    closed_loop: bool = False  # requests wait for answers, so that their rate follows from the configuration
    bears_better: float = 1.25  # a queue is a runaway only where what is safe bears so many times as much
    spare: float = 0.2  # the share of its capacity that the start must have to spare to be put in force again
    runaway_sigmas: float = 4.0  # z: the queue grew beyond noise (one false alarm in 30,000 looks)
    runaway_wait_ms: tuple[float, float] = (250.0, 2000.0)  # bounds of the wait that a runaway queue adds
    watch_s: float = 1.0  # no interval is aborted before so many seconds
    watch_arrivals: int = 20  # no interval is aborted before so many arrivals
    cooldown: int = 20  # intervals for which an aborted or failing configuration is refused
    failures: int = 3  # failed requests that an interval may have
    failure_share: float = 0.01  # the share of the answered requests that may fail
    failure_sigmas: float = 3.0  # how far beyond the start's rate, in standard deviations, failures may go
    chance_of_losses: float = 0.05  # less probable losses of the target are not chance
    noise: float = NOISE  # ν: relative standard deviation of one interval's cost
    drain_sigmas: float = 3.0  # a queue that goes down by more than this is one that an interval left behind
    drain_intervals: int = 5  # at most so many intervals in a row are spent on draining a queue

    def failures_allowed(self, answered: int) -> float:
        """How many of so many answered requests may fail, whatever fails under the start."""
        return max(self.failures, self.failure_share * answered)
