"""The file of faults to inject into workers, for tests and benchmarks: what it may say, and how it is read.

seed: 0                  # for every draw below, and for which workers are concerned
faults:
  - kind: slow           # every batch takes `delay_ms` longer
    delay_ms: [5, 40]    # drawn anew for each batch, uniformly; a single number is always the same;
                         #   {median: 5, sigma: 1} is log-normal, {mean: 10} exponential
    always: 4            # four such episodes at any time, a new one when one ends: in kind the four
    workers: 2           #   background shuffles of ParM's section 6.1, each on two random instances
    for_s: [0.5, 1.5]    # how long an episode lasts, drawn for each; or a number
  - kind: tenant         # somebody else's queries run on the workers' machines now and then (ParM, Fig. 13):
    queries_per_s: 8     #   so many on each, at random
    query_ms: 50         #   of this length; beside one a batch runs at half speed
    workers: 2
    at_s: [0]
    for_s: 3600
  - kind: stall          # the process stands still (SIGSTOP) and then goes on (SIGCONT)
    pool: redundant      # concerns workers that are there for redundancy; or deployed; or all (default)
    mean_gap_s: 0.5      # at random, with exponential gaps between the beginnings
    for_s: 1
  - kind: kill           # SIGKILL
    every_s: 2.0         # first after 2 s
  - kind: kill
    at_s: [1.0, 5.0]     # seconds from the server's start
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from serving_adapter.yaml_text import yaml_file

Range = tuple[float, float]

KINDS = ("slow", "tenant", "stall", "kill")
POOLS = ("all", "deployed", "redundant")
SCHEDULES = ("at_s", "every_s", "mean_gap_s", "always")
KINDS_BY_REQUIRED_KEY = {
    "for_s": ("slow", "tenant", "stall"),
    "delay_ms": ("slow",),
    "queries_per_s": ("tenant",),
    "query_ms": ("tenant",),
}

MIN_DURATION_S = 0.001  # shorter gaps and durations would take the front's processor
MAX_DURATION_S = 86_400.0
MAX_DELAY_MS = 60_000.0
MAX_COUNT = 1000  # for workers at once and for episodes at any time
MAX_QUERIES_PER_S = 1000.0  # of a tenant


class Delay(NamedTuple):
    """The distribution of a slow batch's extra time."""

    name: str
    first: float  # the low end, the median, or the mean in ms
    second: float  # the high end, or the standard deviation of the logarithm

    @property
    def mean_ms(self) -> float:
        if self.name == "uniform":
            return (self.first + self.second) / 2
        return self.first * (math.exp(self.second**2 / 2) if self.name == "log-normal" else 1.0)

    def draw_ms(self, rng: np.random.Generator) -> float:
        if self.name == "uniform":
            drawn_ms = rng.uniform(self.first, self.second)
        elif self.name == "log-normal":
            drawn_ms = self.first * math.exp(self.second * rng.standard_normal())
        else:
            drawn_ms = rng.exponential(self.first)
        return float(min(drawn_ms, MAX_DELAY_MS))


@dataclass(frozen=True)
class Fault:
    """One entry of the file; exactly one of the four schedules is set."""

    kind: str
    workers: int = 1  # how many an episode concerns
    pool: str = "all"
    at_s: tuple[float, ...] | None = None
    every_s: float | None = None
    mean_gap_s: float | None = None
    always: int | None = None
    for_s: Range | None = None
    delay_ms: Delay | None = None
    queries_per_s: float | None = None
    query_ms: float | None = None

    def __post_init__(self) -> None:
        schedules = [name for name in SCHEDULES if getattr(self, name) is not None]
        if len(schedules) != 1:
            given = " and ".join(schedules) or "none"
            raise ValueError(f"needs exactly one schedule ({', '.join(SCHEDULES)}), got {given}")
        if self.kind == "kill" and self.always is not None:
            raise ValueError("a kill has no end, so `always` does not fit it; use every_s or mean_gap_s")
        for key, kinds in KINDS_BY_REQUIRED_KEY.items():
            if self.kind in kinds and getattr(self, key) is None:
                raise ValueError(f"a {self.kind} needs {key}")
            if self.kind not in kinds and getattr(self, key) is not None:
                raise ValueError(f"{key} is for {_listed(kinds)}, not for a {self.kind}; leave it out")


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@dataclass(frozen=True)
class Faults:
    """The whole file."""

    faults: tuple[Fault, ...] = ()
    seed: int = 0


