"""Gymnasium environments of a served model. Importing this package registers their ids.

Nothing heavy is imported until it is used: the simulated environment needs neither torch nor gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import register

if TYPE_CHECKING:
    from envs.live import LiveServing
    from envs.scenarios.scenario import Scenario
    from envs.serving import ServingEnv
    from envs.simulated import SimulatedServing
    from envs.vector import SimulatedServingVector
    from rrl.queueing.machine import Machine

__all__ = ["LiveServing", "Machine", "Scenario", "ServingEnv", "SimulatedServing", "SimulatedServingVector"]

_MODULES = {
    "LiveServing": "envs.live",
    "Machine": "rrl.queueing.machine",
    "ServingEnv": "envs.serving",
    "Scenario": "envs.scenarios.scenario",
    "SimulatedServing": "envs.simulated",
    "SimulatedServingVector": "envs.vector",
}

register(
    id="rrl/SimulatedServing-v0",
    entry_point="envs.simulated:SimulatedServing",
    vector_entry_point="envs.vector:SimulatedServingVector",
)
register(id="rrl/LiveServing-v0", entry_point="envs.live:LiveServing", nondeterministic=True)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
