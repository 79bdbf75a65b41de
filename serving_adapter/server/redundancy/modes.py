"""The resilience modes, parity excepted: what is done about a batch beside running it once.

Each mode hears of every batch when it is dispatched, answered or lost, and may run it again or answer it
approximately. The first answer counts. A request that refuses approximation waits for the exact answer.
`ServedModel` is the `Host`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from serving_adapter.server.redundancy.lane import BatchInputs, Dispatching, Lane, LaneHost
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.requests import BACKUP, DEFAULT, Batch, Request
from serving_adapter.server.workers.arena import Arena
from serving_adapter.server.workers.messages import ModelReference
from serving_adapter.server.workers.parallelism import Parallelism

RECENT_SERVICE_TIMES = 1000  # the percentile is taken of so many
SERVICE_TIMES_PER_UPDATE = 50  # the percentile is computed anew after so many
NS_PER_US, NS_PER_MS = 1000, 1_000_000
INITIAL_LATE_NS = 1_000_000_000  # until the percentile is computed for the first time


class RunsAgain(Dispatching, Protocol):
    def run_again(self, batch: Batch) -> None:
        """Has another copy of a batch run before what waits."""


class Approximating(Protocol):
    def approximate_batch(self, batch: Batch, outputs: Mapping[str, np.ndarray], origin: str) -> None:
        """Answers those requests of a batch that take an approximation and have no answer yet."""

    def approximate_request(self, request: Request, outputs: Mapping[str, np.ndarray], origin: str) -> None:
        """Answers one request, which may still be queued."""


class Host(LaneHost, Protocol):
    """What a mode needs of the model it protects."""

    @property
    def dispatcher(self) -> RunsAgain: ...

    @property
    def answers(self) -> Approximating: ...


class ResilienceMode:
    """The modes `none` and `equal-resources`: a batch runs once.

    In `equal-resources` the redundant workers run the deployed model like the others.
    """

    def __init__(self, settings: ResilienceSettings) -> None:
        self.settings = settings
        self.lanes: list[Lane] = []

    def deployed_instances(self, instances: int) -> int:
        """Workers of the deployed model; where there are lanes, the redundant workers are theirs."""
        return instances if self.lanes else instances + self.settings.redundant(instances)

    @property
    def shared_models(self) -> list[ModelReference]:
        """Models of lanes that the deployed model's own workers hold too, and run while they are idle."""
        return []

    def why_too_large(self, max_batch_size: int) -> str:
        """Says in one sentence which lane's model does not take batches of so many rows; empty if all do."""
        for lane in self.lanes:
            if lane.max_rows is not None and max_batch_size > lane.max_rows:
                return (
                    f"max_batch_size={max_batch_size} is above the {lane.max_rows} rows that the redundant "
                    f"model {lane.reference} takes, as its file says; lower it, or give one that takes more"
                )
        return ""

    async def reshape(self, parallelism: Parallelism, insists: bool = False) -> None:
        """Brings the redundant lanes' workers in line with the deployed ones."""
        redundant = self.settings.redundant(parallelism.instances)
        for lane in self.lanes:
            await lane.reshape(replace(parallelism, instances=redundant), insists)

    def dispatch(self) -> None:
        """Gives free workers of the lanes what waits there, now that no deployed batch needs them."""
        for lane in self.lanes:
            lane.dispatch()

    @property
    def idle_lane(self) -> Lane | None:
        """A lane with a worker that may run a batch of the deployed model."""
        return next((lane for lane in self.lanes if lane.pool.idle), None) if self.settings.overflow else None

    def request_arrived(self, request: Request) -> None: ...

    def batch_dispatched(self, batch: Batch) -> None:
        """A batch was handed to a worker for the first time."""

    def batch_answered(self, batch: Batch, outputs: Mapping[str, np.ndarray], service_ns: int) -> None:
        """The deployed model answered, first or late; `outputs` are views that do not last."""

    def batch_lost(self, batch: Batch) -> None:
        """A worker died with a batch, which runs again on another."""

    def batch_given_up(self, batch: Batch) -> None:
        """The deployed model will not answer: it refused the batch, or too many of its workers died."""

    def stop(self) -> None:
        """No batch comes any more; batches that are out may still be answered."""


