"""The GPU memory tier: a model as one allocation that other processes open through CUDA IPC.

There is one allocation a model, whatever the granularity in host memory. Each allocation costs its opener a
driver call. The paper (section 5.2) found these calls to be the bottleneck when layers are shared one by one.

Allocations are known by their content, as segments of host memory are. So two servers that share a module of
their own, which no repository names, have one copy on the device too.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from serving_adapter.model_store.cuda import Device
from serving_adapter.model_store.tiers.eviction import EvictionPolicy
from serving_adapter.model_store.tiers.host_memory import (
    Placement,
    Weights,
    place,
    segment_sizes,
    tensor_bytes,
)
from serving_adapter.model_store.tiers.tier import Address, Tier, TierEntry


@dataclass(frozen=True, eq=False)
class OnDevice:
    """A model in GPU memory; all placements are in segment 0. `content` is the hash of its weight file."""

    placements: tuple[Placement, ...]
    pointer: int
    handle: bytes
    size_bytes: int
    content: str
    transient: bool = False


class GpuMemory(Tier[OnDevice]):
    """The models on one device; `index` is its number, as the store's process sees the devices."""

    def __init__(self, device: Device, capacity_bytes: int, policy: EvictionPolicy, index: int = 0) -> None:
        super().__init__(capacity_bytes, policy)
        self.name = f"gpu{index}" if index else "gpu"
        self.device_name = f"cuda:{index}"
        self._device = device
        self._contents: dict[str, OnDevice] = {}
        self._users: Counter[str] = Counter()  # models of a content

    def own_bytes(self, entry: TierEntry[OnDevice]) -> int:
        return entry.usage.size_bytes if self._users[entry.content.content] == 1 else 0

    def lasting_bytes(self) -> int:
        used = {e.content.content: e.content.size_bytes for e in self.entries.values() if e.in_use}
        return sum(used.values())

    def free_bytes(self) -> int:
        """What the device has free at this moment, whoever uses it (blocking)."""
        return self._device.free_bytes()

    def copy(self, weights: Weights, content: str, mapped: Mapping[int, mmap.mmap]) -> OnDevice:
        """Copies a model of host memory to the device (blocking); the room must be reserved.

        Segments that are `mapped` are read there. CudaOutOfMemory where others have taken the room.
        """
        placements, size_bytes = _in_one_segment(weights), needed_bytes(weights)
        pointer = self._device.allocate(max(1, size_bytes))
        try:
            for (_, data), placed in zip(tensor_bytes(weights, mapped), placements, strict=True):
                if len(data):
                    self._device.copy_in(pointer + placed.offset_bytes, data)
            handle = self._device.handle(pointer)
        except BaseException:
            self._device.free(pointer)
            raise
        return OnDevice(placements, pointer, handle, size_bytes, content, weights.transient)

    def copy_of_peer(self, peer: GpuMemory, model: OnDevice) -> OnDevice:
        """Copies a model of another device (blocking), as the paper's section 4.2 does; else as `copy`."""
        pointer = self._device.allocate(max(1, model.size_bytes))
        try:
            self._device.copy_from(pointer, peer._device, model.pointer, model.size_bytes)
            handle = self._device.handle(pointer)
        except BaseException:
            self._device.free(pointer)
            raise
        return replace(model, pointer=pointer, handle=handle)

    def with_content(self, content: str) -> OnDevice | None:
        """What the device holds of that content already, under whatever name."""
        return self._contents.get(content)

    def admit(self, address: Address, model: OnDevice, reload_s: float) -> TierEntry[OnDevice]:
        """Adds a model; an allocation whose content is here already is freed, and the present one used."""
        present = self._contents.setdefault(model.content, model)
        if present.pointer != model.pointer:
            self._device.free(model.pointer)
            model = replace(model, pointer=present.pointer, handle=present.handle)
        self._users[model.content] += 1
        return self.add(address, model.size_bytes, reload_s, model)

    def _free(self, entry: TierEntry[OnDevice]) -> None:
        content = entry.content.content
        self._users[content] -= 1
        if not self._users[content]:
            del self._users[content], self._contents[content]
            self._device.free(entry.content.pointer)


def needed_bytes(weights: Weights) -> int:
    return sum(segment_sizes(_in_one_segment(weights)))


def _in_one_segment(weights: Weights) -> tuple[Placement, ...]:
    return place([placement.tensor for placement in weights.placements], None)
