"""Runs that fail while the others go on, and what is said of them at the end."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from baselines.comparison.landscapes import Landscape
from baselines.comparison.run import FaultInRun, RunJob
from baselines.comparison.workers import FiledJob
from serving_adapter.whole_files import written_whole

SHOWN = 3  # failed runs of an agent that a sentence names


class FailedRun(NamedTuple):
    """A run that has no rows."""

    agent: str
    where: str  # machine and seed
    why: str  # the error, in a line
    traceback: str


class RunsFailed(RuntimeError):
    """Some runs failed, and all others are done; the message names them and tells why.

    `asked` is how many runs each agent should have. `whole` is the table of the agents that have all of them.
    The others are no part of it, as an agent would be judged without the runs that it failed at.
    """

    def __init__(
        self, failed: Sequence[FailedRun], asked: Mapping[str, int], whole: np.ndarray | None = None
    ) -> None:
        self.failed, self.whole = tuple(failed), whole
        agents = dict.fromkeys(each.agent for each in self.failed)
        super().__init__(
            f"{'; '.join(_said_of(agent, self.failed, asked) for agent in agents)}; an agent without all of "
            "its runs is left out of the results, and runs/AGENT/*.txt hold the tracebacks"
        )


class NoResults(RuntimeError):
    """No agent has all of its runs, so no results are written; those of an earlier time are left there."""

    def __init__(self, failure: RunsFailed, results: Path) -> None:
        earlier = f", and those in {results.parent} are of an earlier time" if results.exists() else ""
        super().__init__(f"{failure}; none is left, so no results are written{earlier}")


@dataclass(frozen=True, eq=False)
class AttemptJob(FiledJob):
    """A run, or the answer that it failed, so that the others go on.

    The error of an agent whose package is not there is raised nevertheless. A node of a cluster may lack it,
    and would fail each of its runs.
    """

    run: RunJob

    def brought(self) -> list[Landscape]:
        return self.run.brought()

    def work(self, brought: list[Landscape]) -> np.ndarray | FailedRun:
        try:
            return self.run.work(brought)
        except (Exception, SystemExit) as error:  # An agent may call sys.exit.
            if _lacks_package(error):
                raise
            cause = (error.__cause__ if isinstance(error, FaultInRun) else None) or error
            where = f"{self.run.load.scenario.name} with seed {self.run.seed}"
            said = next(iter(str(cause).splitlines()), "")
            why = f"{type(cause).__name__}: {said}" if said else type(cause).__name__
            return FailedRun(self.run.agent, where, why, "".join(traceback.format_exception(error)))

    def keep(self, result: np.ndarray | FailedRun) -> float | FailedRun:
        if not isinstance(result, FailedRun):
            return self.run.keep(result)
        with written_whole(traceback_path(self.run.path)) as file:
            file.write(result.traceback.encode(errors="replace"))
        return result

    def __str__(self) -> str:
        return str(self.run)


def traceback_path(run: Path) -> Path:
    """The file that tells why the run with this file failed."""
    return run.with_suffix(".txt")


def _lacks_package(error: BaseException | None) -> bool:
    """Whether an agent was not made because something cannot be imported; a ValueError may say so."""
    if isinstance(error, ValueError):
        return _lacks_package(error.__cause__)
    return isinstance(error, ImportError)


def _said_of(agent: str, failed: Sequence[FailedRun], asked: Mapping[str, int]) -> str:
    own = [each for each in failed if each.agent == agent]
    by_reason: dict[str, list[str]] = {}
    for each in own[:SHOWN]:
        by_reason.setdefault(each.why, []).append(each.where)
    shown = ", ".join(f"{why} on {' and '.join(places)}" for why, places in by_reason.items())
    more = f", and {len(own) - SHOWN} more" if len(own) > SHOWN else ""
    return f"{len(own)} of {asked[agent]} runs of {agent} failed ({shown}{more})"