class Replication(ResilienceMode):
    """Every batch is queued twice; the copy of a batch that has its answer does not run."""

    def __init__(self, settings: ResilienceSettings, host: Host) -> None:
        super().__init__(settings)
        self._host = host

    def batch_dispatched(self, batch: Batch) -> None:
        self._host.dispatcher.run_again(batch)


class Lateness:
    """When a batch is late: after a set time, or after a percentile of the recent service times."""

    def __init__(self, settings: ResilienceSettings) -> None:
        self._percentile = 0 if settings.late_after_us else settings.late_percentile
        self.late_ns = INITIAL_LATE_NS if self._percentile else NS_PER_US * settings.late_after_us
        """Time from its dispatch until a batch is late."""
        self._service_ns: deque[int] = deque(maxlen=RECENT_SERVICE_TIMES)
        self._seen = 0

    def observe(self, service_ns: int) -> None:
        self._service_ns.append(service_ns)
        self._seen += 1
        if self._percentile and self._seen % SERVICE_TIMES_PER_UPDATE == 0:
            self.late_ns = int(np.percentile(self._service_ns, self._percentile))


class Hedging(ResilienceMode):
    """A batch that is late runs again elsewhere."""

    def __init__(self, settings: ResilienceSettings, host: Host) -> None:
        super().__init__(settings)
        self._host = host
        self._lateness = Lateness(settings)
        self._timers: dict[Batch, asyncio.TimerHandle] = {}

    def batch_dispatched(self, batch: Batch) -> None:
        self._timers[batch] = call_after(self._lateness.late_ns, self._hedge, batch)

    def _hedge(self, batch: Batch) -> None:
        del self._timers[batch]
        if batch.is_wanted():
            self._host.dispatcher.run_again(batch)

    def batch_answered(self, batch: Batch, outputs: Mapping[str, np.ndarray], service_ns: int) -> None:
        self._lateness.observe(service_ns)
        self._forget(batch)

    def batch_given_up(self, batch: Batch) -> None:
        self._forget(batch)

    def _forget(self, batch: Batch) -> None:
        timer = self._timers.pop(batch, None)
        if timer is not None:
            timer.cancel()


class DefaultAnswer(ResilienceMode):
    """A request that has no answer `late_after_us` after its arrival gets the default one.

    `default` has one row of each output, as in Clipper's default predictions.
    """

    def __init__(self, settings: ResilienceSettings, host: Host, default: Mapping[str, np.ndarray]) -> None:
        super().__init__(settings)
        self._host, self._default = host, default

    def request_arrived(self, request: Request) -> None:
        if request.accepts_approximation:
            timer = call_after(NS_PER_US * self.settings.late_after_us, self._answer, request)
            request.future.add_done_callback(lambda _: timer.cancel())

    def _answer(self, request: Request) -> None:
        if not request.future.done():
            outputs = {
                name: np.broadcast_to(row, (request.rows, *row.shape[1:]))
                for name, row in self._default.items()
            }
            self._host.answers.approximate_request(request, outputs, DEFAULT)


class ApproximateBackup(ResilienceMode):
    """Every batch also runs on a cheaper model in a lane of its own (ParM, section 6.2.6)."""

    def __init__(self, settings: ResilienceSettings, host: Host, lane: Lane) -> None:
        super().__init__(settings)
        self._host, self.lanes = host, [lane]

    def batch_dispatched(self, batch: Batch) -> None:
        self.lanes[0].put(BackupCopy(self._host, batch))


class BackupCopy:
    """A batch as the backup model's lane runs it."""

    def __init__(self, host: Host, batch: Batch) -> None:
        self._host, self._batch = host, batch

    def is_wanted(self) -> bool:
        return self._batch.may_be_approximated()

    def write(self, arena: Arena) -> BatchInputs:
        return BatchInputs(self._batch.write(self._host.inputs, arena))

    def lane_answered(self, outputs: dict[str, np.ndarray]) -> None:
        self._host.answers.approximate_batch(self._batch, outputs, BACKUP)


def call_after(delay_ns: int, call: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
    """Calls after a delay, never before it is over: the event loop's clock ticks in milliseconds."""
    return asyncio.get_running_loop().call_later(math.ceil(delay_ns / NS_PER_MS) * 1e-3, call, *arguments)
