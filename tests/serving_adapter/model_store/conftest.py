"""Small weight files, repositories of them, and stores within the test's own process."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from serving_adapter.model_store.opening.store import ModelStore
from serving_adapter.model_store.sharing_rule import SharingCosts
from serving_adapter.model_store.tiers.disk import Disk
from serving_adapter.model_store.tiers.eviction import POLICIES
from serving_adapter.model_store.tiers.gpu_memory import GpuMemory
from serving_adapter.model_store.tiers.host_memory import HostMemory
from serving_adapter.model_store.tiers.remote import Remote
from tests.support.waiting import until

Tensors = Mapping[str, np.ndarray]
COSTS = SharingCosts(overhead_s=1e-5, disk_bytes_per_s=1e9)  # tensors below 10,000 bytes share a segment
PLENTY = 1 << 30


class Repository:
    """A folder as a model repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"file://{folder}"

    def add(self, name: str, tensors: Tensors, version: str = "1") -> Path:
        file = self.folder / name / version / "model.safetensors"
        file.parent.mkdir(parents=True)
        file.write_bytes(save(dict(tensors)))
        return file


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    (tmp_path / "repository").mkdir()
    return Repository(tmp_path / "repository")


@pytest.fixture(scope="session")
def pages() -> Callable[..., dict[str, np.ndarray]]:
    """A model of one tensor that takes exactly so many pages of memory, filled with one value."""

    def model(count: int = 1, value: int = 1) -> dict[str, np.ndarray]:
        return {"weight": np.full(count * mmap.PAGESIZE, value, np.uint8)}

    return model


@pytest.fixture(scope="session")
def open_descriptors() -> Callable[[], int]:
    """How many this process has open."""
    return lambda: len(os.listdir("/proc/self/fd"))


@pytest.fixture
def http_repository(repository: Repository) -> Iterator[str]:
    """The repository over HTTP by Python's own server, which knows no byte ranges.

    It fails whatever is asked of a model named `broken`, and ends in the middle of one named `cut`.
    """

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(repository.folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            if "/broken" in self.path:
                self.send_error(500)
            else:
                super().do_HEAD()

        def do_GET(self) -> None:
            if "/broken" in self.path:
                self.send_error(500)
            elif "/cut" in self.path:
                data = Path(self.translate_path(self.path)).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
            else:
                super().do_GET()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client that went
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def _open_paths() -> Iterator[str]:
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(f"/proc/self/fd/{descriptor}")


@pytest.fixture
def make_store(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., contextlib.AbstractAsyncContextManager[ModelStore]]:
    """A store that is closed after the block; all that are made in one test use one cache folder.

    Threads close the files of its clients, perhaps after the test; so the next one waits for that.
    """
    folder = str(tmp_path_factory.getbasetemp())
    until(lambda: not any(path.startswith(folder) for path in _open_paths()))

    @contextlib.asynccontextmanager
    async def store(
        remotes: Sequence[str] = (),
        *,
        host_bytes: int = PLENTY,
        disk_bytes: int = PLENTY,
        device: object = None,
        devices: Sequence[object] = (),
        gpu_bytes: int = PLENTY,
        policy: str = "lru",
        granularity: str = "model",
        eager_reclaim: bool = False,
    ) -> AsyncIterator[ModelStore]:
        make = POLICIES[policy]
        gpus: list[Any] = [*devices] if device is None else [device]
        running = ModelStore(
            HostMemory(host_bytes, make()),
            Disk(tmp_path / "cache", disk_bytes, make()),
            [Remote(url) for url in remotes],
            COSTS,
            gpus=[GpuMemory(each, gpu_bytes, make(), i) for i, each in enumerate(gpus)],
            page_locking=gpus[0] if gpus else None,
            granularity=granularity,
            eager_reclaim=eager_reclaim,
        )
        try:
            yield running
        finally:
            await running.close_all()

    return store
