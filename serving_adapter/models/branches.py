"""Branches of a model that run at once, on torch's inter-op pool.

Only TorchScript reaches that pool (`torch.jit.fork`), so TorchScript is what branches become, although
torch marks it deprecated; its warnings are silenced here, where its use is deliberate. Building traces
each branch by itself and compiles the container, but runs no fork: the pool starts with the first batch.
"""

# No `from __future__ import annotations`: TorchScript reads the annotations themselves.
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

POOL_MEETING_TIMEOUT_S = 10.0


@contextmanager
def torchscript() -> Iterator[None]:
    """Where we knowingly use TorchScript: its deprecation warnings, and no others, are ignored."""
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


def set_intra_op_threads(count: int, on_inter_op_pool: bool) -> None:
    """Sets the threads that one operator uses, from the next batch on; call it between batches.

    OpenMP keeps that number by thread, and the threads of the inter-op pool read it only once, when they
    start: `torch.set_num_threads` alone changes nothing for branches that run there. So, for a model with
    parallel branches, every thread of the pool is made to set it too.
    """
    torch.set_num_threads(count)
    if on_inter_op_pool:
        threads = torch.get_num_interop_threads()
        global _meeting
        _meeting = threading.Barrier(threads)
        _on_every_pool_thread()(threads, count, torch.zeros(1))


_meeting = threading.Barrier(1)


def _set_on_this_thread(count: int, token: Tensor) -> Tensor:
    # All wait for all, so that no thread of the pool takes two of the calls.
    _meeting.wait(POOL_MEETING_TIMEOUT_S)
    torch.set_num_threads(count)
    return token


def _call_on_pool(threads: int, count: int, token: Tensor) -> list[Tensor]:
    running = [torch.jit.fork(_ignored, count, token) for _ in range(threads)]
    return [torch.jit.wait(call) for call in running]


@cache
def _on_every_pool_thread() -> torch.jit.ScriptFunction:
    with torchscript():
        return torch.jit.script(_call_on_pool)


with torchscript():
    _ignored = torch.jit.ignore(_set_on_this_thread)
