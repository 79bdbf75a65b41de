"""The few calls of CUDA's driver that sharing GPU memory takes (TrIMS, section 5.2), without torch.

Memory that a process allocates is opened by others with `cudaIpc` handles, here the driver's `cuIpc...`.
Such memory cannot be protected against writing, unlike a sealed memory file.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

IPC_HANDLE_BYTES = 64
LAZY_ENABLE_PEER_ACCESS = 1
READ_ONLY_HOST = 0x08
FOR_EVERY_DEVICE = 0x01
OUT_OF_MEMORY = 2


class CudaError(RuntimeError):
    """A call of the driver failed; its number is in the text."""


class CudaOutOfMemory(CudaError):
    """The device has not that much memory free, whoever uses it."""


class Device(Protocol):
    """Memory of one GPU, as the GPU tier needs it."""

    def allocate(self, size_bytes: int) -> int: ...

    def free(self, pointer: int) -> None: ...

    def copy_in(self, pointer: int, data: memoryview) -> None: ...

    def copy_from(self, pointer: int, peer: Any, peer_pointer: int, size_bytes: int) -> None: ...

    def free_bytes(self) -> int: ...

    def handle(self, pointer: int) -> bytes: ...


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * IPC_HANDLE_BYTES)]


class Cuda:
    """One device through `libcuda`; CudaError if there is no driver or no such device."""

    def __init__(self, index: int = 0) -> None:
        self._driver = _driver()
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context

    def allocate(self, size_bytes: int) -> int:
        self._enter()
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        return pointer.value

    def free(self, pointer: int) -> None:
        self._enter()
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def copy_in(self, pointer: int, data: memoryview) -> None:
        """Copies host memory to the device and waits for it."""
        self._enter()
        address, keep_alive = _address(data)
        self._call(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), ctypes.c_void_p(address), ctypes.c_size_t(len(data))
        )
        del keep_alive

    def copy_from(self, pointer: int, peer: Cuda, peer_pointer: int, size_bytes: int) -> None:
        """Copies from another device, through host memory where the two are not connected; waits for it."""
        self._enter()
        self._call(
            "cuMemcpyPeer",
            *(ctypes.c_uint64(pointer), self._context, ctypes.c_uint64(peer_pointer), peer._context),
            ctypes.c_size_t(size_bytes),
        )

    def free_bytes(self) -> int:
        """The memory that nobody uses, in whatever process."""
        self._enter()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def handle(self, pointer: int) -> bytes:
        """What another process opens the allocation with."""
        self._enter()
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
        return bytes(handle)

    def open_handle(self, handle: bytes) -> int:
        """A pointer to another process's allocation, valid until `close_handle`."""
        self._enter()
        pointer = ctypes.c_uint64()
        opened = _Handle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), opened, LAZY_ENABLE_PEER_ACCESS)
        return pointer.value

    def close_handle(self, pointer: int) -> None:
        self._enter()
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(pointer))

    def lock_pages(self, data: memoryview) -> None:
        """Page-locks mapped host memory, so that copies from it run at the full speed of the bus."""
        self._enter()
        address, keep_alive = _address(data)
        size = ctypes.c_size_t(len(data))
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(address), size, READ_ONLY_HOST | FOR_EVERY_DEVICE)
        del keep_alive

    def unlock_pages(self, data: memoryview) -> None:
        self._enter()
        address, keep_alive = _address(data)
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))
        del keep_alive

    def _enter(self) -> None:
        """Driver calls act on the calling thread's context."""
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, function: str, *arguments: object) -> None:
        _call(self._driver, function, *arguments)


def devices() -> list[Cuda]:
    """Every device that the driver shows this process; CudaError where there is none."""
    count = ctypes.c_int()
    _call(_driver(), "cuDeviceGetCount", ctypes.byref(count))
    if not count.value:
        raise CudaError("the CUDA driver shows no device")
    return [Cuda(i) for i in range(count.value)]


def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise CudaError("there is no CUDA driver on this machine") from None
    _call(driver, "cuInit", 0)
    return driver


def _call(driver: ctypes.CDLL, function: str, *arguments: object) -> None:
    status = getattr(driver, function)(*arguments)
    if status:
        kind = CudaOutOfMemory if status == OUT_OF_MEMORY else CudaError
        raise kind(f"{function} failed with CUDA error {status}")


def _address(data: memoryview) -> tuple[int, object]:
    """The address of a buffer. It may be read-only, which ctypes' own `from_buffer` refuses."""
    import numpy as np

    array = np.frombuffer(data, np.uint8)
    return array.ctypes.data, array
