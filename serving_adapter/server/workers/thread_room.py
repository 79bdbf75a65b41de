"""Whether the system lets this user start the threads that a configuration needs.

OpenMP ends the process that may not start a thread of its pool. Workers change their threads while they run,
so a limit of processes would end all of them, and those that take their place, until the threads are fewer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable, Sequence

import psutil

from serving_adapter import own_process
from serving_adapter.server.workers.handles import ModelFailed

TRIAL_TIMEOUT_S = 10.0
"""A machine that takes longer to start the threads is busy, and has not refused them."""

CheckThreads = Callable[[Sequence[int], int, int], Awaitable[None]]
"""Raises ModelFailed where workers, their pids so far given, cannot become so many of so many threads."""


async def try_threads(pids: Sequence[int], workers: int, threads: int) -> None:
    """Tries the threads that are missing in a process of its own, since a limit counts them all alike."""
    missing = workers * threads - sum(_threads_of(pid) for pid in pids)
    if threads == 1 or missing <= 0:
        return
    started = await _started(missing)
    if started < missing:
        raise ModelFailed(
            f"{workers} workers with {threads} intra-op threads need {missing} threads more, and the system "
            f"lets this user start only {started}; lower intra_op_threads or instances, or raise the limit "
            "of processes (ulimit -u, or that of the container)"
        )


def _threads_of(pid: int) -> int:
    try:
        return int(psutil.Process(pid).num_threads())
    except psutil.Error:
        return 0


async def _started(wanted: int) -> int:
    """How many threads could be started; all of them where nobody can tell."""
    command = own_process.command("serving_adapter.server.workers.thread_trial", str(wanted))
    try:
        trial = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
    except OSError as error:
        if error.errno == errno.EAGAIN:  # there may not even be another process
            return 0
        raise ModelFailed(
            f"whether {wanted} threads more can be started cannot be tried ({error.strerror or error})"
        ) from None
    try:
        told, _ = await asyncio.wait_for(trial.communicate(), TRIAL_TIMEOUT_S)
    except TimeoutError:
        return wanted
    finally:
        with contextlib.suppress(ProcessLookupError):
            trial.kill()
    return int(told) if told else wanted