# --- reading the file --------------------------------------------------------------------------------


def read_faults(path: Path) -> Faults:
    """The faults that a YAML file describes; ValueError with one sentence where it is no good."""
    document = yaml_file(path, "faults file")
    try:
        return parse_faults(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_faults(document: object) -> Faults:
    """The faults of a parsed document, `{seed: 0, faults: [...]}`."""
    values = _values(document, {"seed": _seed, "faults": _list})
    if "faults" not in values:
        raise ValueError("needs a list `faults`")
    faults = []
    for number, entry in enumerate(values["faults"], 1):
        try:
            faults.append(_fault(entry))
        except ValueError as error:
            raise ValueError(f"fault {number}: {error}") from None
    return Faults(tuple(faults), values.get("seed", 0))


def _fault(entry: object) -> Fault:
    values = _values(entry, _READERS)
    if "kind" not in values:
        raise ValueError(f"needs a kind ({', '.join(KINDS)})")
    return Fault(**values)


def _values(mapping: object, readers: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Each value read by its key's reader, which raises ValueError with what it expected."""
    if not isinstance(mapping, dict):
        raise ValueError(f"must hold `key: value` lines ({', '.join(readers)}), got {_shown(mapping)}")
    values = {}
    for key, value in mapping.items():
        if key not in readers:
            raise ValueError(f"the key {_shown(key)} is unknown; the keys are {', '.join(readers)}")
        try:
            values[key] = readers[key](value)
        except ValueError as expected:
            raise ValueError(f"{key} must be {expected}, got {_shown(value)}") from None
    return values


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list")
    return value


def _seed(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a whole number from 0")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_COUNT:
        raise ValueError(f"a whole number from 1 to {MAX_COUNT}")
    return value


def _one_of(*names: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return str(value)

    return read


def _number(low: float, high: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        number = _float(value)
        if number is None or not low <= number <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return number

    return read


def _float(value: Any) -> float | None:
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return None
    try:
        return float(value)  # YAML 1.1 reads 1e-3 (without a point) as text
    except (ValueError, OverflowError):
        return None


def _times(value: Any) -> tuple[float, ...]:
    with contextlib.suppress(ValueError):
        times = sorted(map(_number(0, MAX_DURATION_S), _list(value)))
        if times:
            return tuple(times)
    raise ValueError(f"a list of numbers from 0 to {MAX_DURATION_S:g}")


def _range(low: float, high: float) -> Callable[[Any], Range]:
    """A number, or the two ends of a range."""

    def read(value: Any) -> Range:
        ends = value if isinstance(value, list) else [value, value]
        with contextlib.suppress(ValueError):
            first, last = map(_number(low, high), ends)
            if first <= last:
                return first, last
        raise ValueError(f"a number from {low:g} to {high:g} or a range [LOW, HIGH] of such")

    return read


def _delay(value: Any) -> Delay:
    """A number, the two ends of a range, {median, sigma} or {mean}."""
    with contextlib.suppress(ValueError):
        if not isinstance(value, dict):
            return Delay("uniform", *_range(0, MAX_DELAY_MS)(value))
        if value.keys() == {"median", "sigma"}:
            median_ms, sigma = _number(0, MAX_DELAY_MS)(value["median"]), _number(0, 5)(value["sigma"])
            return Delay("log-normal", median_ms, sigma)
        if value.keys() == {"mean"}:
            return Delay("exponential", _number(0, MAX_DELAY_MS)(value["mean"]), 0.0)
    raise ValueError(
        f"a number from 0 to {MAX_DELAY_MS:g}, a range [LOW, HIGH] of such, {{mean: MS}}, or "
        "{median: MS, sigma: S} with S of at most 5"
    )


_READERS: dict[str, Callable[[Any], Any]] = {
    "kind": _one_of(*KINDS),
    "workers": _count,
    "pool": _one_of(*POOLS),
    "at_s": _times,
    "every_s": _number(MIN_DURATION_S, MAX_DURATION_S),
    "mean_gap_s": _number(MIN_DURATION_S, MAX_DURATION_S),
    "always": _count,
    "for_s": _range(MIN_DURATION_S, MAX_DURATION_S),
    "delay_ms": _delay,
    "queries_per_s": _number(0.001, MAX_QUERIES_PER_S),
    "query_ms": _number(0.001, MAX_DELAY_MS),
}
