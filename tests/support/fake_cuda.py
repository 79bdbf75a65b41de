"""A GPU that is only pretended, in the test's process or in that of a store of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from serving_adapter.model_store import Client
from serving_adapter.model_store.cuda import IPC_HANDLE_BYTES, CudaError
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.tiers.gpu_memory import OnDevice
from tests.support.pipes import line_of
from tests.support.running_store import COSTS, PLENTY, script, short_folder

STORE = """
import asyncio, sys
from pathlib import Path
from serving_adapter.model_store import daemon
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.settings import StoreSettings
from tests.support.fake_cuda import FakeCuda

daemon._cuda = FakeCuda
folder, cache, remote, gpu_bytes = sys.argv[1:]
settings = StoreSettings(1 << 26, 1 << 26, Path(cache), gpu_bytes=int(gpu_bytes), remotes=(remote,))
asyncio.run(daemon.run(Endpoint(Path(folder)), settings, lambda: print("ready", flush=True)))
"""


class FakeCuda:
    """A device whose memory is host memory; it knows what is allocated, and fails when it is full."""

    def __init__(self, size_bytes: int = PLENTY) -> None:
        self.size_bytes = size_bytes
        self.memory: dict[int, bytearray] = {}
        self._next = 1 << 32

    def allocate(self, size_bytes: int) -> int:
        assert size_bytes > 0  # the driver takes no zero
        if sum(map(len, self.memory.values())) + size_bytes > self.size_bytes:
            raise CudaError("cuMemAlloc_v2 failed with CUDA error 2")
        pointer, self._next = self._next, self._next + (1 << 32)
        self.memory[pointer] = bytearray(size_bytes)
        return pointer

    def free(self, pointer: int) -> None:
        del self.memory[pointer]

    def copy_in(self, pointer: int, data: memoryview) -> None:
        start = pointer & ~((1 << 32) - 1)
        whole = memoryview(self.memory[start])
        whole[pointer - start : pointer - start + len(data)] = data

    def handle(self, pointer: int) -> bytes:
        return pointer.to_bytes(IPC_HANDLE_BYTES, "little")

    def lock_pages(self, data: memoryview) -> None: ...

    def unlock_pages(self, data: memoryview) -> None: ...

    def read(self, model: OnDevice) -> dict[str, bytes]:
        """The tensors' bytes, as a client reads them through the handle."""
        memory = self.memory[int.from_bytes(model.handle, "little")]
        return {
            p.tensor.name: bytes(memory[p.offset_bytes : p.offset_bytes + p.tensor.size_bytes])
            for p in model.placements
        }


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
