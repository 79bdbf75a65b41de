"""What a person sees of the progress of jobs."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


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
