"""How a server that runs until told to stop hears of it: SIGTERM, SIGINT, or SIGHUP of a closed terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

ENDING_AT_ONCE = (signal.SIGTERM, signal.SIGINT)
"""Sent twice, they mean it. A terminal that closes may send SIGHUP twice by itself."""

ENDED_BY_SIGNAL = 128
"""Plus its number: the exit status of a process that a signal ended."""


class StopSignal(asyncio.Event):
    """Set by the first signal, whose number it keeps."""

    signal_number = 0


def stop_on_signal() -> StopSignal:
    """What the first signal sets. The same signal again ends the process at once.

    Another signal changes nothing more: a supervisor may forward one beside that of the terminal. With SIGHUP
    ignored, as by `nohup`, a closed terminal stops nothing.
    """
    loop, stop = asyncio.get_running_loop(), StopSignal()

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, _ending() if number in ENDING_AT_ONCE else signal.SIG_IGN)
        stop.signal_number = stop.signal_number or number
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    _let_signals_wake(loop)
    for each in ENDING_AT_ONCE:
        signal.signal(each, handle)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, handle)
    return stop


async def done_before(stop: StopSignal, work: Coroutine[Any, Any, None]) -> bool:
    """Does the work; false, with the work given up, if the stop comes before its end."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        working.cancel()
        await asyncio.wait({working})
        return False
    finally:
        stopping.cancel()


def end_quietly_on_interrupt() -> None:
    """Ctrl-C before a loop runs ends the process without a traceback; what ignores it goes on so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _ending())


def _ending() -> signal.Handlers | Callable[[int, FrameType | None], None]:
    """What ends this process at a signal: for the first one of a container the kernel has no default."""
    return signal.SIG_DFL if os.getpid() != 1 else _exit


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(ENDED_BY_SIGNAL + number)


def _let_signals_wake(loop: asyncio.AbstractEventLoop) -> None:
    """Lets a signal wake even a loop that is just about to wait. uvloop does so by itself."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        reader.close()
        writer.close()
    else:
        loop.add_reader(reader, _read, reader, writer)


def _read(reader: socket.socket, writer: socket.socket) -> None:
    """What a signal wrote; the loop keeps both ends with this."""
    reader.recv(64)
