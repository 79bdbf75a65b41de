"""The knobs of a server that runs models: their names, their values, and the limits of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Configuration = Mapping[str, int]
"""Values of some knobs, e.g. `{"instances": 2, "max_batch_size": 8}`."""


def in_words(configuration: Configuration) -> str:
    """As `--knobs` names them, for a sentence."""
    return ", ".join(f"{name}={value}" for name, value in configuration.items())


def by_model(configuration: Configuration) -> dict[str, dict[str, int]]:
    """The knobs of each model, where they are named with it: `resnet.instances`."""
    found: dict[str, dict[str, int]] = {}
    for name, value in configuration.items():
        model, _, knob = name.rpartition(".")
        found.setdefault(model, {})[knob] = value
    return found


class Limits(NamedTuple):
    """The least and the greatest value that a knob may have."""

    low: int
    high: int


KNOBS: dict[str, Limits] = {
    "instances": Limits(1, 64),
    "intra_op_threads": Limits(1, 256),
    "inter_op_threads": Limits(1, 64),
    "max_batch_size": Limits(1, 1024),
    "max_queue_delay_us": Limits(0, 10_000_000),
}

MOST_NODES = 10_000  # of a cluster

CLUSTER_KNOBS: dict[str, Limits] = {"nodes_per_unit": Limits(1, MOST_NODES)}
"""Those of our own server on a cluster."""

KNOBS_ON_CLUSTER: dict[str, Limits] = KNOBS | {"instances": Limits(1, 10_000)}
"""The knobs of any server whose instances are on the nodes of a cluster: one machine bears fewer."""


def check(configuration: Mapping[str, object], limits: Mapping[str, Limits] = KNOBS) -> None:
    """Raises ValueError, in one sentence, for an unknown knob or a value no integer or out of limits."""
    for name, value in configuration.items():
        if name not in limits:
            raise ValueError(f"unknown knob {name!r}; known: {', '.join(limits)}")
        low, high = limits[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(
                f"{name} must be an integer from {low} to {high}, got {value!r} ({type(value).__name__})"
            )
        if not low <= value <= high:
            raise ValueError(f"{name} must be from {low} to {high}, got {value}")
