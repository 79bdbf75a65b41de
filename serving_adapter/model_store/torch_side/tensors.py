"""Tensors over the store's memory: torch's side of the client.

They are views of read-only maps. Reading them costs nothing; writing to them ends the process, as writing
to any read-only memory does. `torch.nn.Module.load_state_dict(..., assign=True)` takes them as they are.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import logging
import math
import os
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import load_file as load_privately
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from serving_adapter.model_store.clients.client import Client, OpenedModel
from serving_adapter.model_store.endpoint import default_endpoint, switched_off
from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.file_identity import file_identity
from serving_adapter.model_store.sharing_rule import SharingCosts
from serving_adapter.model_store.torch_side.device_tensors import ParametersOnDevice, device_tensors
from serving_adapter.model_store.torch_side.tensor_types import NAMES, torch_dtype, torch_shape

log = logging.getLogger(__name__)

_shared_buffers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The maps of models that tensors lie in, by their addresses."""


def open(
    name: str,
    version: str = "",
    *,
    namespace: str = "safetensors",
    device: str = "cpu",
    intermediate_bytes: int = 0,
) -> dict[str, Tensor]:
    """The weights of a model of the store's repositories, as a state dict of zero-copy tensors.

    An empty version is the newest. The store keeps the model while a tensor of it is around. On a GPU it
    keeps `intermediate_bytes` free beside it, for what this process computes. UnknownModel, NoRoom,
    StoreUnavailable or another StoreError where it cannot be had.
    """
    opened = default_client().open(name, version, namespace, device, intermediate_bytes=intermediate_bytes)
    return state_dict(opened)


def load_file(filename: str | os.PathLike[str], device: str | int = "cpu") -> dict[str, Tensor]:
    """As `safetensors.torch.load_file`, but shared: processes that load the same file have one copy of it.

    Loads privately where sharing does not pay (section 5.2 of the paper), and on devices other than the CPU.
    So it does where the store is switched off (RRL_STORE=off), or cannot be used, which is logged.
    """
    path = Path(filename)
    if device == "cpu":
        try:
            shared = shared_file(path)
        except StoreError as error:
            log.warning("%s is loaded privately: %s", path, error)
        else:
            if shared is not None:
                return shared
    return load_privately(path, device)


def shared_file(
    path: Path, *, copies_on_write: bool = False, as_found: os.stat_result | None = None
) -> dict[str, Tensor] | None:
    """A weight file's tensors through the store; None where it is switched off, or sharing does not pay.

    With `copies_on_write` they may be written to, and what is written stays in this process. StoreError
    where the store cannot be used, or where the file is not the one that was found, in that state.
    """
    if switched_off() or not _pays(path.stat().st_size):
        return None
    with path.open("rb") as file:
        if as_found is not None and file_identity(os.fstat(file.fileno())) != file_identity(as_found):
            raise StoreError("it is another file than the one that was opened, or it has changed since")
        label = str(path.absolute())
        return state_dict(default_client().open_file(file, label, copies_on_write=copies_on_write))


def share(module: nn.Module, label: str) -> int:
    """Moves a module's parameters into the store, so that processes with the same ones have one copy.

    For modules whose weights were not loaded through the store: made by code, fused, or from another
    format. Buffers stay, for a module may write to them. Returns the bytes that are shared now.
    """
    parameters = [p for p in module.parameters() if not is_lazy(p) and _is_dense(p) and not _is_shared(p)]
    size_bytes = sum(p.numel() * p.element_size() for p in parameters)
    if not size_bytes or switched_off():
        return 0
    with _as_weight_file(parameters) as file:
        shared = state_dict(default_client().open_file(file, label))
    for i, parameter in enumerate(parameters):
        parameter.data = shared[str(i)].as_strided(parameter.shape, parameter.stride())
    return size_bytes


