"""How a server that runs until told to stop hears of it: SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import signal
import socket
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def stop_on_signal() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; further ones change nothing until the process ends.

    A handler of the event loop goes with the loop. A signal that comes after it, while the interpreter shuts
    down, would end the process with the signal's status instead of 0.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    _let_signals_wake(loop)
    for each in SIGNALS:
        signal.signal(each, handle)
    return stop


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
