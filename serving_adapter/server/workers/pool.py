"""The workers of one model, seen from the front: how many, of which kind, which are free.

`reshape` changes their number and kind while they work: new workers are forked first, then old ones are
retired, and a retired worker finishes the batch it holds. So there is always someone to serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from serving_adapter import messages
from serving_adapter.server.workers.arena import Arena, Placed

if TYPE_CHECKING:
    from serving_adapter.server.workers.faults import Delay

log = logging.getLogger(__name__)

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait steal the cores of other workers
    "OPENBLAS_NUM_THREADS": "1",  # or importing NumPy starts a thread, and a zygote must have one only
    "MALLOC_MMAP_MAX_": "0",  # freed memory stays with the worker: no page faults batch after batch
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
}
"""Of a zygote and its workers, where the environment does not say otherwise."""
START_TIMEOUT_S = 120.0
FORK_TIMEOUT_S = 60.0


class ModelFailed(Exception):
    """The model cannot be served; the text is one sentence for the user."""


@dataclass(frozen=True)
class Parallelism:
    """The knobs that workers are made of."""

    instances: int = 1
    intra_op_threads: int = 1
    inter_op_threads: int = 1


class ModelReference(NamedTuple):
    """What a zygote builds a model from; the options are pairs, so that references can be keys."""

    reference: str
    options: tuple[tuple[str, str], ...] = ()

    def as_message(self) -> dict[str, Any]:
        return {"reference": self.reference, "options": dict(self.options)}


class Worker:
    """The front's end of one worker process."""

    def __init__(self, channel: socket.socket, inputs: Arena, outputs: Arena, kind: tuple[int, ...]) -> None:
        self.channel, self.inputs, self.outputs, self.kind = channel, inputs, outputs, kind
        self.pid = 0
        self.job: Any = None  # the batch it holds
        self.retired = False
        self.slow: Delay | None = None  # extra time of its batches: an injected fault


