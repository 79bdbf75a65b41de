"""When a configuration that came into force on a live target has settled, so that it can be measured.

Until then the requests that are answered tell nothing of it:

- requests that were queued under the configuration before, and those that queued behind them,
- requests that a stock Triton's earlier load of the model still drains,
- the first requests of each new process, which are slow.

The queue matters most. Many requests pile up beside a reload, which takes seconds. A configuration close to
its capacity then works for many more seconds until they are gone. In a trial, one that cost 28 ms cost 60 ms
right after a reload (MiniLM at 50 requests a second).

Cold processes matter at low load. On a Triton whose processes take 100 ms longer for their first batch, an
interval at 8 requests/s measured 22 ms with its cold batches. Without them it measured 3 ms.

A new load settles for longer, probably because the old processes end beside it. In the second after a reload
had settled for one, the median request took 1.2 times as long as a second later (MiniLM, 131 reloads;
EfficientNet-Lite0: 1.0, 79 reloads).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving_adapter.target.reading import Reading

MAX_SETTLING_INTERVALS = 2.0  # after so many more the configuration is measured as it is
WARM_UP_BATCHES = 3  # the first batches of an instance, which are slow
RELOAD_SETTLE_FACTOR = 2.0  # a reload settles at least this many times as long as other changes
SHORT_QUEUE_PER_INSTANCE = 2  # no more requests than this have piled up
MAX_DRAIN_SHARE = 0.05  # the share of answers that may still come from instances of an earlier load


@dataclass(frozen=True)
class Settling:
    """What is waited for after one change."""

    in_force: Reading  # the first under it
    in_place: bool
    instances: int
    max_batch_size: int
    cold_instances: int  # how many of the instances started with the change

    def at_least_s(self, settle_s: float) -> float:
        """Twice as long after a new load, beside which the one before ends."""
        return settle_s if self.in_place else RELOAD_SETTLE_FACTOR * settle_s

    def is_over(self, readings: Sequence[Reading]) -> bool:
        """Judges by the readings since the change is in force: that first reading and at least one more."""
        last, now = readings[-2:]
        return (
            self._queue_is_answered(now)
            and not self._queue_drains(readings)
            and _is_drained(last, now)
            and self._is_warm(now)
        )

    def _queue_is_answered(self, now: Reading) -> bool:
        """After a restart there are no such requests to wait for."""
        answered = now.answered - self.in_force.answered
        return answered < 0 or answered >= self.in_force.backlog

    def _queue_drains(self, readings: Sequence[Reading]) -> bool:
        """A queue that piled up gets shorter. One that twice in a row does not is the configuration's own."""
        now = readings[-1]
        in_service = 0 if now.in_flight is None else self.instances * self.max_batch_size  # at most
        if not SHORT_QUEUE_PER_INSTANCE * self.instances + in_service < now.backlog < self.in_force.backlog:
            return False
        lengths = [reading.backlog for reading in readings[-3:]]
        return len(lengths) < 3 or lengths[2] < lengths[1] or lengths[1] < lengths[0]

    def _is_warm(self, now: Reading) -> bool:
        """True once each instance has run its first batches: all instances share the batches by then.

        After a new load its own executions count, where the server reports them. Other executions drain the
        queue of the load before.
        """
        if not self.cold_instances:
            return True
        executions = now.execution_count - self.in_force.execution_count
        if not self.in_place and now.executions_since_load is not None:
            executions = now.executions_since_load - (self.in_force.executions_since_load or 0)
        return executions >= WARM_UP_BATCHES * max(self.instances, self.cold_instances)


def _is_drained(last: Reading, now: Reading) -> bool:
    """True if an earlier load of the model answers next to nothing any more, or nothing tells."""
    earlier = (last.answered_by_earlier_loads, now.answered_by_earlier_loads)
    if earlier[0] is None or earlier[1] is None or not now.backlog:
        return True
    return earlier[1] - earlier[0] <= max(1.0, MAX_DRAIN_SHARE * (now.success - last.success))
