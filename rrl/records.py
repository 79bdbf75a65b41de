"""What a run writes down: what it is about, its intervals, and what it kept; and each as JSON and back.

The file of them is the journal's (`rrl.journal`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_type_hints

import numpy as np

from rrl.agent import Transition, with_gpus
from rrl.agent_names import present_name
from rrl.declared_types import fits, mistyped
from rrl.measurement import Measurement, has_traffic
from rrl.space import ConfigurationSpace, Knob
from serving_adapter.address import canonical

FORMAT_VERSION = 1
EMBEDDED = "embedded"  # the target's name in a journal of a run that was given none
NO_END = 10**9  # the intervals of a run that is to go on for ever
MOST_CONCURRENCY = 4096  # of a closed loop
SIMULATION = "simulation"  # the target's name in a journal that rrl-train wrote
Kind = Literal["baseline", "tune", "validation", "wait"]  # wait: nothing was tried
Decision = Literal["agent", "rollback", "hold", "refused", "schedule", "wait", "table", "idle"]
# The header's fields of a run's intervals.
_PLAN = ("interval_s", "settle_s", "intervals", "duration_s", "resumed_at_s")


@dataclass(frozen=True)
class Header:
    """What a run is about: the journal's first line."""

    space: ConfigurationSpace
    objective: str  # one of `rrl.objective.OBJECTIVES`
    slo_p95_ms: float | None
    agent: str
    seed: int
    target: str  # HOST:PORT, "embedded" or "simulation"
    model: str
    found: dict[str, int]  # the target's configuration before the run; may hold knobs that are not tuned
    start: dict[str, int]  # the same on the grid
    interval_s: float
    started_at: str  # ISO 8601
    settle_s: float = 1.0  # the part of an interval that is not measured
    intervals: int = 50  # tuning intervals planned; `NO_END`: it watches
    duration_s: float | None = None  # if given, about as many intervals are run as so long allows
    resumed_at_s: float | None = None  # Unix time from which `duration_s` counts; None: the run's beginning
    load: dict[str, Any] | None = None  # the embedded load's options
    machine: str | None = None  # the machine file that the agent was given
    agent_from: dict[str, Any] | None = None  # the journal replayed before this one: see `pretraining`
    validation: int = 2  # turns of the best and of the start, each, at the end
    limits: dict[str, Any] | None = None  # the options that say what may be changed, and when (`LIMITS`)
    found_config_pbtxt: str | None = None  # the target's whole ModelConfig before the run, as text
    metrics_url: str | None = None  # as it was given
    server: str | None = None  # the name and version that the target tells
    cores: int | None = None  # of the target's machine, as far as that was known
    earlier: dict[str, Any] | None = None  # of intervals that are not in the journal any more: see `rotation`
    version: int = FORMAT_VERSION

    @property
    def concurrency(self) -> int | None:
        """That of the closed loop that was the load; None where it was none."""
        given = (self.load or {}).get("concurrency")
        return given if isinstance(given, int) and 1 <= given <= MOST_CONCURRENCY else None

    def check_continues(self, other: Header) -> None:
        """ValueError unless a run described by `other` may continue this journal."""
        for name, theirs, ours in (
            ("space", str(self.space), str(other.space)),
            ("objective", self.objective, other.objective),
            ("p95 limit", self.slo_p95_ms, other.slo_p95_ms),
            ("agent", self.agent, other.agent),
            ("model", self.model, other.model),
            ("target", canonical(self.target), canonical(other.target)),
            ("number of validation turns", self.validation, other.validation),
        ):
            if theirs != ours:
                raise ValueError(
                    f"the journal is of another {name}: {theirs}, not {ours}; "
                    "resume with the journal's own, or start a new run with --out"
                )

    def planned_as(self, other: Header) -> Header:
        """The same, with as many intervals as those of `other`, and as long ones."""
        return replace(self, **{name: getattr(other, name) for name in _PLAN})

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"journal": "rrl-tune"} | values | {"space": self.space.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Header:
        """ValueError, KeyError or TypeError, with what is wrong, for values that are no header's."""
        knobs = tuple(Knob(name, tuple(v)) for name, v in dict(values["space"]).items())
        header = cls(
            **{k: v for k, v in values.items() if k != "journal"} | {"space": ConfigurationSpace(knobs)}
        )
        for name, hint in get_type_hints(cls).items():
            if not fits(getattr(header, name), hint):
                raise TypeError(f"{name} is {getattr(header, name)!r}")
        header.space.number(header.start)
        return replace(header, agent=present_name(header.agent))


# Values of fields that an older journal lacks in its records.
_DEFAULTS: dict[str, Any] = {
    "changed_at_s": (),
    "not_taken": False,
    "left_to_others": False,
    "settling": None,
    "share": 1.0,
}
_LAST_MOMENT_S = 250e9  # of the calendar that Python knows, in Unix time
# Fields of a record that the journal writes in a form of their own.
_FIELDS_IN_OWN_FORM = ("transition", "settling")


@np.errstate(over="raise")
def _observation(values: list[float]) -> np.ndarray:
    """FloatingPointError for what float32 cannot hold."""
    return np.asarray(values, dtype=np.float32)


@dataclass(frozen=True)
class Record:
    """One interval: the transition, who chose its configuration, and what the guard said of it."""

    kind: Kind
    number: int  # the configuration in force, by its number in the space
    configuration: dict[str, int]
    transition: Transition
    decision: Decision  # whose choice the configuration was: the agent's, the guard's, the schedule's, ...
    reason: str  # why the guard chose in the agent's place or the run waits; what an agent says of its change
    verdict: str  # what the guard said of the interval afterwards; empty if nothing
    rollback: bool  # whether the guard called for a rollback then
    learned: bool  # whether agent and averages take it in
    wall_time_s: float  # Unix time at the end of the interval
    decision_ms: float = math.nan  # agent and guard together, from the end of the interval before
    apply_ms: float = math.nan  # until the configuration was in force
    changed_at_s: tuple[float, ...] = ()  # Unix times of the changes of configuration since the last record
    not_taken: bool = False  # the server refused this configuration and kept what it had
    settling: Measurement | None = None  # of a live change: from before it until the interval was measured
    share: float = 1.0  # of the usual time that it was measured for
    left_to_others: bool = False  # what another client had set stayed in force in its place

    @property
    def measurement(self) -> Measurement:
        return self.transition.measurement

    @property
    def was_in_force(self) -> bool:
        """False where the target kept another configuration than the record's."""
        return not (self.not_taken or self.left_to_others)

    @property
    def counted(self) -> bool:
        """True if there was a target and it had requests; unless the run waited, it used up an interval."""
        return not self.measurement.gap and has_traffic(self.measurement)

    @property
    def silent(self) -> bool:
        """True if the target was there, and no requests came."""
        return not (self.measurement.gap or has_traffic(self.measurement))

    @property
    def cost(self) -> float:
        return self.transition.cost

    @property
    def with_settling(self) -> list[Measurement]:
        """All that was seen in it: while a change settled, and then."""
        return [self.measurement] if self.settling is None else [self.settling, self.measurement]

    @property
    def failures(self) -> int:
        """Failed requests, while a change settled too."""
        return sum(seen.failures for seen in self.with_settling)

    @property
    def failures_in_words(self) -> str:
        """`17 of 142 failed, 3 failed while the change settled`; empty where none failed."""
        settling = 0 if self.settling is None else self.settling.failures
        while_settling = f"{settling} failed while the change settled" if settling else ""
        return ", ".join(filter(None, (self.measurement.failures_in_words, while_settling)))

    @property
    def lesson(self) -> Transition:
        """What the agent is told of a counted interval: its cost only where that is learned."""
        return self.transition if self.learned else replace(self.transition, cost=math.nan)

    def to_json(self) -> dict[str, Any]:
        t = self.transition
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _FIELDS_IN_OWN_FORM}
        return {name: _null_if_nan(value) for name, value in values.items()} | {
            "settling": None if self.settling is None else self.settling.to_json(),
            "observation": [float(x) for x in t.observation],
            "action": [int(x) for x in t.action],
            "cost": _null_if_nan(t.cost),
            "next_observation": [float(x) for x in t.next_observation],
            "measurement": t.measurement.to_json(),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Record:
        """ValueError, KeyError, TypeError or ArithmeticError for values that are no record's."""
        transition = Transition(
            _observation(values["observation"]),
            np.asarray(values["action"], dtype=np.int64),
            _nan_if_null(values["cost"]),
            _observation(values["next_observation"]),
            Measurement.from_json(values["measurement"]),
        )
        values = _DEFAULTS | values
        own = {f.name: values[f.name] for f in fields(cls) if f.name not in _FIELDS_IN_OWN_FORM}
        own |= {name: _nan_if_null(own[name]) for name in ("decision_ms", "apply_ms")}
        own["changed_at_s"] = tuple(own["changed_at_s"])
        settling = None if values["settling"] is None else Measurement.from_json(values["settling"])
        record = cls(transition=transition, settling=settling, **own)
        if wrong := mistyped(record) or next(filter(None, map(mistyped, record.with_settling)), ""):
            raise TypeError(wrong)
        if not all(0 <= at_s <= _LAST_MOMENT_S for at_s in (record.wall_time_s, *record.changed_at_s)):
            raise ValueError("a moment is beyond the calendar")
        return record

    def on(self, space: ConfigurationSpace) -> Record:
        """The record with observations of all present fields, on the grid of its run."""
        t = self.transition
        before, after = (with_gpus(each, space) for each in (t.observation, t.next_observation))
        return replace(self, transition=replace(t, observation=before, next_observation=after))

    def check_in(self, space: ConfigurationSpace) -> None:
        """ValueError or KeyError where this is no interval of a run on that grid."""
        number = space.number(self.configuration)
        action = self.transition.action.tolist()
        if self.number != number or action != space.action(number).tolist():
            raise ValueError(f"number {self.number} is not that of {self.configuration}")
        if self.transition.observation.shape != self.transition.next_observation.shape:
            raise ValueError("the two observations are not of one length")


@dataclass(frozen=True)
class Ending:
    """What a run kept in force, and why: the journal's last line. Without it, that is not known."""

    kept: dict[str, int]
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"left": self.kept, "reason": self.reason}

    @classmethod
    def from_json(cls, values: dict[str, Any], header: Header) -> Ending:
        """ValueError, KeyError or TypeError for values that are no ending of the header's run."""
        header.space.number(values["left"])
        return cls(dict(values["left"]), str(values["reason"]))


def finished(header: Header, records: Iterable[Record]) -> Counter[Kind]:
    """How many intervals of each kind count in a run: of these records, and of those its journal has lost."""
    counts: Counter[Kind] = Counter(record.kind for record in records if record.counted)
    counts.update((header.earlier or {}).get("dropped", {}))
    return counts


def silent_intervals(header: Header, records: Iterable[Record]) -> int:
    """How many intervals of a run had no requests, of these records and of those its journal has lost."""
    return sum(record.silent for record in records) + int((header.earlier or {}).get("silent", 0))


def changes_of_lost_intervals_s(header: Header) -> list[float]:
    """Unix times of the changes in a run's last hour that its journal has lost."""
    return list((header.earlier or {}).get("changed_at_s", ()))


def _null_if_nan(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _nan_if_null(value: float | None) -> float:
    return math.nan if value is None else value
