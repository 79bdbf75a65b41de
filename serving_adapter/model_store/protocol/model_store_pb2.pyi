from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Address(_message.Message):
    __slots__ = ("namespace", "name", "version")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    version: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("session", "address", "device", "ticket")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    session: str
    address: Address
    device: str
    ticket: str
    def __init__(self, session: _Optional[str] = ..., address: _Optional[_Union[Address, _Mapping]] = ..., device: _Optional[str] = ..., ticket: _Optional[str] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "segment", "offset_bytes")
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
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., segment: _Optional[int] = ..., offset_bytes: _Optional[int] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("size_bytes", "cuda_handle")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CUDA_HANDLE_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    cuda_handle: bytes
    def __init__(self, size_bytes: _Optional[int] = ..., cuda_handle: _Optional[bytes] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("lease", "tensors", "segments", "version", "found_in")
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
    def __init__(self, lease: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., version: _Optional[str] = ..., found_in: _Optional[str] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("session", "lease")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    session: str
    lease: str
    def __init__(self, session: _Optional[str] = ..., lease: _Optional[str] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("address", "pinned")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    address: Address
    pinned: bool
    def __init__(self, address: _Optional[_Union[Address, _Mapping]] = ..., pinned: bool = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("address", "tier")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    address: Address
    tier: str
    def __init__(self, address: _Optional[_Union[Address, _Mapping]] = ..., tier: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("address", "size_bytes", "tiers", "references", "pinned", "opens")
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
    def __init__(self, address: _Optional[_Union[Address, _Mapping]] = ..., size_bytes: _Optional[int] = ..., tiers: _Optional[_Iterable[str]] = ..., references: _Optional[int] = ..., pinned: bool = ..., opens: _Optional[int] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("tier", "capacity_bytes", "used_bytes", "hits", "misses", "evictions")
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
    def __init__(self, tier: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., evictions: _Optional[int] = ...) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("tiers", "models", "references", "clients", "deduplicated_bytes", "sharing_overhead_s", "disk_bytes_per_s", "pid")
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
    def __init__(self, tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., models: _Optional[int] = ..., references: _Optional[int] = ..., clients: _Optional[int] = ..., deduplicated_bytes: _Optional[int] = ..., sharing_overhead_s: _Optional[float] = ..., disk_bytes_per_s: _Optional[float] = ..., pid: _Optional[int] = ...) -> None: ...
