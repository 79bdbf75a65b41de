"""How a server that runs until told to stop hears of it: SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType


def stop_on_signal() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; further ones change nothing, to the end of it.

    A handler of the event loop goes with the loop, and a signal that comes after it, while Python takes down
    what is left, would end the process with the signal's status instead of 0.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        loop.call_soon_threadsafe(stop.set)  # and wakes it

    for each in signals:
        signal.signal(each, handle)
    return stop
