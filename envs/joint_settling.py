"""When a change has settled, of one model or of several at once: then each must have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envs.settling import Settling
from envs.waiting import UNCHANGED
from rrl.joint import by_model
from rrl.space import Configuration
from serving_adapter.target import Applied
from serving_adapter.target.reading import Reading


@dataclass(frozen=True)
class JointSettling:
    """What is waited for after one change of several models: until each has settled."""

    in_force: Reading
    models: Mapping[str, Settling]

    def at_least_s(self, settle_s: float) -> float:
        return max(each.at_least_s(settle_s) for each in self.models.values())

    def is_over(self, readings: Sequence[Reading]) -> bool:
        return all(
            each.is_over([reading.models[name] for reading in readings]) for name, each in self.models.items()
        )


def settling_after(
    applied: Applied, in_force: Reading, configuration: Configuration
) -> Settling | JointSettling:
    """What is waited for after a change to a configuration, whose first reading is given."""
    if in_force.models:
        parts = by_model(configuration)
        own = {
            name: settling_after(applied.models.get(name, UNCHANGED), reading, parts.get(name, {}))
            for name, reading in in_force.models.items()
        }
        return JointSettling(in_force, {k: v for k, v in own.items() if isinstance(v, Settling)})
    return Settling(
        in_force,
        applied.in_place,
        configuration.get("instances", 1),
        configuration.get("max_batch_size", 1),
        applied.cold_instances,
    )
