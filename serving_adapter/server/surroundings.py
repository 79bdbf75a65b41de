"""What the front takes from outside itself: a clock, and processes. A simulation gives it others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from serving_adapter.server.workers.launching import Launch, launch_zygote
from serving_adapter.server.workers.share import ALL, Share
from serving_adapter.server.workers.thread_room import CheckThreads, try_threads

Clock = Callable[[], int]
"""Nanoseconds that only grow, from any beginning."""


@dataclass(frozen=True)
class Surroundings:
    """The clock and the processes of a served model; the defaults are those of this machine."""

    now_ns: Clock = time.monotonic_ns
    launch: Launch = launch_zygote
    check_threads: CheckThreads = try_threads
    on_cluster: bool = False  # the processes are on its nodes
    share: Share = ALL  # of the instances, where several fronts serve together
    start_timeout_s: float = 120.0  # that a model may take to be built, and a worker to warm up


THIS_MACHINE = Surroundings()
