"""Jobs of a comparison in the process of the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from baselines.comparison.workers import Job


class InThisProcess:
    """Stands in for the worker processes, whose start takes seconds."""

    def __init__(self, processes: int | None = None) -> None: ...

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *error: object) -> None: ...

    def run(self, jobs: Sequence[Job], on_done: Callable[[Job, Any], None]) -> None:
        for job in jobs:
            on_done(job, job())
