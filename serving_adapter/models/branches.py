"""Branches of a model that run at once, on torch's inter-op pool.

Only TorchScript reaches that pool (`torch.jit.fork`), so TorchScript is what branches become, although
torch marks it deprecated; its warnings are silenced here, where its use is deliberate. Building traces
each branch by itself and compiles the container, but runs no fork: the pool starts with the first batch.
"""

# No `from __future__ import annotations`: TorchScript reads the annotations themselves.
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def torchscript() -> Iterator[None]:
    """Silences the deprecation warnings of TorchScript, and no others, where its use is deliberate."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.", category=DeprecationWarning)
        yield


class ParallelBranches(nn.Module):
    """Gives one input to all branches and concatenates what they answer along dimension 1.

    Every branch is forked, the last one too: as many run at once as the pool has threads, no more.
    """

    def __init__(self, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        running = [torch.jit.fork(branch, x) for branch in self.branches]
        return torch.cat([torch.jit.wait(branch) for branch in running], dim=1)


def parallel(branches: Sequence[nn.Module], example: Tensor) -> nn.Module:
    """A scripted `ParallelBranches`; branches that are not scripted yet are traced with the example."""
    with torchscript(), torch.no_grad():
        scripted = [
            branch
            if isinstance(branch, torch.jit.ScriptModule)
            else torch.jit.trace(branch.eval(), (example,), check_trace=False)
            for branch in branches
        ]
        return torch.jit.script(ParallelBranches(scripted))


def has_forks(module: nn.Module) -> bool:
    """Whether a module, or a scripted part of it, runs branches on the inter-op pool."""
    return any(
        bool(part.inlined_graph.findAllNodes("prim::fork"))  # type: ignore[attr-defined]
        for part in module.modules()
        if isinstance(part, torch.jit.ScriptModule) and hasattr(part, "forward")
    )
