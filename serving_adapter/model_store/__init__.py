"""The model store (TrIMS): one copy of a model's weights for every process of the machine.

    from serving_adapter import model_store

    module.load_state_dict(model_store.open("bert", "3"), assign=True)     # of the store's repositories
    weights = model_store.load_file("model.safetensors")                   # as safetensors.torch.load_file

`docs/explanation/model-store.md` says what it is, when it pays, and how to use it without the rest of the
project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serving_adapter.model_store.errors import NoRoom, StoreError, StoreUnavailable, UnknownModel

if TYPE_CHECKING:
    from serving_adapter.model_store.client import Client
    from serving_adapter.model_store.tensors import load_file, open, patience, share

__all__ = [
    "Client",
    "NoRoom",
    "StoreError",
    "StoreUnavailable",
    "UnknownModel",
    "load_file",
    "open",
    "patience",
    "share",
]


def __getattr__(name: str) -> Any:
    """Imports torch only when it is needed: the store itself does without."""
    if name == "Client":
        from serving_adapter.model_store import client as module
    elif name in __all__:
        from serving_adapter.model_store import tensors as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
