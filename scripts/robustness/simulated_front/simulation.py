"""One seed from start to end: the server starts, is called, changed and struck, comes to rest and ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tritonclient.grpc import service_pb2 as pb

from scripts.robustness.simulated_front import troubles
from scripts.robustness.simulated_front.checked_models import BACKUP_MODEL, DEPLOYED, PARITY
from scripts.robustness.simulated_front.clients import SimulatedClient
from scripts.robustness.simulated_front.connection import MODEL, SimulatedConnection
from scripts.robustness.simulated_front.fates import Fates, FaultPlan
from scripts.robustness.simulated_front.processes import SimulatedMachine
from scripts.robustness.simulated_front.scenario import FrontScenario, drawn
from scripts.robustness.simulated_front.verdict import wrong_with_client, wrong_with_statistics
from scripts.robustness.simulated_front.virtual_time import (
    EndlessSimulation,
    NothingLeftToHappen,
    SimulatedLoop,
    SimulationStopped,
)
from scripts.robustness.simulated_front.watch import FrontWatch, MayBeInForce
from serving_adapter import model_configuration
from serving_adapter.server.configuration import Priorities, Protection
from serving_adapter.server.protocol.loads import ModelLoads
from serving_adapter.server.protocol.servicer import InferenceService
from serving_adapter.server.redundancy.redundant_models import ParityModel, RedundantModels
from serving_adapter.server.redundancy.settings import from_parameters
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.surroundings import Surroundings
from serving_adapter.server.workers.messages import ModelReference

MAX_STEPS = 400_000
PATIENCE_S = 3000.0  # in virtual time: nothing that a server does may take so long
REST_S = 400.0  # until all repairs are made and all lanes have ended
DRAIN_S, GRACE_S = 30.0, 1.0  # as rrl-serve has them


class SimulationResult(NamedTuple):
    """What came of a seed."""

    seed: int
    sentence: str  # what did not hold; empty if all did
    events: list[str]  # the last ones
    steps: int
    requests: int
    lent: int
    """Parity queries that idle workers of the deployed model ran."""


def simulate(seed: int) -> SimulationResult:
    """Runs the scenario of a seed; the same seed gives the same events."""
    result = _simulated(seed)
    if result.sentence:  # it broke off, so that the server could close nothing
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    return result


def _simulated(seed: int) -> SimulationResult:
    scenario = drawn(seed)
    draw = random.Random(f"events of {seed}")
    loop = SimulatedLoop(random.Random(f"order of {seed}"), MAX_STEPS)
    run = _Run(scenario, draw, loop)
    watch = run.watch
    loop.set_exception_handler(lambda _, told: watch.broken(f"the loop caught: {_told(told)}"))
    with _log_to(watch):
        try:
            loop.run_until_complete(run.whole())
        except SimulationStopped:
            pass
        except (NothingLeftToHappen, EndlessSimulation) as error:
            watch.broken(str(error))
        except Exception as error:
            watch.broken(f"it ended with {type(error).__name__}: {error}")
        steps = loop.steps
        _end_all(loop)
    events = [_line(*event) for event in watch.events]
    return SimulationResult(seed, watch.sentence, events, steps, len(scenario.requests), watch.lent)


class _Run:
    """One simulation: the real servicer and served model, everything around them simulated."""

    def __init__(self, scenario: FrontScenario, draw: random.Random, loop: SimulatedLoop) -> None:
        self.scenario, self.loop, self.draw = scenario, loop, draw
        self.clients = [
            SimulatedClient(number, scenario.model, request, draw)
            for number, request in enumerate(scenario.requests)
        ]
        found = MayBeInForce(scenario.knobs, scenario.resilience)
        self.watch = FrontWatch(loop, self.clients, scenario.has_parallel_branches, found, scenario.kills)
        branches, mean_service_s = scenario.has_parallel_branches, scenario.mean_service_s
        self.machine = SimulatedMachine(Fates(draw, scenario.model, branches, mean_service_s, self.watch))
        self.ending = False

    async def whole(self) -> None:
        model = self._served_model()
        await model.start()
        self.model = model
        models = {MODEL: model}
        load = ModelLoads(models).load
        service = InferenceService(models, metrics_port=0, max_unread_bytes=0, load=load)
        self.connection = SimulatedConnection(service)
        self.machine.fates.faults = FaultPlan(list(self.scenario.bad_builds), list(self.scenario.bad_forks))
        began_s = self.loop.time()
        calls = [self._at(began_s + c.request.at_s, self._call, c) for c in self.clients]
        changes = [
            self._at(began_s + c.at_s, troubles.change, self.connection, self.watch, c)
            for c in self.scenario.changes
        ]
        changes += [
            self._at(began_s + at_s, troubles.lease, self.connection, self.watch, lease)
            for at_s, lease in self.scenario.leases
        ]
        for trouble in self.scenario.troubles:
            self.loop.call_at(began_s + trouble.at_s, troubles.strike, self.machine, trouble)
        if self.scenario.closes_at_s is not None:
            await asyncio.sleep(self.scenario.closes_at_s)
            self.ending = True
        _, left = await asyncio.wait([*calls, *changes], timeout=DRAIN_S if self.ending else PATIENCE_S)
        if self.ending:
            for call in left:
                call.cancel()
            if left:
                await asyncio.wait(left)
        elif left:
            self.watch.broken(f"{len(left)} calls have no end after {PATIENCE_S:g} s")
        for task in (*calls, *changes):
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]
        if not self.ending and not self.watch.sentence:
            await self._check_at_rest()
        self._check_clients()
        if sentence := self.watch.leases.wrong():
            self.watch.broken(sentence)
        await self._check_statistics()
        await model.close(GRACE_S)
        await asyncio.sleep(GRACE_S)
        if any(zygote.lives for zygote in self.machine.zygotes) or self.machine.workers:
            self.watch.broken("processes are left after the server has ended")

    def _served_model(self) -> ServedModel:
        scenario = self.scenario
        return ServedModel(
            name=MODEL,
            model=ModelReference(DEPLOYED),
            device="cpu",
            knobs=scenario.knobs,
            protection=self._protection(),
            resilience=scenario.resilience,
            redundant_models=RedundantModels(
                tuple(ParityModel(ModelReference(PARITY, (("row", str(row)),))) for row in range(2)),
                backup=ModelReference(BACKUP_MODEL),
                default={},
            ),
            priorities=Priorities.of(scenario.priority_levels, default=0),
            surroundings=Surroundings(self.loop.now_ns, self.machine.launch, _room_for_threads),
        )

    def _protection(self) -> Protection:
        return Protection(
            max_queue_size=self.scenario.max_queue_size,
            max_held_bytes=self.scenario.max_held_bytes,
            worker_timeout_s=self.scenario.worker_timeout_s,
        )

    def _at(self, at_s: float, call: Any, *arguments: Any) -> asyncio.Task[None]:
        async def later() -> None:
            await asyncio.sleep(at_s - self.loop.time())
            await call(*arguments)

        return self.loop.create_task(later())

    async def _call(self, client: SimulatedClient) -> None:
        client.was_taken, client.sent_at_s = self.model.is_open, self.loop.time()
        self.watch.note("sends", client.number, client.request.rows, client.request.deed)
        await client.call(self.connection)
        self._check_bounds()
        self.watch.note("gets", client.number, client.ending, client.origin, client.error or "")

    def _check_bounds(self) -> None:
        if self.model.queued > self.scenario.max_queue_size:
            self.watch.broken(f"{self.model.queued} requests wait, over the bound")
        held_bytes, most_bytes = self.model.held_bytes, self.scenario.max_held_bytes
        if held_bytes > most_bytes and self.model.in_flight > 1:
            self.watch.broken(f"{held_bytes} bytes are in flight, over the bound of {most_bytes:g}")
        if self.model.in_flight < self.model.queued:
            self.watch.broken(f"{self.model.in_flight} requests are in flight, {self.model.queued} wait")

    async def _check_at_rest(self) -> None:
        """Within a while nothing is in flight, and the workers are those that the server tells."""
        until_s = self.loop.time() + REST_S
        while (sentence := await self._unrest()) and self.loop.time() < until_s:
            await asyncio.sleep(1.0)
        if sentence:
            self.watch.broken(sentence)

    async def _unrest(self) -> str:
        """What is not as it should be once all clients have their end, in a sentence."""
        if self.model.in_flight or self.model.held_bytes:
            return f"{self.model.in_flight} requests are in flight, but all clients have their end"
        config = await self.connection.config()
        parameters = {name: parameter.string_value for name, parameter in config.parameters.items()}
        knobs: dict[str, Any] = {**model_configuration.knob_values(config)}
        told = MayBeInForce(
            type(self.scenario.knobs)(**knobs),
            from_parameters(parameters, self.scenario.resilience),
        )
        if told not in self.watch.in_force:
            return f"the server tells {told}, but was given {self.watch.in_force}"
        zygotes = [zygote for zygote in self.machine.zygotes if zygote.lives]
        deployed = [worker for z in zygotes if z.references[0] == DEPLOYED for worker in z.workers]
        lanes = [zygote.workers for zygote in zygotes if zygote.references[0] != DEPLOYED]
        redundant = told.resilience.redundant(told.knobs.instances)
        there = [len(deployed), *map(len, lanes)]
        if there != [told.deployed_instances, *[redundant] * _lanes(told)]:
            return f"there are {there} workers, but by what the server tells {told}"
        if any(worker.is_stopped or worker.holds is not None for worker in self.machine.workers):
            return "a worker is still busy when all is at rest"
        kinds = {(w.threads.inter_op_threads, w.threads.intra_op_threads) for w in deployed}
        right = {(told.knobs.inter_op_threads, told.knobs.intra_op_threads)}
        if self.scenario.has_parallel_branches and kinds != right:
            return f"the workers have the threads {kinds}, but the server tells {told.knobs}"
        return ""

    def _check_clients(self) -> None:
        for client in self.clients:
            attempts = self.model.protection.max_attempts
            sentence = wrong_with_client(client, self.scenario, attempts, self.ending)
            if sentence:
                self.watch.broken(sentence)

    async def _check_statistics(self) -> None:
        answer = await self.connection.call("ModelStatistics", pb.ModelStatisticsRequest(name=MODEL))
        sentence = wrong_with_statistics(self.clients, answer.model_stats[0])
        if sentence:
            self.watch.broken(sentence)


async def _room_for_threads(pids: Sequence[int], workers: int, threads: int) -> None:
    """Simulated workers have no threads."""


def _lanes(told: MayBeInForce) -> int:
    return {"parity": told.resilience.r, "approximate-backup": 1}.get(told.resilience.mode, 0)


def _told(told: dict[str, Any]) -> str:
    return f"{told.get('message')} ({told.get('exception')!r})"


def _end_all(loop: SimulatedLoop) -> None:
    """So that nothing of a simulation that failed is left for the next one."""
    loop.set_exception_handler(lambda *_: None)
    loop.selector.stops, loop.selector.steps = False, 0
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.call_soon(loop.stop)  # one that was asked to stop when it broke off stops once more
    loop.run_forever()
    if tasks:
        with contextlib.suppress(NothingLeftToHappen, EndlessSimulation):
            loop.run_until_complete(_ended(tasks))
    loop.close()


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=PATIENCE_S)


def _line(at_s: float, kind: str, facts: tuple[object, ...]) -> str:
    return f"{1e3 * at_s:12.3f} ms  {kind} {' '.join(map(str, facts))}"


class _Notes(logging.Handler):
    """Log lines are events, too."""

    def __init__(self, watch: FrontWatch) -> None:
        super().__init__()
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        self._watch.note("log", record.getMessage())


@contextlib.contextmanager
def _log_to(watch: FrontWatch) -> Iterator[None]:
    logger, handler = logging.getLogger("serving_adapter"), _Notes(watch)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
