from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf.internal import containers as _containers

DESCRIPTOR: _descriptor.FileDescriptor

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Address(_message.Message):
    __slots__ = ("name", "namespace", "version")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    version: str
    def __init__(
        self, namespace: str | None = ..., name: str | None = ..., version: str | None = ...
    ) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("address", "device", "session", "ticket")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    session: str
    address: Address
    device: str
    ticket: str
    def __init__(
        self,
        session: str | None = ...,
        address: Address | _Mapping | None = ...,
        device: str | None = ...,
        ticket: str | None = ...,
    ) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "name", "offset_bytes", "segment", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    segment: int
    offset_bytes: int
    def __init__(
        self,
        name: str | None = ...,
        dtype: str | None = ...,
        shape: _Iterable[int] | None = ...,
        segment: int | None = ...,
        offset_bytes: int | None = ...,
    ) -> None: ...

class Segment(_message.Message):
    __slots__ = ("cuda_handle", "size_bytes")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CUDA_HANDLE_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    cuda_handle: bytes
    def __init__(self, size_bytes: int | None = ..., cuda_handle: bytes | None = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("found_in", "lease", "segments", "tensors", "version")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FOUND_IN_FIELD_NUMBER: _ClassVar[int]
    lease: str
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    version: str
    found_in: str
    def __init__(
        self,
        lease: str | None = ...,
        tensors: _Iterable[Tensor | _Mapping] | None = ...,
        segments: _Iterable[Segment | _Mapping] | None = ...,
        version: str | None = ...,
        found_in: str | None = ...,
    ) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("lease", "session")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    session: str
    lease: str
    def __init__(self, session: str | None = ..., lease: str | None = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("address", "pinned")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    address: Address
    pinned: bool
    def __init__(self, address: Address | _Mapping | None = ..., pinned: bool = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("address", "tier")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    address: Address
    tier: str
    def __init__(self, address: Address | _Mapping | None = ..., tier: str | None = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("address", "opens", "pinned", "references", "size_bytes", "tiers")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    address: Address
    size_bytes: int
    tiers: _containers.RepeatedScalarFieldContainer[str]
    references: int
    pinned: bool
    opens: int
    def __init__(
        self,
        address: Address | _Mapping | None = ...,
        size_bytes: int | None = ...,
        tiers: _Iterable[str] | None = ...,
        references: int | None = ...,
        pinned: bool = ...,
        opens: int | None = ...,
    ) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Iterable[Model | _Mapping] | None = ...) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("capacity_bytes", "evictions", "hits", "misses", "tier", "used_bytes")
    TIER_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    tier: str
    capacity_bytes: int
    used_bytes: int
    hits: int
    misses: int
    evictions: int
    def __init__(
        self,
        tier: str | None = ...,
        capacity_bytes: int | None = ...,
        used_bytes: int | None = ...,
        hits: int | None = ...,
        misses: int | None = ...,
        evictions: int | None = ...,
    ) -> None: ...

class StatsReply(_message.Message):
    __slots__ = (
        "clients",
        "deduplicated_bytes",
        "disk_bytes_per_s",
        "models",
        "pid",
        "references",
        "sharing_overhead_s",
        "tiers",
    )
    TIERS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARING_OVERHEAD_S_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    models: int
    references: int
    clients: int
    deduplicated_bytes: int
    sharing_overhead_s: float
    disk_bytes_per_s: float
    pid: int
    def __init__(
        self,
        tiers: _Iterable[TierStats | _Mapping] | None = ...,
        models: int | None = ...,
        references: int | None = ...,
        clients: int | None = ...,
        deduplicated_bytes: int | None = ...,
        sharing_overhead_s: float | None = ...,
        disk_bytes_per_s: float | None = ...,
        pid: int | None = ...,
    ) -> None: ...
