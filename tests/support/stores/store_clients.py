"""Default clients of a store, in this process and in others."""

from __future__ import annotations

import contextlib
import gc

import torch
from torch import nn

from serving_adapter.model_store.torch_side import tensors

CHILD = "import sys\nfrom pathlib import Path\nimport torch\nfrom serving_adapter import model_store\n"


def net(seed: int, width: int = 128) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3)
    ).eval()


@contextlib.contextmanager
def default_client_of(folder, monkeypatch):
    monkeypatch.setenv("RRL_STORE", str(folder))
    monkeypatch.setattr(tensors, "_clients", {})
    try:
        yield
    finally:
        gc.collect()
        for client in tensors._clients.values():
            client.close()
