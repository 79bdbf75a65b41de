"""A run in `rrl-tune`'s loop on a simulated server, whose journal is read and not kept."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from rrl.agent import Agent
from rrl.guarding.guard import Guard
from rrl.journal import Journal
from rrl.records import Header, Record
from rrl.tuning.ending import Kept
from rrl.tuning.environment import Environment
from rrl.tuning.loop import Tuning
from rrl.tuning.settings import TuningSettings


def tuned(
    env: Environment, agent: Agent, guard: Guard, header: Header, intervals: int
) -> tuple[Kept, list[Record]]:
    """What the run keeps, and its records. The agent is closed afterwards."""
    with (
        TemporaryDirectory() as folder,
        closing(agent),
        closing(Journal.create(Path(folder), header, synced=False)) as journal,
    ):
        kept = Tuning(env, agent, guard, journal, TuningSettings(intervals=intervals)).run()
        return kept, list(journal.records)
