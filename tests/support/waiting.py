"""Waiting for what happens elsewhere: as long as a loaded machine takes, and no longer than it must."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 100.0


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Waits for something that another process or thread does; its value once it is true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"never happened: {what or condition}"
        time.sleep(0.005)
    return value


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits for something that other tasks or threads do."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never happened: {condition}"
        await asyncio.sleep(0.001)
