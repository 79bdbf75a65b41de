"""The model store (TrIMS): one copy of a model's weights for every process of the machine.

    from serving_adapter import model_store

    module.load_state_dict(model_store.open("bert", "3"), assign=True)     # of the store's repositories
    weights = model_store.load_file("model.safetensors")                   # as safetensors.torch.load_file

`docs/explanation/model-store.md` says what it is, when it pays, and how to use it without the rest of the
project.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from serving_adapter.model_store.errors import NoRoom, StoreError, StoreUnavailable, UnknownModel

if TYPE_CHECKING:
    from serving_adapter.model_store.clients.client import Client
    from serving_adapter.model_store.torch_side.footprint import intermediate_bytes
    from serving_adapter.model_store.torch_side.tensors import (
        load_file,
        open,
        patience,
        share,
        share_on_device,
    )

__all__ = [
    "Client",
    "NoRoom",
    "StoreError",
    "StoreUnavailable",
    "UnknownModel",
    "intermediate_bytes",
    "load_file",
    "open",
    "patience",
    "share",
    "share_on_device",
]

_HOMES = {"Client": "clients.client", "intermediate_bytes": "torch_side.footprint"}


def __getattr__(name: str) -> Any:
    """Imports torch only when it is needed: the store itself does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'torch_side.tensors')}"), name)
