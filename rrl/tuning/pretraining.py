"""What a run takes over from an earlier journal: its decisions are replayed into the new agent.

The journal was written by `rrl-train`, whose intervals are simulated, or by an earlier live run. No agent is
ever stored: whatever learns from transitions can start from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rrl import journal
from rrl.agent import OBSERVATION_FIELDS, Agent, Transition, number_in_force
from rrl.records import Header, Record
from rrl.space import ConfigurationSpace, with_values

REPLAY_LIMIT_S = 60.0


@dataclass(frozen=True)
class Pretraining:
    """The counted intervals of an earlier journal, which a new agent starts from."""

    folder: Path
    header: Header
    records: list[Record]

    @classmethod
    def read(cls, folder: Path) -> Pretraining:
        """The journal in `folder`; ValueError if there is none, or one without a decision."""
        header, records = journal.read(folder)
        counted = [record for record in records if record.counted]
        if not counted:
            raise ValueError(f"the journal in {folder} holds no decision to start from; train with rrl-train")
        return cls(folder.absolute(), header, counted)

    @classmethod
    def read_again(cls, agent_from: dict[str, Any]) -> Pretraining:
        """What an earlier run started from, by its journal; ValueError if that is no longer there."""
        again = cls.read(Path(agent_from["folder"]))
        if again.header.started_at != agent_from["started_at"] or len(again.records) < agent_from["records"]:
            raise ValueError(
                f"the journal in {again.folder} is not the one that this run started from any more; "
                "start a new run with --out"
            )
        return replace(again, records=again.records[: agent_from["records"]])

    def to_json(self, replayed: int) -> dict[str, Any]:
        """For the header of the run that starts from it."""
        return {
            "folder": str(self.folder),
            "started_at": self.header.started_at,
            "records": replayed,
        }

    def check_starts(self, run: Header) -> None:
        """ValueError unless the run described by a header may start from here.

        Its grid may hold the values that it starts with beside those of the journal's grid.
        """
        for name, before, now in (
            ("agent", self.header.agent, run.agent),
            ("objective", self.header.objective, run.objective),
            ("p95 limit", _in_ms(self.header.slo_p95_ms), _in_ms(run.slo_p95_ms)),
            ("set of knobs", ", ".join(self.header.space.names), ", ".join(run.space.names)),
            ("grid", str(with_values(self.header.space, run.start)), str(run.space)),
        ):
            if before != now:
                raise ValueError(
                    f"--agent-from {self.folder} is of another {name}: {before}, not {now}; "
                    "give the same, or leave the option away"
                )

    def replay(
        self,
        agent: Agent,
        space: ConfigurationSpace,
        limit_s: float = REPLAY_LIMIT_S,
        replayed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> int:
        """Teaches the agent the intervals in their order, and says how many there was time for."""
        end_s = clock() + limit_s
        for done, record in enumerate(self.records):
            if clock() >= end_s:
                return done
            agent.update(moved(record.lesson, self.header.space, space))
            agent.finish_training()  # the next update needs its network
            replayed()
        return len(self.records)


def starting_from(folder: Path | None, earlier: Header | None) -> Pretraining | None:
    """What the agent starts from, if anything. A resumed run starts from the same as before."""
    if earlier is not None:
        return None if earlier.agent_from is None else Pretraining.read_again(earlier.agent_from)
    return None if folder is None else Pretraining.read(folder)


def taken_over(
    pretraining: Pretraining,
    agent: Agent,
    header: Header,
    limit_s: float,
    console: Console,
    replayed: Callable[[], None],
) -> dict[str, Any]:
    """Replays an earlier journal into the agent; returns what the new journal says of it.

    `replayed` is called after each decision, and may end this with an error.
    """
    pretraining.check_starts(header)
    total = len(pretraining.records)
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("decisions", total=total)

        def advanced() -> None:
            progress.advance(task)
            replayed()

        done = pretraining.replay(agent, header.space, limit_s, advanced)
    console.print(f"{header.agent} starts from {done} decisions of {pretraining.folder}")
    if done < total:
        console.print(
            f"{total - done} later ones were left away, as they would have taken over {limit_s:g} s",
            style="yellow",
        )
    return pretraining.to_json(done)


def moved(transition: Transition, origin: ConfigurationSpace, space: ConfigurationSpace) -> Transition:
    """The transition in the terms of another grid, which holds all values of its own."""
    number = space.number(origin.configuration(origin.number_of_action(transition.action)))
    return replace(
        transition,
        observation=_moved_observation(transition.observation, origin, space),
        action=space.action(number),
        next_observation=_moved_observation(transition.next_observation, origin, space),
    )


def _moved_observation(
    observation: np.ndarray, origin: ConfigurationSpace, space: ConfigurationSpace
) -> np.ndarray:
    """(fields + knobs,) float32, with the features of the same configuration on the other grid."""
    measured = observation[: len(OBSERVATION_FIELDS)]
    number = space.number(origin.configuration(number_in_force(observation, origin)))
    return np.concatenate([measured, space.features[number]]).astype(np.float32)


def _in_ms(limit_ms: float | None) -> str:
    return "none" if limit_ms is None else f"{limit_ms:g} ms"
