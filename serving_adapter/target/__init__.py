"""Any inference server that is tuned: read, changed and checked.

    from serving_adapter.target import open_target

    target = open_target("localhost:8500")
    target.connect()
    target.apply({"instances": 2})

| module | tells or does |
|---|---|
| `target` | `Target`: what every kind of target promises |
| `installed_targets` | which kind an address names |
| `reading`, `prometheus_text` | the counters of a model |
| `configuration_files` | a server's configuration as its own files |
| `lease` | keeps other tuners off a model |
| `error` | why a target fails |
| `open_inference` | a server of the Open Inference Protocol: ours, or a Triton |
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving_adapter.target.error import (
        LeaseLost,
        LeaseTaken,
        LostInChange,
        ModelAbsent,
        NoSuchKnob,
        NotPutBack,
        Overtaken,
        RequestsRefused,
        TargetError,
        TargetLost,
    )
    from serving_adapter.target.installed_targets import open_target
    from serving_adapter.target.lease import TunerLease
    from serving_adapter.target.open_inference.open_inference_target import OpenInferenceTarget
    from serving_adapter.target.reading import Reading
    from serving_adapter.target.target import Applied, Room, Target

__all__ = [
    "Applied",
    "LeaseLost",
    "LeaseTaken",
    "LostInChange",
    "ModelAbsent",
    "NoSuchKnob",
    "NotPutBack",
    "OpenInferenceTarget",
    "Overtaken",
    "Reading",
    "RequestsRefused",
    "Room",
    "Target",
    "TargetError",
    "TargetLost",
    "TunerLease",
    "open_target",
]

_MODULES = {
    "Applied": "target",
    "OpenInferenceTarget": "open_inference.open_inference_target",
    "Reading": "reading",
    "Room": "target",
    "Target": "target",
    "TunerLease": "lease",
    "open_target": "installed_targets",
}


def __getattr__(name: str) -> Any:
    """Imports gRPC only when it is needed: a reading does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'error')}"), name)
