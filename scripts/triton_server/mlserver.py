"""A real MLServer, in a virtual environment of its own: it speaks Triton's protocol without its extensions.

with running(install()) as server: ...   # its model `tiny` echoes numbers, and fails those below 0
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from scripts.triton_server.installation import CHECKOUT, install_apart
from scripts.triton_server.running import HOST, PROBE_OPTIONS, PROBE_TIMEOUT_S, START_TIMEOUT_S, end

DEFAULT = CHECKOUT / ".triton" / "mlserver"
PINS = ("mlserver==1.7.1", "uvloop==0.21.0")  # with a later uvloop its workers do not start

MODEL = "tiny"
MODEL_MS = 5
MODEL_CODE = f"""
import asyncio

from mlserver import MLModel
from mlserver.types import InferenceResponse, ResponseOutput


class Tiny(MLModel):
    async def predict(self, payload):
        await asyncio.sleep({MODEL_MS} / 1000)
        x = payload.inputs[0]
        values = list(x.data)
        if min(values) < 0:
            raise ValueError("a number below 0")
        output = ResponseOutput(name="y", shape=x.shape, datatype="FP32", data=values)
        return InferenceResponse(model_name=self.name, outputs=[output])
"""


@dataclass(frozen=True)
class RunningMLServer:
    """An MLServer that answers."""

    process: subprocess.Popen[bytes]
    address: str
    metrics_url: str


def install(folder: Path = DEFAULT, say: Callable[[str], object] = print) -> Path:
    """The command `mlserver`, installed if it is not; RuntimeError, in one sentence, where it cannot be."""
    return install_apart(folder, "MLServer", PINS, "330 MB", say) / "mlserver"


@contextlib.contextmanager
def running(command: Path, workers: int = 0) -> Iterator[RunningMLServer]:
    """Serves the model `tiny` on free ports, in the server's own process or in workers beside it.

    RuntimeError, in one sentence, where it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="rrl-mlserver-") as name:
        folder = Path(name)
        ports = _free_ports()
        _write_models(folder, ports, workers)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [command, "start", "."],
                cwd=folder,
                env=dict(os.environ) | {"NO_PROXY": HOST},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        address = f"{HOST}:{ports['grpc_port']}"
        try:
            if not _becomes_ready(process, address):
                lines = (folder / "log").read_text(errors="replace").splitlines() or ["it said nothing"]
                raise RuntimeError(f"MLServer did not start: {lines[-1]}")
            yield RunningMLServer(process, address, f"http://{HOST}:{ports['metrics_port']}/metrics")
        finally:
            end(process)


def _write_models(folder: Path, ports: dict[str, int], workers: int) -> None:
    model = folder / MODEL
    model.mkdir()
    (model / "model.py").write_text(MODEL_CODE, encoding="utf-8")
    settings = {"name": MODEL, "implementation": "model.Tiny"}
    (model / "model-settings.json").write_text(json.dumps(settings), encoding="utf-8")
    settings_of_server = {"host": HOST, "parallel_workers": workers, **ports}
    (folder / "settings.json").write_text(json.dumps(settings_of_server), encoding="utf-8")


def _free_ports() -> dict[str, int]:
    """All held at once, so that they differ."""
    with contextlib.ExitStack() as stack:
        ports = {}
        for name in ("http_port", "grpc_port", "metrics_port"):
            holder = stack.enter_context(socket.socket())
            holder.bind((HOST, 0))
            ports[name] = holder.getsockname()[1]
    return ports


def _becomes_ready(process: subprocess.Popen[bytes], address: str) -> bool:
    """Asks until its model is; False if it ends instead."""
    end_s = time.monotonic() + START_TIMEOUT_S
    with grpc.insecure_channel(address, PROBE_OPTIONS) as channel:
        stub = GRPCInferenceServiceStub(channel)
        while process.poll() is None and time.monotonic() < end_s:
            with contextlib.suppress(grpc.RpcError):
                request = messages.ModelReadyRequest(name=MODEL)
                if stub.ModelReady(request, timeout=PROBE_TIMEOUT_S, wait_for_ready=True).ready:
                    return True
    return False
