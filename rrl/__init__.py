"""The words of the project: what tunes, what it is told, what it tunes, and what comes of it.

    from rrl import ConfigurationSpace, Task, live

A name is imported when it is used. So `import rrl` needs neither NumPy nor the file locks of the journal.

`rrl.envs` and `rrl.baselines` are packages below this one in a wheel, and beside it in a checkout.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rrl.agent import Agent, Hindsight, Task, Transition, live, observe
    from rrl.journal import Journal, read
    from rrl.knobs import in_words
    from rrl.load_levels import LoadLevels
    from rrl.measured_costs import best_known
    from rrl.measurement import LatencySummary, Measurement, ServiceTimes
    from rrl.objective import (
        Capacity,
        Goodput,
        LeastResources,
        MeanLatency,
        Objective,
        StrictSLO,
        Throughput,
        make_objective,
    )
    from rrl.queueing.machine import Machine
    from rrl.records import Header, Record
    from rrl.space import Configuration, ConfigurationSpace, Knob

__all__ = [
    "Agent",
    "Capacity",
    "Configuration",
    "ConfigurationSpace",
    "Goodput",
    "Header",
    "Hindsight",
    "Journal",
    "Knob",
    "LatencySummary",
    "LeastResources",
    "LoadLevels",
    "Machine",
    "MeanLatency",
    "Measurement",
    "Objective",
    "Record",
    "ServiceTimes",
    "StrictSLO",
    "Task",
    "Throughput",
    "Transition",
    "best_known",
    "in_words",
    "live",
    "make_objective",
    "observe",
    "read",
]

_MODULES = {
    "rrl.agent": ("Agent", "Hindsight", "Task", "Transition", "live", "observe"),
    "rrl.journal": ("Journal", "read"),
    "rrl.knobs": ("in_words",),
    "rrl.load_levels": ("LoadLevels",),
    "rrl.measured_costs": ("best_known",),
    "rrl.measurement": ("LatencySummary", "Measurement", "ServiceTimes"),
    "rrl.objective": (
        "Capacity",
        "Goodput",
        "LeastResources",
        "MeanLatency",
        "Objective",
        "StrictSLO",
        "Throughput",
        "make_objective",
    ),
    "rrl.queueing.machine": ("Machine",),
    "rrl.records": ("Header", "Record"),
    "rrl.space": ("Configuration", "ConfigurationSpace", "Knob"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not os.path.isdir(os.path.join(__path__[0], "envs")):  # in a checkout
    import_module("rrl.checkout_names").install()
