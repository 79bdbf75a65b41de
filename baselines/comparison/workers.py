"""Jobs, and the worker processes of one thread each that run them on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Protocol

THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
LOOK_UP_S = 0.2  # how often a wait for jobs looks for Ctrl-C

Job = Callable[[], Any]
"""Work for a process. It can be pickled, and its `str` says what it is."""


class FiledJob(ABC):
    """A job whose files are on this machine, while its work may be done on another one."""

    def brought(self) -> Any:
        """What the work needs of files, to be pickled."""
        return None

    @abstractmethod
    def work(self, brought: Any) -> Any:
        """The job's result, without any file."""

    @abstractmethod
    def keep(self, result: Any) -> Any:
        """Puts the result into the job's file; what the job answers."""

    def __call__(self) -> Any:
        return self.keep(self.work(self.brought()))


class WorkerDied(RuntimeError):
    """A worker process was killed from outside."""


class JobExecutor(Protocol):
    """Runs jobs from the beginning of a `with` block to its end."""

    def __enter__(self) -> JobExecutor: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, jobs: Sequence[Job], on_done: Callable[[Any, Any], None]) -> None:
        """Runs the jobs, begun in their order, and calls `on_done(job, answer)` as each ends."""


class Workers:
    """Some processes, from the first job to the end of the `with` block.

    The processes end at once with it, for no job runs any more and Python's own end takes seconds. So they do
    where an exception leaves the block, Ctrl-C's included, and so a job must keep its files atomically.
    Within the block Ctrl-C raises only where jobs are waited for, and at the end. Python's own handler raises
    wherever the main thread is. That may be inside the executor, whose lock it would hold for good.
    """

    def __init__(self, processes: int) -> None:
        if processes < 1:
            raise ValueError(f"processes must be at least 1, got {processes}")
        self._before = set(multiprocessing.active_children())
        self._executor = ProcessPoolExecutor(
            processes, multiprocessing.get_context("spawn"), initializer=_begin_worker
        )
        self._ended: SimpleQueue[Future | None] = SimpleQueue()  # finished jobs; None for Ctrl-C
        self._interrupted = self._hears_interrupts = False

    def __enter__(self) -> Workers:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
            self._hears_interrupts = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end_at_once()
        finally:
            if self._hears_interrupts:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        if error is None and self._interrupted:
            raise KeyboardInterrupt

    def run(self, jobs: Sequence[Job], on_done: Callable[[Any, Any], None]) -> None:
        """Runs the jobs, begun in their order, and calls `on_done(job, answer)` as each ends."""
        try:
            with _begun_as_workers():
                futures: dict[Future, Job] = {self._executor.submit(job): job for job in jobs}
            for future in futures:
                future.add_done_callback(self._ended.put)
            while futures:
                ended = self._next_ended()
                on_done(futures.pop(ended), ended.result())
        except BrokenProcessPool as error:
            raise WorkerDied("a worker process was killed, perhaps for want of memory") from error

    def answers(self, jobs: Sequence[Job]) -> list[Any]:
        """Runs the jobs, and answers in their order, whichever ends first."""
        found: dict[int, Any] = {}
        self.run(jobs, lambda job, answer: found.update({id(job): answer}))
        return [found[id(job)] for job in jobs]

    def _next_ended(self) -> Future:
        """Wakes now and then, as a signal that another thread received does not wake this one."""
        while True:
            with suppress(Empty):
                ended = self._ended.get(timeout=LOOK_UP_S)
                if ended is None:
                    raise KeyboardInterrupt
                return ended

    def _interrupt(self, number: int, frame: object) -> None:
        self._interrupted = True
        self._ended.put(None)

    def _end_at_once(self) -> None:
        # A job that is being sent would wait for ever for a reader once the workers are gone: some versions
        # of Python keep one of their own open (python/cpython#94777). From `shutdown` on they close it, too.
        with suppress(OSError):
            self._executor._call_queue._reader.close()  # type: ignore[attr-defined]
        self._executor.shutdown(wait=False, cancel_futures=True)
        own = set(multiprocessing.active_children()) - self._before
        for process in own:
            process.terminate()
        for process in own:
            process.join()


@contextmanager
def _begun_as_workers() -> Iterator[None]:
    """Processes that start within inherit the libraries' limit of one thread, and ignore Ctrl-C."""
    before = {name: os.environ.get(name) for name in THREAD_LIMITS}
    os.environ.update(dict.fromkeys(THREAD_LIMITS, "1"))
    try:
        with _interrupts_blocked():
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process started within is deaf to Ctrl-C, except on Windows, where masks do not exist."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin_worker() -> None:
    """Limits torch to one thread, which no environment variable does, and ends with the parent."""
    import torch  # `--help` needs none of it

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
