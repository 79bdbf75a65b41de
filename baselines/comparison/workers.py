"""Worker processes of one thread each, and what a person sees of their progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
LOOK_UP_S = 0.2  # how often a wait for jobs looks for Ctrl-C

Job = Callable[[], Any]
"""Work for a process. It can be pickled, and its `str` says what it is."""


class WorkerDied(RuntimeError):
    """A worker process was killed from outside."""


class JobProgress(Protocol):
    """Hears of every stage of a comparison and of every finished job."""

    def stage(self, name: str, total: int, done: int) -> None: ...

    def job_done(self, text: str) -> None: ...

    def close(self) -> None: ...


class PlainProgress:
    """Prints one line for each job, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._done = 0

    def stage(self, name: str, total: int, done: int) -> None:
        self._total, self._done = total, done
        if done < total:
            before = f", {done} of them done before" if done else ""
            self._print(f"{name}: {total}{before}")

    def job_done(self, text: str) -> None:
        self._done += 1
        self._print(f"[{self._done}/{self._total}] {text}")

    def close(self) -> None:
        pass

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class SilentProgress:
    """Shows nothing, for a comparison that is part of something else."""

    def stage(self, name: str, total: int, done: int) -> None:
        pass

    def job_done(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class BarProgress:
    """Shows a bar, and the last finished job beside it."""

    def __init__(self, console: Console) -> None:
        self._bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("gone,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn("[dim]{task.fields[last]}"),
            console=console,
            speed_estimate_period=300.0,
        )
        self._task = self._bar.add_task("", total=None, last="")
        self._bar.start()

    def stage(self, name: str, total: int, done: int) -> None:
        self._bar.reset(self._task, description=name, total=total, completed=done, last="")

    def job_done(self, text: str) -> None:
        self._bar.update(self._task, advance=1, last=text)

    def close(self) -> None:
        self._bar.stop()


def make_progress(console: Console) -> JobProgress:
    return BarProgress(console) if console.is_terminal else PlainProgress(console)


class Workers:
    """Some processes, from the first job to the end of the `with` block.

    An exception that leaves the block, Ctrl-C's included, ends the processes at once. So a job must keep its
    files atomically. Within the block Ctrl-C raises only where jobs are waited for, and at the end. Python's
    own handler raises wherever the main thread is. That may be inside the executor, whose lock it would hold
    for good.
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
            if error is None and not self._interrupted:
                self._executor.shutdown(wait=True)
            else:
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
        calls = self._executor._call_queue  # type: ignore[attr-defined]
        self._executor.shutdown(wait=False, cancel_futures=True)
        own = set(multiprocessing.active_children()) - self._before
        for process in own:
            process.terminate()
        for process in own:
            process.join()
        # A job that was being sent would wait for ever for a reader: those of the workers are gone, and some
        # versions of Python keep one of their own open (python/cpython#94777).
        calls._reader.close()


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
