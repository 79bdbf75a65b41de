"""What a run goes on from: its own journal where it is resumed, and a journal that its agent starts from.

`--resume` goes on with a run in its own folder. `--agent-from` begins a new one whose agent has learned from
another journal. A resumed run takes over again what its agent started from then.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from envs.live import LiveServing
from rrl import journal
from rrl.agent import Agent
from rrl.command_line.options.option_checks import check_interval
from rrl.command_line.options.option_values import change_limits, tuning_intervals
from rrl.command_line.options.options import TuneOptions
from rrl.journal import Journal
from rrl.knobs import change_in_words, in_words
from rrl.records import EMBEDDED, NO_END, SIMULATION, Header, Record, finished, silent_intervals
from rrl.space import Configuration
from rrl.tuning.change_limits import ChangeLimits
from rrl.tuning.change_log import times_since
from rrl.tuning.pretraining import REPLAY_LIMIT_S, Pretraining, starting_from, taken_over
from rrl.tuning.stop import Stop, Stopped
from rrl.views.summary import summarise
from serving_adapter.target import Target

LIMITS = (
    "max_changes_per_hour",
    "change_window",
    "forbid",
    "cores",
    "jointly",
    "bls_composing_models",
    "on_foreign_change",
    "count_silence",
)
"""What a run may change, how often, and how it bears others and silence: one that resumes it has the same."""


@dataclass(frozen=True)
class Earlier:
    """The journals that a run goes on from, and its options completed by them."""

    options: TuneOptions
    header: Header | None  # Of the run that is resumed.
    records: Sequence[Record]  # Of that run, too.
    pretraining: Pretraining | None  # What the agent starts from.

    @classmethod
    def of(cls, options: TuneOptions) -> Earlier:
        """Reads the journals. ValueError where the run in them cannot go on as asked."""
        if options.resume is None:
            pretraining = starting_from(options.agent_from, None)
            if pretraining is not None:
                options = as_trained(options, pretraining.header)
            return cls(options, None, [], pretraining)
        header, records = journal.read(options.resume)
        options = as_before(options, header)
        if options.duration is None:
            _check_unfinished(options, header, records)
        return cls(options, header, records, starting_from(None, header))

    @property
    def start(self) -> Configuration | None:
        """The start of the run that is resumed."""
        return None if self.header is None else self.header.start

    def start_on(self, env: LiveServing, console: Console) -> int:
        """The number of the start: what was found, or what the resumed run started with."""
        if self.header is None:
            return env.start
        self.header.check_continues(dataclasses.replace(self.header, space=env.space))
        start, nearest = self.header.start, env.space.configuration(env.start)
        if nearest.items() - env.found.items():
            console.print(
                f"the journal's grid does not hold the configuration found, {in_words(env.found)}: "
                f"the comparison is with the journal's start, {in_words(start)}",
                style="yellow",
            )
        return env.space.number(start)

    def tell_how_found(self, target: Target, console: Console) -> None:
        """Tells the target how the resumed run found it: it may have left other preferred batch sizes.

        Says what is another now, as what was learned may not hold for it.
        """
        if self.header is None:
            return
        if self.header.found_config_pbtxt is not None:
            target.was_found_as(self.header.found_config_pbtxt)
        if changed := _changed_since(self.header, target):
            console.print(f"since the run began: {changed}; what it learned may not hold", style="yellow")

    def unrecorded_changes_s(self) -> list[float]:
        """Unix times of changes of the resumed run that came after its last record."""
        if self.header is None or self.options.resume is None:
            return []
        return times_since(self.options.resume, self.records[-1].wall_time_s if self.records else 0.0)

    def planned(self, header: Header) -> Header:
        """The header of the whole run: a duration is of what comes, and intervals are of all."""
        if self.header is None or self.options.duration is None:
            return header
        used = _used(self.options, self.header, self.records)
        return dataclasses.replace(header, intervals=used + header.intervals, resumed_at_s=time.time())

    def limits(self, shared: ChangeLimits) -> ChangeLimits:
        """The limits on changes that the options asked for, or those of the run that is resumed."""
        return shared if self.header is None else change_limits(self.options)

    def teach(
        self, agent: Agent, header: Header, console: Console, stop: Stop, goes_on: Callable[[], None]
    ) -> Header:
        """Replays into the agent what it starts from. Returns the header, which then says so.

        `goes_on` is called after each decision.
        """
        if self.pretraining is None:
            return header

        def replayed() -> None:
            goes_on()
            if stop.is_set():
                raise Stopped

        # A resumed run must take over as much as it did then, however long that takes.
        limit_s = REPLAY_LIMIT_S if self.header is None else math.inf
        taken = taken_over(self.pretraining, agent, header, limit_s, console, replayed)
        return dataclasses.replace(header, agent_from=taken)

    def journal_for(self, folder: Path, header: Header) -> Journal:
        """A new journal, or that of the run that is resumed."""
        if self.header is None:
            return Journal.create(folder, header)
        return Journal.open_to_resume(folder, header)


def _changed_since(header: Header, target: Target) -> str:
    """The server, and the knobs that are not tuned, where they are others than the run found; or empty."""
    now = target.configuration()
    fixed = {name: value for name, value in header.found.items() if name not in header.space.names}
    changed = {name: now[name] for name, value in fixed.items() if now.get(name, value) != value}
    parts = [f"the server is {target.server} instead of {header.server}"]
    if header.server in (None, target.server):
        parts.clear()
    if changed:
        parts.append(change_in_words(fixed, changed))
    return ", ".join(parts)


# --- The options of a run that goes on from a journal: what is left at its default is as it was there ---


def as_before(options: TuneOptions, header: Header) -> TuneOptions:
    """The options of a resumed run."""
    if header.target == SIMULATION:
        raise ValueError(
            f"{options.resume} is no run to resume, rrl-train wrote it: start from it with --agent-from"
        )
    before: dict[str, Any] = {
        "target": None if header.target == EMBEDDED else header.target,
        "model": header.model,
        "metrics_url": header.metrics_url,
        "interval_s": header.interval_s,
        "settle_s": header.settle_s,
        "machine": None if header.machine is None else Path(header.machine),
        "validation": header.validation,
    }
    before |= (header.load or {}) | _limits_from_json(header.limits or {})
    if "input_data" in before:
        before["input_data"] = Path(before["input_data"])
    if "shape" in before:
        before["shape"] = tuple(before["shape"])
    if options.duration is None and not options.watches and header.intervals < NO_END:
        before["intervals"] = header.intervals
    completed = _completed(options, _learning(header) | before)
    check_interval(completed)
    return completed


def as_trained(options: TuneOptions, header: Header) -> TuneOptions:
    """The options of a run whose agent starts from an earlier journal."""
    return _completed(options, _learning(header))


def limits_to_json(options: TuneOptions) -> dict[str, Any] | None:
    """The limits on a run's changes, for its header."""
    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if field.name in LIMITS and getattr(options, field.name) not in (field.default, None)
    }
    return {name: list(v) if isinstance(v, tuple) else v for name, v in given.items()} or None


