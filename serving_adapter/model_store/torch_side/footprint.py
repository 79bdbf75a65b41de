"""What a module needs beside its weights, by shape inference (TrIMS, section 4.1.1)."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def intermediate_bytes(module: nn.Module, *inputs: Tensor) -> int:
    """The most bytes of intermediate results that are alive at once in one inference; nothing is computed.

    What a library takes for its own work, as cuDNN does, is not in it. A module that looks at its values
    cannot be inferred, and raises what torch raises.
    """
    state = {name: t.to("meta") for name, t in chain(module.named_parameters(), module.named_buffers())}
    shapes = tuple(x.to("meta") for x in inputs)
    with torch.inference_mode(), _LiveBytes((*state.values(), *shapes)) as live:
        torch.func.functional_call(module, state, shapes)
    return live.most_bytes


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of what is alive, but for what was there before."""

    def __init__(self, there: Iterable[Tensor]) -> None:
        super().__init__()
        self.most_bytes = self._bytes = 0
        self._there = list(there)
        self._known = {x.untyped_storage()._cdata for x in self._there}

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        outputs = function(*args, **(kwargs or {}))
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self._count(output.untyped_storage())
        return outputs

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size_bytes = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self._bytes += size_bytes
            self.most_bytes = max(self.most_bytes, self._bytes)
            weakref.finalize(storage, self._gone, key, size_bytes).atexit = False

    def _gone(self, key: int, size_bytes: int) -> None:
        self._known.discard(key)
        self._bytes -= size_bytes