def share_on_device(module: nn.Module, label: str, device: str) -> ParametersOnDevice | None:
    """Has the store hold a module's parameters on a GPU, for `ParametersOnDevice.put` to use them from there.

    The module stays as it is. None where the store is switched off. StoreError where it has no such device
    (`rrl-store serve --gpu-bytes`), or no room on it.
    """
    parameters = tuple(p for p in module.parameters() if not is_lazy(p) and _is_dense(p))
    if not parameters or switched_off():
        return None
    with _as_weight_file(parameters) as file:
        return ParametersOnDevice(parameters, default_client().open_file(file, label, device=device))


def state_dict(opened: OpenedModel) -> dict[str, Tensor]:
    """The tensors of an opened model; they keep its maps alive, and so the reference to it.

    StoreError where torch has no type for one of them.
    """
    if any(segment.cuda_handle for segment in opened.segments):
        return device_tensors(opened)
    assert opened.memory is not None
    buffer, starts = opened.memory.buffer, opened.memory.starts
    _shared_buffers[ctypes.addressof(buffer)] = buffer
    tensors = {}
    for tensor in opened.tensors:  # models have thousands: little is done for each
        dtype, shape = torch_dtype(tensor.dtype), torch_shape(tensor.dtype, tuple(tensor.shape))
        start = starts[tensor.segment] + tensor.offset_bytes
        tensors[tensor.name] = _tensor(buffer, dtype, shape, start)
    return tensors


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], start: int) -> Tensor:
    """A tensor whose storage is its own bytes alone: what copies, saves or sends it takes the whole storage.

    Between tensors the buffer may also have gaps, which cannot be read.
    """
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=start).view(shape)


def _pays(size_bytes: int) -> bool:
    """Decides by the costs that the store has measured. Before any are known, sharing is supposed to pay."""
    costs = SharingCosts.read(default_endpoint().folder)
    return costs is None or costs.gain_s(size_bytes) > 0


@contextlib.contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Within it, this process waits for the store so long in all; then it loads privately."""
    client = None if switched_off() else default_client()
    if client is not None:
        client.give_up_s = time.monotonic() + seconds
    try:
        yield
    finally:
        if client is not None:
            client.give_up_s = None


# --- the process's client --------------------------------------------------------------------------

_clients: dict[int, Client] = {}  # by process: a forked one makes its own


def default_client() -> Client:
    """The client that this process opens everything with. StoreError if the store is switched off."""
    pid = os.getpid()
    if pid not in _clients:
        _clients[pid] = Client()
    return _clients[pid]


@atexit.register
def _end_default_client() -> None:
    """Of this process: a forked one leaves its parent's alone."""
    client = _clients.pop(os.getpid(), None)
    if client is not None:
        client.end_with_process()


# --- modules whose weights come from elsewhere -----------------------------------------------------


def _is_dense(tensor: Tensor) -> bool:
    """Whether the tensor is in host memory without gaps, in whatever order of its dimensions."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.dtype not in NAMES:
        return False
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return tensor.numel() > 0


def _is_shared(tensor: Tensor) -> bool:
    address = tensor.untyped_storage().data_ptr()
    return any(0 <= address - start < len(buffer) for start, buffer in list(_shared_buffers.items()))


def _as_weight_file(tensors: Iterable[Tensor]) -> BinaryIO:
    """An unnamed safetensors file in memory with the tensors in the order of their bytes, named 0, 1, ..."""
    flat = [_bytes_of(tensor) for tensor in tensors]
    entries, end = {}, 0
    for i, (tensor, data) in enumerate(zip(tensors, flat, strict=True)):
        entries[str(i)] = {
            "dtype": NAMES[tensor.dtype],
            "shape": [tensor.numel()],
            "data_offsets": [end, end + len(data)],
        }
        end += len(data)
    header = json.dumps(entries).encode()
    file = os.fdopen(os.memfd_create("rrl-share", os.MFD_CLOEXEC), "w+b")
    file.write(len(header).to_bytes(8, "little") + header)
    for data in flat:
        file.write(data)
    file.flush()
    return file


def _bytes_of(tensor: Tensor) -> memoryview:
    in_memory_order = tensor.detach().as_strided((tensor.numel(),), (1,))
    return in_memory_order.view(torch.uint8).numpy().data