def _limits_from_json(limits: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in limits.items()}


def _learning(header: Header) -> dict[str, Any]:
    """What an agent learned for: it learns for the same again."""
    return {
        "agent": header.agent,
        "objective": header.objective,
        "slo_p95_ms": header.slo_p95_ms,
        "knobs": tuple(f"{knob.name}={','.join(map(str, knob.values))}" for knob in header.space.knobs),
        "seed": header.seed,
    }


def _completed(options: TuneOptions, before: dict[str, Any]) -> TuneOptions:
    defaults = {field.name: field.default for field in dataclasses.fields(TuneOptions)}
    if unknown := sorted(before.keys() - defaults):
        raise ValueError(
            f"the journal is of a run with {', '.join(unknown)}, which this rrl-tune does not know; "
            "start a new run with --out"
        )
    same = {name: value for name, value in before.items() if getattr(options, name) == defaults[name]}
    return dataclasses.replace(options, **same)


def _used(options: TuneOptions, header: Header, records: Sequence[Record]) -> int:
    """The intervals of the search that are used up, with those that are not in the journal any more."""
    used = finished(header, records)["tune"]
    return used + (silent_intervals(header, records) if options.count_silence else 0)


def _check_unfinished(options: TuneOptions, header: Header, records: list[Record]) -> None:
    done = _used(options, header, records)
    if done < tuning_intervals(options):
        return
    summary = summarise(header, records)
    is_start = summary.best.configuration == summary.start.configuration
    validated = summary.validated or is_start or summary.needs_no_turns
    if validated:
        raise ValueError(
            f"the run in {options.resume} is complete ({done} intervals); "
            f"give --intervals more than {done} to go on with it"
        )
