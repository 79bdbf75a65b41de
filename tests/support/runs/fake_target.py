"""A target without a server: a deterministic queue under a clock that only sleeping moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from envs.live import LiveServing
from serving_adapter.knob_limits import KNOBS
from serving_adapter.latency_histogram import CumulativeHistogram
from serving_adapter.target import Applied, NoSuchKnob, RequestsRefused, Target, TargetError, TargetLost
from serving_adapter.target.reading import Reading

SPACE = "instances=1:3,max_batch_size=1,2,4"


class FakeClock:
    """Moves when somebody sleeps; what is due at a moment happens in the sleep that passes it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._due: list[tuple[float, Callable[[], object]]] = []

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self._due.append((self.now_s + seconds, action))

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_s += seconds
        due = [action for moment_s, action in self._due if moment_s <= self.now_s]
        self._due = [(moment_s, action) for moment_s, action in self._due if moment_s > self.now_s]
        for action in due:
            action()


class FakeTarget(Target):
    """Requests arrive at a steady rate and leave at `instances` x `service_rate_per_s`; each takes 20 ms.

    With `reloads` it is like a stock Triton: a change of anything but the instances is a new load, beside
    which the earlier one answers `draining` requests, at `drain_rate_per_s`; a glance takes its whole page.
    """

    is_local = True
    hold_several_items = False
    failing_share = 0.0  # of what leaves the server
    cluster_changed_share: float | None = None

    def __init__(self, clock: FakeClock, rate_per_s: float = 40.0, service_rate_per_s: float = 50.0) -> None:
        super().__init__("fake:1", "queue")
        self.clock = clock
        self.rate_per_s, self.service_rate_per_s = rate_per_s, service_rate_per_s
        self.found = {"instances": 2, "max_batch_size": 3}
        self.in_force = dict(self.found)
        self.arrived = self.done = 0.0
        self.updated_s = clock.now_s
        self.started_s = 0.0
        self.lost_until_s = -1.0
        self.lost_by = TargetLost("the target is lost (connection refused)")
        self.has_page = True
        self.reloads = False
        self.done_before_load = 0.0
        self.draining, self.drain_rate_per_s = 0.0, 50.0
        self.applied: list[dict[str, int]] = []
        self.reads = self.glances = self.connects = 0
        self.closed = False

    @property
    def glance_is_cheap(self) -> bool:
        return not self.reloads

    def restart(self) -> None:
        """A fresh process: counters from zero, its default configuration, an empty queue."""
        self.arrived = self.done = 0.0
        self.started_s = self.updated_s = self.clock.now_s
        self.in_force = dict(self.found)

    def lose(self, seconds: float) -> None:
        self.lost_until_s = self.clock.now_s + seconds

    def connect(self, control: bool = True, counters: bool = True) -> None:
        self.connects += 1
        if self.clock.now_s < self.lost_until_s:
            raise TargetError("the target does not answer (connection refused)")

    def knobs(self):
        return {name: KNOBS[name] for name in self.configuration()}

    def configuration(self) -> dict[str, int]:
        self._answer()
        return dict(self.in_force)

    def apply(self, configuration) -> Applied:
        self._answer()
        if self.hold_several_items and configuration["max_batch_size"] < self.found["max_batch_size"]:
            raise RequestsRefused("some requests held several items")
        if gone := configuration.keys() - self.in_force:
            raise NoSuchKnob(f"the model has no knob {', '.join(gone)}")
        self.applied.append(dict(configuration))
        before = dict(self.in_force)
        self.in_force.update(configuration)
        if not self.reloads or before == self.in_force:
            return Applied(in_place=True, cold_instances=0, changed=before != self.in_force)
        instances = self.in_force["instances"]
        if before | {"instances": instances} == self.in_force:
            return Applied(in_place=True, cold_instances=max(0, instances - before["instances"]))
        self.done_before_load = self.done
        return Applied(in_place=False, cold_instances=instances)

    def prolong_lease(self) -> None:
        self._answer()

    def read(self) -> Reading:
        self.reads += 1
        return self._reading()

    def glance(self) -> Reading:
        self.glances += 1
        return replace(self._reading(), latency=None)

    def close(self) -> None:
        self.closed = True

    def _answer(self) -> None:
        if self.clock.now_s < self.lost_until_s:
            raise self.lost_by
        passed_s = self.clock.now_s - self.updated_s
        self.updated_s = self.clock.now_s
        self.arrived += self.rate_per_s * passed_s
        self.done += min(
            self.arrived - self.done, self.in_force.get("instances", 1) * self.service_rate_per_s * passed_s
        )
        drained = min(self.draining, self.drain_rate_per_s * passed_s)
        self.draining -= drained
        self.done += drained
        self.arrived += drained
        self.done_before_load += drained

    def _reading(self) -> Reading:
        self._answer()
        done, arrived = int(self.done + 1e-6), int(self.arrived + self.draining + 1e-6)
        failed = int(self.failing_share * done)
        since_load = done - int(self.done_before_load + 1e-6) if self.reloads else None
        histogram = CumulativeHistogram((0.01, 0.04, float("inf")), (0, done, done), 0.02 * done)
        return Reading(
            at_s=self.clock.now_s,
            success=done - failed,
            failure=failed,
            inference_count=done,
            execution_count=done,
            request_s=0.02 * done,
            queue_s=0.005 * done,
            service_s=0.015 * done,
            start_time_s=self.started_s,
            in_flight=arrived - done if self.has_page else None,
            latency=histogram if self.has_page else None,
            executions_since_load=since_load,
            success_since_load=since_load,
            cluster_changed_share=self.cluster_changed_share,
        )


def live(target, space=SPACE, **options):
    """The environment over it, by its clock."""
    return LiveServing(target, space, clock=target.clock, sleep=target.clock.sleep, **options)
