"""When a configuration that came into force on a live target has settled, so that it can be measured.

Until then requests are answered that tell nothing of it: those queued under the configuration before and
those that queued behind them, those that a stock Triton's earlier load of the model still drains, and the
first of each new process, which are slow. The queue matters most: a reload takes seconds, in which many
requests pile up beside it, and a configuration close to its capacity works for many seconds more until they
are gone; in a trial, one that cost 28 ms cost 60 ms right after a reload (MiniLM at 50 requests a second).
In another, on a Triton whose processes take 100 ms longer for their first batch, at 8 requests a second, an
interval measured 22 ms while cold batches counted, and 3 ms without them, as the interval after. And where a
reload had settled for a second, the median request of the next second took 1.2 times as long as that of the
one after it (MiniLM, 131 reloads; EfficientNet-Lite0 1.0, 79), probably as the old processes
end beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving_adapter.target.reading import Reading

LONGEST_SETTLING = 2.0  # intervals, after which the configuration is measured as it is
COLD_BATCHES = 3  # of each instance
AFTER_RELOAD = 2.0  # times as long as after other changes it takes to settle, at least
SHORT_QUEUE = 2  # requests that wait for each instance: nothing piled them up
DRAIN_SHARE = 0.05  # of the answers: so few may still come from instances of an earlier load


@dataclass(frozen=True)
class Settling:
    """What is waited for after one change."""

    in_force: Reading  # the first under it
    in_place: bool
    instances: int
    max_batch_size: int
    cold_instances: int  # of them, or of those that replace them

    def at_least_s(self, settle_s: float) -> float:
        """Twice as long after a new load, beside which the one before ends."""
        return settle_s if self.in_place else AFTER_RELOAD * settle_s

    def is_over(self, readings: Sequence[Reading]) -> bool:
        """By the readings since it is in force, that one first: two at least."""
        last, now = readings[-2:]
        return (
            self._queue_is_answered(now)
            and not self._queue_drains(readings)
            and _is_drained(last, now)
            and self._is_warm(now)
        )

    def _queue_is_answered(self, now: Reading) -> bool:
        """After a restart none of those requests are left to wait for."""
        answered = now.answered - self.in_force.answered
        return answered < 0 or answered >= self.in_force.backlog

    def _queue_drains(self, readings: Sequence[Reading]) -> bool:
        """A queue that piled up gets shorter; one that twice in a row does not is the configuration's own."""
        now = readings[-1]
        in_service = 0 if now.in_flight is None else self.instances * self.max_batch_size  # at most
        if not SHORT_QUEUE * self.instances + in_service < now.backlog < self.in_force.backlog:
            return False
        lengths = [reading.backlog for reading in readings[-3:]]
        return len(lengths) < 3 or lengths[2] < lengths[1] or lengths[1] < lengths[0]

    def _is_warm(self, now: Reading) -> bool:
        """All instances share the batches since they are all there.

        After a new load its own executions count, where they are told: those from before drain a queue.
        """
        if not self.cold_instances:
            return True
        executions = now.execution_count - self.in_force.execution_count
        if not self.in_place and now.executions_since_load is not None:
            executions = now.executions_since_load - (self.in_force.executions_since_load or 0)
        return executions >= COLD_BATCHES * max(self.instances, self.cold_instances)


def _is_drained(last: Reading, now: Reading) -> bool:
    """True if an earlier load of the model answers next to nothing any more."""
    earlier = (last.answered_by_earlier_loads, now.answered_by_earlier_loads)
    if earlier[0] is None or earlier[1] is None or not now.backlog:
        return True
    return earlier[1] - earlier[0] <= max(1.0, DRAIN_SHARE * (now.success - last.success))
