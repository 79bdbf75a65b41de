"""The reference table: load level -> best configuration (SERF, section 4). The policy that a run exports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rrl.guarding.losses import Losses
from rrl.guarding.settings import GuardSettings
from rrl.load_levels import LoadLevels
from rrl.measured_costs import best_known, costs_by_configuration
from rrl.objective import slo_violated
from rrl.records import Record
from rrl.space import ConfigurationSpace
from serving_adapter.address import canonical
from serving_adapter.whole_files import written_whole
from serving_adapter.yaml_text import yaml_file

FILE_NAME = "reference_table.yaml"


@dataclass(frozen=True)
class ReferenceEntry:
    """The best configuration known at one load level."""

    rate_per_s: tuple[float, float]  # The level's span.
    configuration: dict[str, int]
    cost: float  # The mean over its measurements.
    measurements: int  # Intervals of this configuration at this level.
    configurations: int  # How many were tried at this level.

    def apart_from(self, rate_per_s: float) -> float:
        """How far outside of the level a rate is: the logarithm of the factor, 0 within."""
        low, high = self.rate_per_s
        return max(0.0, math.log(rate_per_s / high), math.log(low / rate_per_s))


class Origin(NamedTuple):
    """The server that costs were measured on."""

    target: str  # Canonical HOST:PORT, "embedded" or "simulation"
    server: str | None = None  # Its name and version, where known.

    @classmethod
    def of(cls, target: str, server: str | None) -> Origin:
        return cls(canonical(target), server or None)

    def is_of(self, other: Origin) -> bool:
        """True for the same address, unless servers of two kinds are known to have answered there."""
        kinds = {origin.server.partition(" ")[0] for origin in (self, other) if origin.server is not None}
        return self.target == other.target and len(kinds) < 2

    def in_words(self) -> str:
        return self.target if self.server is None else f"{self.target} ({self.server})"


@dataclass(frozen=True)
class ReferenceTable:
    objective: str
    unit: str
    model: str
    levels: dict[int, ReferenceEntry]
    origin: Origin | None = None  # Not told by tables of an earlier version.
    slo_p95_ms: float | None = None  # The limit that costs were measured under.

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        space: ConfigurationSpace,
        objective: str,
        unit: str,
        model: str,
        load_levels: LoadLevels | None = None,
        origin: Origin | None = None,
        slo_p95_ms: float | None = None,
    ) -> ReferenceTable:
        """Built from the intervals of a journal that tell what their configuration costs.

        What failed requests, was aborted or broke the limit at a level is not its best, nor is what lost the
        target. The failures that the guard allows do not count, nor do aborts that it did not roll back from.
        Where nothing did better, the best may be what broke the limit and no more. Else the level has no
        entry.
        """
        grid = load_levels or LoadLevels()
        losing = Losses.of(records).beyond_chance(GuardSettings.chance_of_losses)
        by_level: dict[int, list[Record]] = {}
        for record in records:
            if record.learned:
                level = grid.level(record.measurement.arrival_rate_per_s)
                by_level.setdefault(level, []).append(record)
        entries = {
            level: _entry(fit, level, grid, space, tried=len({record.number for record in of_level}))
            for level, of_level in sorted(by_level.items())
            if (fit := _fit([r for r in of_level if r.number not in losing], slo_p95_ms))
        }
        return cls(objective, unit, model, entries, origin, slo_p95_ms)

    def recommend(self, arrival_rate_per_s: float) -> ReferenceEntry | None:
        """The entry of the level nearest to a rate, or nothing if the rate is over twice away from it."""
        if not self.levels or arrival_rate_per_s <= 0:
            return None

        def distance(entry: ReferenceEntry) -> float:
            low, high = entry.rate_per_s
            return abs(math.log(arrival_rate_per_s / math.sqrt(low * high)))

        nearest = min(self.levels.values(), key=distance)
        return nearest if distance(nearest) <= math.log(2.0) else None

    def write(self, path: Path) -> None:
        text = "# Load level -> best configuration known; each level spans the arrival rates given.\n"
        with written_whole(path) as file:  # Others may read it while a watch goes on.
            file.write((text + yaml.safe_dump(self.to_yaml(), sort_keys=False)).encode())

    def to_yaml(self) -> dict[str, Any]:
        return {
            "model": self.model,
            **({} if self.origin is None else self.origin._asdict()),
            "objective": self.objective,
            **({} if self.slo_p95_ms is None else {"slo_p95_ms": self.slo_p95_ms}),
            "unit": self.unit,
            "levels": {
                level: {
                    "rate_per_s": [round(rate, 3) for rate in entry.rate_per_s],
                    "configuration": entry.configuration,
                    "cost": round(entry.cost, 3),
                    "measurements": entry.measurements,
                    "configurations_tried": entry.configurations,
                }
                for level, entry in self.levels.items()
            },
        }

    @classmethod
    def read(cls, path: Path) -> ReferenceTable:
        """ValueError with one sentence if there is no such table."""
        values = yaml_file(path, "reference table")
        try:
            levels = {
                int(level): ReferenceEntry(
                    rate_per_s=_rates(row["rate_per_s"]),
                    configuration={str(k): int(v) for k, v in row["configuration"].items()},
                    cost=float(row["cost"]),
                    measurements=int(row["measurements"]),
                    configurations=int(row["configurations_tried"]),
                )
                for level, row in values["levels"].items()
            }
            origin = None
            if values.get("target") is not None:
                origin = Origin.of(values["target"], str(values.get("server") or ""))
            limit_ms = None if values.get("slo_p95_ms") is None else float(values["slo_p95_ms"])
            return cls(values["objective"], values["unit"], values["model"], levels, origin, limit_ms)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"{path} is not a reference table of rrl-tune ({type(error).__name__}: {error}); "
                f"give the {FILE_NAME} that a tuning run wrote"
            ) from None


def table_path(given: Path) -> Path:
    """The file of a table: the one given, or that in the folder given."""
    return given / FILE_NAME if given.is_dir() else given


def _rates(bounds: Sequence[float]) -> tuple[float, float]:
    low, high = map(float, bounds)
    if not 0 < low <= high < math.inf:
        raise ValueError(f"rate_per_s must be two rates above 0, the lower one first, got {bounds}")
    return low, high


def _fit(of_level: Sequence[Record], slo_p95_ms: float | None) -> list[Record]:
    """The intervals of configurations that served by the guard's verdicts, and kept the limit, if any did.

    To have been slow once speaks against none of them, as the costs tell of it.
    """
    judged = [record for record in of_level if record.verdict]
    unserved = {r.number for r in judged if _did_not_serve(r)}
    broke = {r.number for r in judged if slo_violated(r.measurement, slo_p95_ms)}
    served = [record for record in of_level if record.number not in unserved]
    return [record for record in served if record.number not in broke] or served


def _did_not_serve(record: Record) -> bool:
    """True if more requests failed than the guard allows, or if it aborted the interval and rolled back.

    What failed while a rollback settled is of the configuration before.
    """
    seen = [record.measurement] if record.decision == "rollback" else record.with_settling
    failures, answered = sum(each.failures for each in seen), sum(each.answered for each in seen)
    aborted = bool(record.measurement.aborted) and record.rollback
    return aborted or failures > GuardSettings().failures_allowed(answered)


def _entry(
    fit: Sequence[Record], level: int, grid: LoadLevels, space: ConfigurationSpace, tried: int
) -> ReferenceEntry:
    costs = costs_by_configuration((record.number, record.cost) for record in fit)
    number = best_known(costs)
    half = math.sqrt(grid.ratio)
    centre = grid.rate_per_s(level)
    return ReferenceEntry(
        rate_per_s=(centre / half, centre * half),
        configuration=space.configuration(number),
        cost=sum(costs[number]) / len(costs[number]),
        measurements=len(costs[number]),
        configurations=tried,
    )
