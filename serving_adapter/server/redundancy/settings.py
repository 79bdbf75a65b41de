"""The settings of resilience: which mode a model has, and its numbers.

They are knobs in the model's configuration, `parameters` whose names begin with `RESILIENCE_`, and change
live like the others. Unless it is set, the number of redundant workers is m/k (m = `instances`; ParM's
Equal-Resources, section 6.1), so that modes are compared at equal cost. With r above 1 each parity model has
so many. Default answers need no computing, so they have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from serving_adapter.model_configuration import whole_number
from serving_adapter.parity.coding import check_code

MODES = {
    "none": "every batch runs once",
    "equal-resources": "the redundant workers run the deployed model like the others",
    "replication": "every batch runs twice at once; the first answer counts",
    "hedging": "a batch that takes longer than most runs a second time",
    "approximate-backup": "every batch runs on a cheaper backup model too; the first answer counts",
    "default-answer": "a request that takes too long gets a default answer",
    "parity": "k batches are coded into a parity batch, from which a late answer is reconstructed (ParM)",
}
PREFIX = "RESILIENCE_"
LIMITS = {
    "k": (2, 64),
    "r": (1, 8),
    "redundant_instances": (0, 64),
    "late_percentile": (0, 100),
    "late_after_us": (0, 600_000_000),
    "group_timeout_us": (0, 600_000_000),
    "overflow": (0, 1),
}


@dataclass(frozen=True)
class ResilienceSettings:
    """A resilience mode and its numbers; a mode ignores the settings that do not concern it."""

    mode: str = "none"
    k: int = 2
    """Batches in a coding group."""
    r: int = 1
    """Parity batches of a coding group, which is how many lost answers can be reconstructed."""
    redundant_instances: int = 0
    """Redundant workers (parity: of each parity model); 0 is m/k, rounded up."""
    late_percentile: int = 95
    """A batch is late after this percentile of the recent service times. Hedging then runs it again, and
    parity reconstructs its answer if it can (0: as soon as it can, as in the paper)."""
    late_after_us: int = 0
    """If set, a batch is late so long after its dispatch, whatever the percentile. The mode default-answer
    needs it, and counts from a request's arrival."""
    group_timeout_us: int = 100_000
    """How long a coding group of the mode parity waits for its last batches before earlier ones fill it."""
    overflow: Literal[0, 1] = 1
    """With 1, the workers of parity and backup models run batches of the deployed model when all of its own
    are busy, while max_batch_size is 1. Its own workers run parity queries while no batch waits for them.
    With 0 all are kept apart, as in the paper."""

    def redundant(self, instances: int) -> int:
        """Redundant workers beside `instances` deployed ones; each parity model has so many."""
        if self.mode in ("none", "default-answer"):
            return 0
        return self.redundant_instances or -(-instances // self.k)

    def check(self, instances: int) -> None:
        """Raises ValueError, in one sentence, for settings that no server could serve."""
        if self.mode not in MODES:
            raise ValueError(f"resilience mode {self.mode!r} is unknown; known: {', '.join(MODES)}")
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{_flag(name)} must be a whole number from {low} to {high}, got {value!r}")
        if self.mode == "parity" and self.k > instances:
            raise ValueError(
                f"{_flag('k')}={self.k} needs at least {self.k} instances, so that a coding group's batches "
                f"run on different workers, but there are {instances}; lower it or raise instances"
            )
        if self.mode == "parity":
            check_code(self.k, self.r, (_flag("k"), _flag("r")))
        if self.mode == "default-answer" and self.late_after_us == 0:
            raise ValueError(
                f"the mode default-answer needs {_flag('late_after_us')}: the microseconds after "
                "which a request gets the default answer"
            )


def from_parameters(parameters: Mapping[str, str], default: ResilienceSettings) -> ResilienceSettings:
    """The settings among a configuration's parameters; ValueError where one is unknown or no number."""
    given: dict[str, Any] = {}
    for name, text in parameters.items():
        if not name.startswith(PREFIX):
            continue
        setting = name.removeprefix(PREFIX).lower()
        if setting == "mode":
            given[setting] = text
        elif setting in LIMITS:
            given[setting] = _whole_number(name, text)
        else:
            known = ", ".join(_flag(field.name) for field in fields(ResilienceSettings))
            raise ValueError(f"parameters.{name} is no setting of resilience; known: {known}")
    return ResilienceSettings(**vars(default) | given)


def as_parameters(resilience: ResilienceSettings) -> dict[str, str]:
    return {_flag(name): str(value) for name, value in vars(resilience).items()}


def _flag(name: str) -> str:
    return PREFIX + name.upper()


def _whole_number(name: str, text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise ValueError(f"parameters.{name}.string_value must be a whole number, got {text!r}")
    return number
