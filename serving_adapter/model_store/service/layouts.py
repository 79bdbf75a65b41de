"""Where the tensors of resident models lie, written out for the clients that open them."""

from __future__ import annotations

import os
from typing import NamedTuple

from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.tiers.gpu_memory import OnDevice
from serving_adapter.model_store.tiers.host_memory import Weights, sealed_copy


class _Layout(NamedTuple):
    """Where a model's tensors lie, written out: as a message, and in a memory file."""

    message: pb.OpenReply
    descriptor: int


class Layouts:
    """The layouts of resident models: kept, because writing one out is most of the work of opening."""

    def __init__(self) -> None:
        self._of: dict[Weights | OnDevice, _Layout] = {}

    def of(self, model: Weights | OnDevice) -> _Layout:
        if model not in self._of:
            message = pb.OpenReply(tensors=_tensors(model), segments=_segments(model))
            self._of[model] = _Layout(message, sealed_copy(message.SerializeToString()))
        return self._of[model]

    def drop(self, model: Weights | OnDevice) -> None:
        """Forgets the layout of a model that is evicted."""
        layout = self._of.pop(model, None)
        if layout is not None:
            os.close(layout.descriptor)


def _tensors(model: Weights | OnDevice) -> list[pb.Tensor]:
    return [
        pb.Tensor(name=t.name, dtype=t.dtype, shape=t.shape, segment=segment, offset_bytes=offset_bytes)
        for t, segment, offset_bytes in model.placements
    ]


def _segments(model: Weights | OnDevice) -> list[pb.Segment]:
    if isinstance(model, Weights):
        return [pb.Segment(size_bytes=segment.size_bytes) for segment in model.segments]
    return [pb.Segment(size_bytes=model.size_bytes, cuda_handle=model.handle)]


def segment_descriptors(model: Weights | OnDevice) -> list[int]:
    return [segment.fd for segment in model.segments] if isinstance(model, Weights) else []
