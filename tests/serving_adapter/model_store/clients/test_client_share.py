"""Modules that a process shares are as they were, and share their memory."""

from __future__ import annotations

import gc
from typing import Any, cast

import pytest
import torch
from torch import nn

from serving_adapter import model_store
from serving_adapter.models.branches import torchscript
from tests.support.pipes import line_of
from tests.support.stores.running_store import script
from tests.support.stores.store_clients import CHILD, net
from tests.support.waiting import until


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.out = nn.Linear(64, 100, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(x))


def scripted() -> nn.Module:
    with torchscript():
        return torch.jit.script(nn.Sequential(nn.Linear(64, 64), nn.ReLU()))


def transposed() -> nn.Module:
    module = nn.Linear(64, 32)
    module.weight = nn.Parameter(torch.randn(64, 32).t())
    return module


MODULES = {
    "plain": (lambda: net(0), torch.randn(2, 128)),
    "channels last": (
        lambda: cast(Any, nn.Conv2d(16, 16, 3)).to(memory_format=torch.channels_last),
        torch.randn(2, 16, 8, 8),
    ),
    "tied": (Tied, torch.arange(10)),
    "half": (lambda: nn.Linear(64, 64).to(torch.bfloat16), torch.randn(2, 64, dtype=torch.bfloat16)),
    "transposed": (transposed, torch.randn(2, 64)),
    "frozen": (lambda: nn.Linear(64, 64).requires_grad_(False), torch.randn(2, 64)),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", MODULES)
def test_a_shared_module_is_as_it_was(store, seen, kind):
    make, x = MODULES[kind]
    module = make()
    answer = module(x)
    before = {name: (p.stride(), p.requires_grad, p.clone()) for name, p in module.named_parameters()}
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    assert model_store.share(module, kind) == size
    for name, p in module.named_parameters():
        stride, requires_grad, value = before[name]
        assert (p.stride(), p.requires_grad) == (stride, requires_grad)
        assert torch.equal(p, value)
    assert torch.equal(module(x), answer)
    assert seen.references == 1
    assert kind in {model.address.name for model in seen.models()}
    assert model_store.share(module, kind) == 0  # it is shared already
    del module, p
    gc.collect()
    until(lambda: seen.references == 0)
    assert kind not in {model.address.name for model in seen.models()}  # nobody can ask for it again


def test_tied_parameters_stay_tied(store):
    module = Tied()
    model_store.share(module, "tied")
    assert module.out.weight is module.words.weight


@torch.no_grad()
def test_a_torchscript_module_can_be_shared(store, seen):
    module, x = scripted(), torch.randn(3, 64)
    answer = module(x)
    assert model_store.share(module, "scripted") > 0
    assert torch.equal(module(x), answer)
    del module
    gc.collect()


def test_what_is_not_dense_stays_private(store, seen):
    module = nn.Linear(64, 64, bias=False)
    module.weight = nn.Parameter(torch.randn(64, 1).expand(64, 64), requires_grad=False)
    assert model_store.share(module, "expanded") == 0
    module.weight = nn.Parameter(torch.randn(64, 128)[:, ::2])
    assert model_store.share(module, "gaps") == 0
    assert model_store.share(nn.ReLU(), "nothing") == 0
    assert model_store.share(nn.Linear(5, 5, device="meta"), "meta") == 0
    assert model_store.share(nn.LazyLinear(5), "lazy") == 0
    assert seen.references == 0


def test_buffers_stay_writable(store):
    module = nn.BatchNorm1d(64).train()
    model_store.share(module, "norm")
    module(torch.randn(8, 64))
    assert module.num_batches_tracked == 1


def test_equal_modules_of_two_processes_share_their_memory(store, seen):
    text = CHILD + (
        "torch.manual_seed(3)\nmodule = torch.nn.Linear(512, 512)\n"
        "model_store.share(module, 'linear')\nprint('shared', flush=True)\nsys.stdin.read()"
    )
    before = seen.stats()
    with script(text) as first:
        assert line_of(first) == "shared\n"
        used = seen.tier().used_bytes
        assert used >= 512 * 512 * 4
        with script(text) as second:
            assert line_of(second) == "shared\n"
            assert seen.tier().used_bytes == used
            assert seen.stats().deduplicated_bytes - before.deduplicated_bytes >= 512 * 512 * 4
    until(lambda: seen.stats().deduplicated_bytes == before.deduplicated_bytes)
