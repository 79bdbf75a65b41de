"""The options of `rrl-serve` about what runs the batches."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from serving_adapter.knob_limits import MOST_NODES


@dataclass(frozen=True)
class EngineOptions:
    """Worker processes of this machine, or of the nodes of a Ray cluster."""

    engine: Literal["local", "ray"] = "local"
    """What runs the batches: local, worker processes of this machine; ray, those of a cluster's nodes
    (docs/how-to/cluster.md)."""
    address: str = "127.0.0.1:6379"
    """HOST:PORT of the head of the Ray cluster, with --engine ray."""
    nodes: int = 0
    """Nodes of the cluster that may be used at most; 0 is all."""
    fronts: int = 1
    """Servers that serve together with one configuration, one a node; each has its part of --instances."""
    placement: Literal["spread", "pack"] = "spread"
    """Spreads workers over these nodes in proportion to their CPUs, or packs them on as few as may be."""
    nodes_per_unit: int = 1
    """Nodes that run each batch together, each with a part of the model's large layers, with --engine ray.
    `instances` then counts such units."""

    def check_engine(self) -> None:
        """ValueError, in one sentence, for what only a cluster obeys, asked of the local engine.

        A value that is the default counts as none.
        """
        if not 1 <= self.fronts <= MOST_NODES:
            raise ValueError(f"--fronts must be from 1 to {MOST_NODES}, got {self.fronts}")
        if self.engine == "ray":
            return
        given = [
            f"--{field.name.replace('_', '-')} {getattr(self, field.name)}"
            for field in fields(EngineOptions)
            if field.name != "engine" and getattr(self, field.name) != field.default
        ]
        if given:
            raise ValueError(
                f"{' '.join(given)} is for the nodes of a Ray cluster; add --engine ray, or leave it out"
            )
