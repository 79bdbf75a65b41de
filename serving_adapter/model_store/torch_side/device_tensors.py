"""Tensors over GPU memory that the store's process has allocated: torch's side of the GPU tier.

Other processes open the memory by its handle (CUDA IPC). It cannot be protected against writing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from serving_adapter.model_store.clients.client import OpenedModel
from serving_adapter.model_store.cuda import Cuda
from serving_adapter.model_store.torch_side.tensor_types import torch_dtype, torch_shape

OpenMemory = Callable[[OpenedModel], Tensor]


class _CudaMemory:
    """An opened CUDA IPC handle, as numba's `__cuda_array_interface__` describes memory."""

    def __init__(self, cuda: Cuda, opened: OpenedModel) -> None:
        self._cuda, self._give_back = cuda, opened.give_back
        self._pointer: int | None = None
        self._pointer = cuda.open_handle(opened.segments[0].cuda_handle)
        self.__cuda_array_interface__ = {
            "shape": (opened.segments[0].size_bytes,),
            "typestr": "|u1",
            "data": (self._pointer, False),
            "version": 3,
        }

    def __del__(self) -> None:
        if self._pointer is not None:
            self._cuda.close_handle(self._pointer)
        self._give_back()


@lru_cache(maxsize=64)
def _cuda(pid: int, index: int) -> Cuda:
    """The device of that number in this process, whose context it keeps."""
    return Cuda(index)


def open_memory(opened: OpenedModel) -> Tensor:
    """The bytes of a model on its device; they keep the reference to it."""
    torch.cuda.init()
    index = int(opened.device.partition(":")[2])
    return torch.as_tensor(_CudaMemory(_cuda(os.getpid(), index), opened), device=opened.device)


def device_tensors(opened: OpenedModel, open_memory: OpenMemory = open_memory) -> dict[str, Tensor]:
    """The tensors of a model on a GPU. StoreError where torch has no type for one of them.

    The reference is given back where they cannot be had.
    """
    try:
        forms = [
            (torch_dtype(tensor.dtype), torch_shape(tensor.dtype, tuple(tensor.shape)))
            for tensor in opened.tensors
        ]
        memory = open_memory(opened)
    except BaseException:
        opened.give_back()  # does nothing the second time
        raise
    tensors = {}
    for tensor, (dtype, shape) in zip(opened.tensors, forms, strict=True):
        size_bytes = math.prod(shape) * dtype.itemsize
        part = memory[tensor.offset_bytes : tensor.offset_bytes + size_bytes]
        tensors[tensor.name] = part.view(dtype).view(shape)
    return tensors


@dataclass(frozen=True)
class ParametersOnDevice:
    """A module's parameters, which the store holds on a device once for every process.

    Whoever made it holds the reference. It starts nothing on the device, so the process may fork; a child
    then puts them into its own module.
    """

    parameters: tuple[nn.Parameter, ...]
    opened: OpenedModel

    def put(self, open_memory: OpenMemory = open_memory) -> None:
        """Has the parameters lie on the device from here on, in this process."""
        tensors = device_tensors(self.opened, open_memory)
        for i, parameter in enumerate(self.parameters):
            parameter.data = tensors[str(i)].as_strided(parameter.shape, parameter.stride())
