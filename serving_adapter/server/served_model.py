"""One model being served, and the live configuration of its serving.

    infer() -> queue -> Dispatcher -> a worker -> Answers -> infer() returns

All of it runs on the front's event loop. `redundancy` says what is done about slow and failed workers
beside running a batch again. docs/architecture.md shows where this stands in the whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace

from serving_adapter.knob_limits import KNOBS
from serving_adapter.server.answers import Answers
from serving_adapter.server.configuration import NO_PRIORITIES, Knobs, Priorities, Protection
from serving_adapter.server.dispatcher import Dispatcher
from serving_adapter.server.failure_log import FailureLog
from serving_adapter.server.queue.in_flight import InFlight
from serving_adapter.server.recording import Recording
from serving_adapter.server.redundancy.mode_switch import ModeSwitch
from serving_adapter.server.redundancy.modes import ResilienceMode
from serving_adapter.server.redundancy.redundant_models import RedundantModels
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.requests import (
    Answer,
    HoldsAnswer,
    InputTensor,
    Overloaded,
    Request,
    hold_any,
    tell,
)
from serving_adapter.server.statistics.model_statistics import FailureReason, ModelStatistics
from serving_adapter.server.surroundings import THIS_MACHINE, Surroundings
from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.server.workers.messages import ModelReference
from serving_adapter.server.workers.pool import WorkerPool
from serving_adapter.tensors import TensorSpec

log = logging.getLogger(__name__)

MODEL_VERSION = "1"  # every model has this one version
WATCHES_PER_TIMEOUT = 10  # so a hung worker is found at most this fraction of the timeout late


class ServedModel:
    """Serves one model. `infer`, `check`, `apply` and `close` are its interface, the rest is to be read."""

    def __init__(
        self,
        name: str,
        model: ModelReference,
        device: str,
        knobs: Knobs,
        protection: Protection,
        resilience: ResilienceSettings,
        redundant_models: RedundantModels,
        surroundings: Surroundings = THIS_MACHINE,
        priorities: Priorities = NO_PRIORITIES,
    ) -> None:
        self.name, self.model, self.device, self.surroundings = name, model, device, surroundings
        self.protection, self.priorities = protection, priorities
        self.statistics = ModelStatistics()
        self.inputs: dict[str, TensorSpec] = {}
        self.outputs: dict[str, TensorSpec] = {}
        self.max_rows = KNOBS["max_batch_size"].high  # of a request or a batch
        self.parts = 1  # that nodes can run together
        self.is_open = False  # from its start to its end
        self.is_draining = False  # it answers what it has, and is to get nothing new
        self._may_lack_workers = False  # when it starts
        self.recording: Recording | None = None
        self.pool = WorkerPool(
            list(dict.fromkeys([model, *redundant_models.shared_for(resilience)])),
            device,
            lambda: self.dispatcher.dispatch(),
            surroundings.launch,
            surroundings.start_timeout_s,
        )
        self._in_flight = InFlight(max(1, priorities.levels))
        now_ns = surroundings.now_ns
        self.answers = Answers(
            self._in_flight,
            self.statistics,
            self.outputs,
            protection,
            now_ns,
            FailureLog(name, now_ns),
        )
        self.dispatcher = Dispatcher(
            self.pool, self._in_flight, self.answers, self.inputs, self.statistics, now_ns
        )
        self._modes = ModeSwitch(self, redundant_models)
        self._put_in_force(knobs, resilience, ResilienceMode(ResilienceSettings()))
        self._apply_lock = asyncio.Lock()
        self._watchdog: asyncio.Task[None] | None = None

    # --- readings ----------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether somebody can answer: a worker is there. Requests are taken without one, and wait for it."""
        return self.is_open and not self.is_draining and self.pool.can_serve

    @property
    def queued(self) -> int:
        """Requests that wait for a worker."""
        return len(self._in_flight.queue)

    @property
    def in_flight(self) -> int:
        """Requests that wait or are being run."""
        return self._in_flight.requests

    @property
    def held_bytes(self) -> int:
        """What the inputs of these requests take."""
        return self._in_flight.held_bytes

    @property
    def has_parallel_branches(self) -> bool:
        return self.pool.has_parallel_branches

    @property
    def pools(self) -> list[WorkerPool]:
        """The deployed model's workers, then those of the redundant lanes."""
        return [self.pool, *self._modes.pools]

    @property
    def replacements(self) -> int:
        """Workers replaced because they died or hung."""
        return self.pool.replacements + self._modes.replacements

    @property
    def redundant_batches(self) -> int:
        """Parity and backup batches run so far."""
        return self._modes.executed

    # --- life and configuration --------------------------------------------------------------------

    async def start(self) -> None:
        description = await self.pool.start()
        self.inputs.update((spec.name, spec) for spec in description.inputs)
        self.outputs.update((spec.name, spec) for spec in description.outputs)
        self.max_rows = min(self.max_rows, description.max_rows or self.max_rows)
        self.parts = description.parts
        try:
            self.check(self.knobs, self.resilience)
        except ValueError as error:
            raise ModelFailed(str(error)) from None
        mode = await self._modes.make(self.resilience)
        self._put_in_force(self.knobs, self.resilience, mode)
        await self._check_workers(mode, self.knobs)
        await self._reshape(mode, self.knobs, insists=self._may_lack_workers)
        if not self.pool.can_serve:
            raise ModelFailed(f"no worker of model {self.name!r} fits now")
        self._watchdog = asyncio.get_running_loop().create_task(self._kill_hung_workers())
        self.is_open = True

    def check(self, knobs: Knobs, resilience: ResilienceSettings) -> None:
        """Raises ValueError, in one sentence, for what this model cannot be served with."""
        if knobs.max_batch_size > self.max_rows:
            raise ValueError(
                f"max_batch_size={knobs.max_batch_size} is above the {self.max_rows} rows that model "
                f"{self.name!r} takes, as its file says; lower it"
            )
        share = self.surroundings.share
        if knobs.instances < share.fronts:
            raise ValueError(
                f"instances={knobs.instances} is below the {share.fronts} fronts, each of which needs a "
                "worker of its own; raise it, or start the server with fewer --fronts"
            )
        if knobs.placement.nodes_per_unit > 1:
            self._check_unit(knobs.placement.nodes_per_unit, resilience)
        self._modes.check(resilience, share.least(knobs.instances))
        if resilience == self.resilience and (too_large := self._mode.why_too_large(knobs.max_batch_size)):
            raise ValueError(too_large)

    def start_with(self, knobs: Knobs, resilience: ResilienceSettings) -> None:
        """In place of what it was made with, before it starts; where not all workers fit, some come later."""
        self._put_in_force(knobs, resilience, self._mode)
        self._may_lack_workers = True

    def _check_unit(self, nodes: int, resilience: ResilienceSettings) -> None:
        if self.parts == 1:
            raise ValueError(
                f"nodes_per_unit={nodes} needs a plan for tensor parallelism, which model {self.name!r} does "
                "not carry; give its factory one, or set nodes_per_unit to 1"
            )
        if self.parts % nodes:
            raise ValueError(
                f"nodes_per_unit must divide the {self.parts} parts that model {self.name!r} can be split "
                f"into, got {nodes}"
            )
        if resilience.mode != "none":
            raise ValueError(
                f"nodes_per_unit={nodes} does not go with the resilience mode {resilience.mode}; use none"
            )

    async def apply(self, knobs: Knobs, resilience: ResilienceSettings, insists: bool = False) -> None:
        """Puts a configuration in force without losing a request; if that fails, the old one stays.

        Where it `insists`, workers that do not fit now come later, and what is in force is left alone. They
        come later, too, where the change asks for none that was not to be there already.
        """
        async with self._apply_lock:
            if not self.is_open:
                raise ModelFailed("the server is shutting down")
            if insists and (knobs, resilience) == (self.knobs, self.resilience):
                return
            before, old = self.knobs, self._mode
            new = old if resilience == self.resilience else await self._modes.make(resilience)
            try:
                await self._check_workers(new, knobs)
                asks_for_no_more = new is old and knobs.parallelism == self.knobs.parallelism
                await self._reshape(new, knobs, insists or asks_for_no_more)
                self._put_in_force(knobs, resilience, new)
            except Exception:
                await self._reshape(old, before, insists=True)
                raise
            finally:
                self._modes.keep_only(self._mode)
            if new is not old:
                old.stop()
            self.dispatcher.dispatch()

    def _put_in_force(self, knobs: Knobs, resilience: ResilienceSettings, mode: ResilienceMode) -> None:
        self.knobs, self.resilience, self._mode = knobs, resilience, mode
        self.dispatcher.put_in_force(self._own_part(knobs), mode)

    def _own_part(self, knobs: Knobs) -> Knobs:
        """With the instances of this front alone; in `knobs` they are those of all fronts together."""
        return replace(knobs, instances=self.surroundings.share.of(knobs.instances))

    async def _check_workers(self, mode: ResilienceMode, knobs: Knobs) -> None:
        """Raises ModelFailed where redundant models take smaller batches, or all threads find no room."""
        if too_large := mode.why_too_large(knobs.max_batch_size):
            raise ModelFailed(too_large)
        instances = self._own_part(knobs).instances
        redundant = len(mode.lanes) * mode.settings.redundant(instances)
        workers = mode.deployed_instances(instances) + redundant
        pids = [worker.pid for pool in self.pools for worker in pool.workers]
        await self.surroundings.check_threads(pids, workers, knobs.intra_op_threads)

    async def _reshape(self, mode: ResilienceMode, knobs: Knobs, insists: bool = False) -> None:
        """More workers first, so that what waits has someone to run it."""
        parallelism = self._own_part(knobs).parallelism
        await mode.reshape(parallelism, insists)
        wanted = replace(parallelism, instances=mode.deployed_instances(parallelism.instances))
        await self.pool.reshape(wanted, insists, mode.shared_models)

    async def close(self, grace_s: float) -> None:
        """Answers what is queued (for at most `grace_s`), fails the rest, ends the workers."""
        self.is_open = False
        try:
            await asyncio.wait_for(self._in_flight.until_none(), grace_s)
        except TimeoutError:
            sentence = "the server is shutting down; send the request to another"
            self.answers.fail(self._in_flight.withdraw_all(), sentence, FailureReason.OTHER)
        if self._watchdog is not None:
            self._watchdog.cancel()
        self.dispatcher.stop()
        self._mode.stop()
        await asyncio.gather(self._modes.close(), self.pool.close())

    async def _kill_hung_workers(self) -> None:
        """Ends a worker that holds its batch for too long; the batch then runs elsewhere."""
        timeout_s = self.protection.worker_timeout_s
        while True:
            await asyncio.sleep(timeout_s / WATCHES_PER_TIMEOUT)
            late_ns = self.surroundings.now_ns() - int(timeout_s * 1e9)
            for pool in self.pools:
                for worker in pool.workers:
                    if worker.job is not None and worker.job.dispatched_ns < late_ns:
                        log.warning("worker %d holds a batch for over %g s; ending it", worker.pid, timeout_s)
                        pool.kill(worker)

    # --- requests ----------------------------------------------------------------------------------

    async def infer(
        self,
        inputs: Sequence[InputTensor],
        accepts_approximation: bool = True,
        wanted: Collection[str] = (),
        hold_answer: HoldsAnswer = hold_any,
        priority: int = 0,
    ) -> Answer:
        """Queues a request and awaits its answer.

        Its inputs are checked, and in the order of `self.inputs`; `wanted` are the outputs that it gets, all
        if empty. `hold_answer` is asked before it counts as answered. `priority` is one of the levels, 0 for
        the default. Overloaded if it is one too many.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        arrived_ns = self.surroundings.now_ns()
        key = self._shape_key(inputs)
        level = max(0, (priority or self.priorities.default) - 1)
        request = Request(inputs, key, future, arrived_ns, accepts_approximation, wanted, hold_answer, level)
        self.statistics.arrivals.record(request.arrived_ns, request.rows)
        if self.recording is not None:
            tell(self.recording.show, self.inputs, inputs, arrived_ns)
        self._check_room(request)
        self._in_flight.add(request)
        tell(self._mode.request_arrived, request)
        try:
            self.dispatcher.dispatch()
            return await future
        except BaseException:  # the client went away, or its deadline passed
            self.answers.abandon(request)
            raise

    def _check_room(self, request: Request) -> None:
        """Raises Overloaded where a request is one too many, or too large beside those that are here."""
        held_bytes, most_bytes = self._in_flight.held_bytes, self.protection.max_held_bytes
        if self.queued >= self.protection.max_queue_size:
            full = f"{self.protection.max_queue_size} requests wait"
        elif held_bytes and held_bytes + request.size_bytes > most_bytes:
            full = (
                f"its inputs take {held_bytes} of {most_bytes:.0f} bytes, and these {request.size_bytes} more"
            )
        else:
            return
        self.statistics.record_failure(0, FailureReason.REJECTED)
        raise Overloaded(f"the queue of model {self.name!r} is full ({full}); send less, or later")

    def _shape_key(self, inputs: Sequence[InputTensor]) -> Hashable:
        """Inputs that can be padded may differ in shape; the others must agree."""
        return tuple(
            None if spec.pad_value is not None else tensor.shape[1:]
            for spec, tensor in zip(self.inputs.values(), inputs, strict=True)
        )
