"""Any inference server that is tuned: read, changed and checked over the Open Inference Protocol.

    from serving_adapter.target import Target

    target = Target("localhost:8500")
    target.connect()
    target.apply({"instances": 2})

| module | tells or does |
|---|---|
| `target` | `Target`: one model of one server |
| `inference_server` | the server, its models and their configurations |
| `reading`, `prometheus_text`, `metrics_page`, `counters` | the counters of a model |
| `checks` | what may be tuned, and what is refused |
| `reconfiguration`, `change` | puts a configuration in force, or the one before it back |
| `found_configuration`, `kept_configuration` | configurations that outlast a connection |
| `lease` | keeps other tuners off a model |
| `error` | why a target fails |
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
        RequestsRefused,
        TargetError,
        TargetLost,
    )
    from serving_adapter.target.lease import TunerLease
    from serving_adapter.target.reading import Reading
    from serving_adapter.target.reconfiguration import Applied
    from serving_adapter.target.target import Target

__all__ = [
    "Applied",
    "LeaseLost",
    "LeaseTaken",
    "LostInChange",
    "ModelAbsent",
    "NoSuchKnob",
    "NotPutBack",
    "Reading",
    "RequestsRefused",
    "Target",
    "TargetError",
    "TargetLost",
    "TunerLease",
]

_MODULES = {"Applied": "reconfiguration", "TunerLease": "lease", "Reading": "reading", "Target": "target"}


def __getattr__(name: str) -> Any:
    """Imports gRPC only when it is needed: a reading does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'error')}"), name)