class WorkerPool:
    """Owns the zygote and its workers, which hold the given models; the first is the one it describes.

    `on_answer` and `on_free` are called on the event loop.
    """

    def __init__(
        self,
        models: Sequence[ModelReference],
        device: str,
        on_answer: Callable[[Any, Worker, dict[str, Any] | None], None],
        on_free: Callable[[], None],
        is_redundant: bool = False,
    ) -> None:
        self._description = {"models": [model.as_message() for model in models], "device": device}
        self._on_answer, self._on_free = on_answer, on_free
        self.is_redundant = is_redundant
        self._parallelism = Parallelism()
        self._lock = asyncio.Lock()
        self._repair: asyncio.Task[None] | None = None
        self._closing = False
        self.workers: set[Worker] = set()
        self.idle: list[Worker] = []
        self.replacements = 0
        self._rng = np.random.default_rng(0)  # of injected slowness
        self.has_parallel_branches = False
        self.zygote_pid = 0
        self._zygote: asyncio.subprocess.Process | None = None

    @property
    def busy(self) -> int:
        return sum(worker.job is not None for worker in self.workers)

    @property
    def pids(self) -> list[int]:
        """Of the running workers; safe to read from the thread that serves the metrics."""
        return [worker.pid for worker in list(self.workers) if worker.pid]

    async def start(self) -> dict[str, Any]:
        """Starts the zygote and has it build the model; returns the model's description."""
        ours, theirs = messages.socket_pair()
        command = [sys.executable, "-m", "serving_adapter.server.workers.zygote", str(theirs.fileno())]
        self._zygote = await asyncio.create_subprocess_exec(
            *command,
            pass_fds=[theirs.fileno()],
            env=ENVIRONMENT | dict(os.environ),
            stdin=asyncio.subprocess.DEVNULL,
        )
        theirs.close()
        self._control, self._zygote_gone = ours, False
        self._control.setblocking(False)
        self.zygote_pid = self._zygote.pid
        messages.send(self._control, self._description)
        answer = await self._receive(self._control, START_TIMEOUT_S)
        if answer is None or "error" in answer:
            await self._end_zygote()
            raise ModelFailed(answer["error"] if answer else "the process that builds it ended or hung")
        description: dict[str, Any] = answer["model"]
        self.has_parallel_branches = description["has_parallel_branches"]
        asyncio.get_running_loop().add_reader(self._control, self._zygote_ended)
        return description

    async def reshape(self, parallelism: Parallelism) -> None:
        """Brings number and kind of workers to `parallelism`; returns when new batches go to such only."""
        async with self._lock:
            self._parallelism = parallelism
            await self._reshape()

    async def _reshape(self) -> None:
        kind = self._kind(self._parallelism)
        serving = [worker for worker in self.workers if not worker.retired]
        right = [worker for worker in serving if worker.kind == kind]
        wrong = [worker for worker in serving if worker.kind != kind]
        missing = self._parallelism.instances - len(right)
        if missing > 0:
            forked = await asyncio.gather(*(self._fork(kind) for _ in range(missing)), return_exceptions=True)
            failed = [error for error in forked if isinstance(error, BaseException)]
            if failed:
                raise ModelFailed(f"a worker could not be started: {failed[0]}")
        for worker in wrong + sorted(right, key=lambda w: w.job is None)[: max(0, -missing)]:
            self._retire(worker)
        self._on_free()

    def _kind(self, parallelism: Parallelism) -> tuple[int, ...]:
        """What cannot change inside a running worker.

        The intra-op setting reaches the thread that runs the batch at once, but not those of the inter-op
        pool, which read it when they start; so for a model that uses the pool it is part of the kind.
        """
        pooled = self.has_parallel_branches
        return (parallelism.inter_op_threads, parallelism.intra_op_threads if pooled else 0)

    async def _fork(self, kind: tuple[int, ...]) -> None:
        ours, theirs = messages.socket_pair()
        ours.setblocking(False)
        inputs, outputs = Arena.create("rrl-inputs"), Arena.create("rrl-outputs")
        worker = Worker(ours, inputs, outputs, kind)
        settings = {
            "inter_op_threads": self._parallelism.inter_op_threads,
            "intra_op_threads": self._parallelism.intra_op_threads,
        }
        try:
            messages.send(self._control, settings, (theirs.fileno(), inputs.fd, outputs.fd))
            theirs.close()
            ready = await self._receive(ours, FORK_TIMEOUT_S)
        except OSError:
            ready = None
        except BaseException:
            theirs.close()
            self._close(worker)
            raise
        if ready is None:
            theirs.close()
            self._close(worker)
            raise ModelFailed("it ended while it warmed up")
        worker.pid = ready["ready"]
        self.workers.add(worker)
        self.idle.append(worker)
        asyncio.get_running_loop().add_reader(ours, self._answered, worker)
        self._on_free()

    async def _receive(self, sock: socket.socket, timeout_s: float) -> dict[str, Any] | None:
        """The next message of a socket that has no reader yet; None if it closed or stayed silent."""
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(sock, lambda: None if readable.done() else readable.set_result(None))
        try:
            await asyncio.wait_for(readable, timeout_s)
            return messages.receive(sock)
        except TimeoutError:
            return None
        finally:
            loop.remove_reader(sock)

    # --- batches -----------------------------------------------------------------------------------

    def run(
        self, worker: Worker, job: Any, placed: list[Placed], intra_op_threads: int, model: int = 0
    ) -> None:
        """Hands a batch, already in the worker's input arena, to an idle worker; `model` is an index."""
        worker.job = job
        message = {
            "model": model,
            "inputs": placed,
            "capacity": worker.inputs.capacity_bytes,
            "intra_op_threads": intra_op_threads,
        }
        if worker.slow is not None:
            message["slow_ms"] = worker.slow.draw_ms(self._rng)
        # A worker that died in this instant is noticed by its reader, which re-runs the batch.
        with contextlib.suppress(OSError):
            messages.send(worker.channel, message)

    def kill(self, worker: Worker) -> None:
        """Ends a hung worker; its reader then sees it gone, as if it had died by itself."""
        self._signal("kill", worker)

    def stop(self, worker: Worker) -> None:
        """Stalls a worker until `resume`: an injected fault."""
        self._signal("stop", worker)

    def resume(self, worker: Worker) -> None:
        self._signal("resume", worker)

    def _signal(self, what: str, worker: Worker) -> None:
        """Through the zygote, which knows which processes are its own."""
        with contextlib.suppress(OSError):
            messages.send(self._control, {what: worker.pid})

    def _answered(self, worker: Worker) -> None:
        message = messages.receive(worker.channel)
        if message is None:
            self._died(worker)
            return
        job, worker.job = worker.job, None
        if "capacity" in message:
            worker.outputs.ensure(message["capacity"])
        try:
            self._on_answer(job, worker, message)
        finally:
            if worker.retired:
                self._close(worker)
            else:
                self.idle.append(worker)
        self._on_free()

    def _died(self, worker: Worker) -> None:
        job, worker.job = worker.job, None
        was_wanted = not worker.retired
        self._close(worker)
        if job is not None:
            self._on_answer(job, worker, None)
        if was_wanted and not self._closing:
            self.replacements += 1
            log.warning("worker %d ended unexpectedly; starting another", worker.pid)
            self._start_repair()
        self._on_free()  # its batch may run on another worker at once

    def _start_repair(self) -> None:
        if self._repair is None or self._repair.done():
            self._repair = asyncio.get_running_loop().create_task(self._repair_workers())

    async def _repair_workers(self) -> None:
        """Brings the workers back to their number, again and again until it works."""
        delay_s = 0.1
        while not self._closing:
            try:
                async with self._lock:
                    if self._zygote_gone:
                        await self._end_zygote()
                        await self.start()
                    await self._reshape()
                if sum(not worker.retired for worker in self.workers) >= self._parallelism.instances:
                    return
            except (ModelFailed, OSError) as error:
                log.error("workers could not be replaced (%s); trying again in %.1f s", error, delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(5.0, 2 * delay_s)

    def _zygote_ended(self) -> None:
        """The zygote says nothing once it serves, so a readable socket means that it is gone."""
        asyncio.get_running_loop().remove_reader(self._control)
        self._zygote_gone = True
        if not self._closing:
            log.warning("the zygote (pid %d) ended unexpectedly; starting another", self.zygote_pid)
            self._start_repair()

    def _retire(self, worker: Worker) -> None:
        worker.retired = True
        if worker in self.idle:
            self.idle.remove(worker)
        if worker.job is None:
            self._close(worker)

    def end(self, worker: Worker) -> Any:
        """Ends a worker at once; returns the batch that it held, which nobody answers now."""
        job, worker.job = worker.job, None
        self._close(worker)
        return job

    def _close(self, worker: Worker) -> None:
        """Closing the channel is what tells a worker to end."""
        asyncio.get_running_loop().remove_reader(worker.channel)
        self.workers.discard(worker)
        if worker in self.idle:
            self.idle.remove(worker)
        worker.channel.close()
        worker.inputs.close()
        worker.outputs.close()

    async def close(self) -> None:
        self._closing = True
        if self._repair is not None:
            self._repair.cancel()
        async with self._lock:
            for worker in list(self.workers):
                self._close(worker)
            await self._end_zygote()

    async def _end_zygote(self) -> None:
        """Closing the control socket is what tells the zygote to end."""
        if self._zygote is None:  # never started
            return
        if self._control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
        try:
            await asyncio.wait_for(self._zygote.wait(), 5.0)
        except TimeoutError:
            self._zygote.kill()
            await self._zygote.wait()
