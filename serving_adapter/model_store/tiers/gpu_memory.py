"""The GPU memory tier: a model as one allocation that other processes open through CUDA IPC.

There is one allocation a model, whatever the granularity in host memory. Each allocation costs its opener a
driver call. The paper (section 5.2) found these calls to be the bottleneck when layers are shared one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """A model in GPU memory; all placements are in segment 0."""

    placements: tuple[Placement, ...]
    pointer: int
    handle: bytes
    size_bytes: int
    transient: bool = False


class GpuMemory(Tier[OnDevice]):
    name = "gpu"

    def __init__(self, device: Device, capacity_bytes: int, policy: EvictionPolicy) -> None:
        super().__init__(capacity_bytes, policy)
        self._device = device

    def copy(self, weights: Weights) -> OnDevice:
        """Copies a model of host memory to the device (blocking); the room must be reserved."""
        placements, end = _in_one_segment(weights), needed_bytes(weights)
        pointer = self._device.allocate(max(1, end))
        try:
            for (_, data), placed in zip(tensor_bytes(weights), placements, strict=True):
                if len(data):
                    self._device.copy_in(pointer + placed.offset_bytes, data)
            return OnDevice(placements, pointer, self._device.handle(pointer), end, weights.transient)
        except BaseException:
            self._device.free(pointer)
            raise

    def admit(self, address: Address, model: OnDevice, reload_s: float) -> TierEntry[OnDevice]:
        return self.add(address, model.size_bytes, reload_s, model)

    def _free(self, entry: TierEntry[OnDevice]) -> None:
        self._device.free(entry.content.pointer)


def needed_bytes(weights: Weights) -> int:
    return sum(segment_sizes(_in_one_segment(weights)))


def _in_one_segment(weights: Weights) -> tuple[Placement, ...]:
    return place([placement.tensor for placement in weights.placements], None)
