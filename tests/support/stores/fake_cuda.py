"""A GPU that is only pretended, in the test's process or in that of a store of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from serving_adapter.model_store import Client
from serving_adapter.model_store.cuda import IPC_HANDLE_BYTES, CudaOutOfMemory
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.tiers.gpu_memory import OnDevice
from tests.support.pipes import line_of
from tests.support.stores.running_store import COSTS, script, short_folder
from tests.support.stores.store_in_process import PLENTY

STORE = """
import asyncio, sys
from pathlib import Path
from serving_adapter.model_store import daemon
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.settings import StoreSettings
from tests.support.stores.fake_cuda import FakeCuda

daemon._devices = lambda: [FakeCuda()]
folder, cache, remote, gpu_bytes = sys.argv[1:]
settings = StoreSettings(1 << 26, 1 << 26, Path(cache), gpu_bytes=int(gpu_bytes), remotes=(remote,))
asyncio.run(daemon.run(Endpoint(Path(folder)), settings, lambda: print("ready", flush=True)))
"""


class FakeCuda:
    """A device whose memory is host memory; it knows what is allocated, and fails when it is full.

    `others_bytes` of it are taken by other processes.
    """

    def __init__(self, size_bytes: int = PLENTY) -> None:
        self.size_bytes, self.others_bytes = size_bytes, 0
        self.memory: dict[int, bytearray] = {}
        self.locked: dict[int, int] = {}  # host memory, by its address: how long it is
        self.copied_bytes = {"locked": 0, "pageable": 0, "peer": 0}
        self.threads: set[threading.Thread] = set()  # that locked and unlocked
        self._next = 1 << 32

    def free_bytes(self) -> int:
        return self.size_bytes - self.others_bytes - sum(map(len, self.memory.values()))

    def allocate(self, size_bytes: int) -> int:
        assert size_bytes > 0  # the driver takes no zero
        if size_bytes > self.free_bytes():
            raise CudaOutOfMemory("cuMemAlloc_v2 failed with CUDA error 2")
        pointer, self._next = self._next, self._next + (1 << 32)
        self.memory[pointer] = bytearray(size_bytes)
        return pointer

    def free(self, pointer: int) -> None:
        del self.memory[pointer]

    def copy_in(self, pointer: int, data: memoryview) -> None:
        at = _address(data)
        is_locked = any(start <= at < start + length for start, length in self.locked.items())
        self.copied_bytes["locked" if is_locked else "pageable"] += len(data)
        self._put(pointer, data)

    def copy_from(self, pointer: int, peer: FakeCuda, peer_pointer: int, size_bytes: int) -> None:
        self.copied_bytes["peer"] += size_bytes
        self._put(pointer, memoryview(peer.memory[peer_pointer])[:size_bytes])

    def _put(self, pointer: int, data: memoryview) -> None:
        start = pointer & ~((1 << 32) - 1)
        whole = memoryview(self.memory[start])
        whole[pointer - start : pointer - start + len(data)] = data

    def handle(self, pointer: int) -> bytes:
        return pointer.to_bytes(IPC_HANDLE_BYTES, "little")

    def lock_pages(self, data: memoryview) -> None:
        self.threads.add(threading.current_thread())
        self.locked[_address(data)] = len(data)

    def unlock_pages(self, data: memoryview) -> None:
        self.threads.add(threading.current_thread())
        del self.locked[_address(data)]

    def read(self, model: OnDevice) -> dict[str, bytes]:
        """The tensors' bytes, as a client reads them through the handle."""
        memory = self.memory[int.from_bytes(model.handle, "little")]
        return {
            p.tensor.name: bytes(memory[p.offset_bytes : p.offset_bytes + p.tensor.size_bytes])
            for p in model.placements
        }


def _address(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)


@contextlib.contextmanager
def store_with_a_gpu(cache: Path, remote: str, gpu_bytes: int) -> Iterator[Endpoint]:
    """A store in a process of its own."""
    with short_folder() as folder:
        COSTS.write(folder)
        with script(STORE, folder, cache, remote, gpu_bytes) as process:
            assert line_of(process) == "ready\n"
            yield Endpoint(folder)


def client_of(endpoint: Endpoint) -> Client:
    return Client(endpoint, starts_store=False)
