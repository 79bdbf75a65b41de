"""A running Triton: started on free ports, ready when it says so, ended with all its processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from scripts.triton_server.installation import Installation, install

HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 15.0
PROBE_TIMEOUT_S = 0.5  # how long one question for readiness waits
PROBE_OPTIONS = [  # options of a channel to a server that is about to listen
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
]
_END_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()
MAX_STARTS = 3  # where another program takes a free port first
ENVIRONMENT = {
    "RRL_STORE": "off",  # models load their weights as they would in anybody's Triton
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait steal the cores of other instances
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class RunningTriton:
    """A Triton that answers."""

    process: subprocess.Popen[bytes]
    address: str
    http_address: str
    metrics_url: str
    log: Path


@contextlib.contextmanager
def running(
    repository: Path,
    *flags: str,
    grpc_port: int = 0,
    http_port: int = 0,
    metrics_port: int = 0,
    installation: Installation | None = None,
) -> Iterator[RunningTriton]:
    """Serves a repository; a port of 0 is a free one, and `flags` override the ones given here.

    All models are loaded at the start, and may be loaded anew (`--model-control-mode=explicit`), as tuning
    needs. The server ends with the thread that starts it, should that be killed. RuntimeError, in one
    sentence, where it does not start.
    """
    installation = installation or install()
    ports = (grpc_port, http_port, metrics_port)
    with tempfile.TemporaryDirectory(prefix="rrl-triton-") as folder:
        for start in range(1, MAX_STARTS + 1):
            server = _start(installation, repository, flags, _free_ports(ports), Path(folder) / "log")
            try:
                if _becomes_ready(server):
                    yield server
                    return
            finally:
                _end(server)
            log = server.log.read_text(encoding="utf-8", errors="replace")
            if "already in use" not in log or start == MAX_STARTS:
                raise RuntimeError(f"Triton did not start: {_reason(log)}")


def _start(
    installation: Installation, repository: Path, flags: tuple[str, ...], ports: tuple[int, ...], log: Path
) -> RunningTriton:
    grpc_port, http_port, metrics_port = ports
    explicit = {"--model-control-mode": "explicit", "--load-model": "*"}
    if any(flag.startswith("--model-control-mode=") for flag in flags):
        explicit = {}
    settings = {
        "--model-repository": repository.absolute(),
        "--backend-directory": installation.backends,
        **explicit,
        "--exit-timeout-secs": 3,
        "--allow-gpu-metrics": "false",
        "--http-address": HOST,
        "--http-port": http_port,
        "--grpc-address": HOST,
        "--grpc-port": grpc_port,
        "--metrics-address": HOST,
        "--metrics-port": metrics_port,
        "--backend-config": f"python,shm-region-prefix-name={_shared_memory(grpc_port)}",
    }
    given = {flag.partition("=")[0] for flag in flags}
    command = [*_END_WITH_PARENT, str(installation.binary), "--disable-auto-complete-config", *flags]
    command += [f"{name}={value}" for name, value in settings.items() if name not in given]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=installation.environment() | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    metrics_url = f"http://{HOST}:{metrics_port}/metrics"
    return RunningTriton(process, f"{HOST}:{grpc_port}", f"{HOST}:{http_port}", metrics_url, log)


def _free_ports(ports: tuple[int, ...]) -> tuple[int, ...]:
    """The ports, with free ones for zeros; all are held at once, so that they differ."""
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in ports]
        for holder, port in zip(holders, ports, strict=True):
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                holder.bind((HOST, port))
            except OSError as error:
                raise RuntimeError(
                    f"Triton cannot listen on {HOST}:{port} ({error.strerror}); name another port"
                ) from None
        return tuple(holder.getsockname()[1] for holder in holders)


def _becomes_ready(server: RunningTriton) -> bool:
    """Asks until it is; False if it ends instead. Its metrics page is what it opens last."""
    is_ready, end_s = False, time.monotonic() + START_TIMEOUT_S
    with grpc.insecure_channel(server.address, PROBE_OPTIONS) as channel:
        stub = GRPCInferenceServiceStub(channel)
        while server.process.poll() is None and time.monotonic() < end_s:
            if is_ready and _answers(server.metrics_url):
                return True
            with contextlib.suppress(grpc.RpcError):
                request = messages.ServerReadyRequest()
                is_ready = stub.ServerReady(request, timeout=PROBE_TIMEOUT_S, wait_for_ready=True).ready
    if server.process.poll() is None:
        raise RuntimeError(f"Triton was not ready within {START_TIMEOUT_S:g} s; its models may be too large")
    return False


def _answers(metrics_url: str) -> bool:
    address = urlsplit(metrics_url)
    try:
        socket.create_connection((address.hostname, address.port), PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def end(process: subprocess.Popen[bytes]) -> None:
    """Lets a server finish its requests, then ends what is left of it and of its models' processes."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end(server: RunningTriton) -> None:
    """Ends a Triton and removes its shared memory."""
    end(server.process)
    port = int(server.address.rpartition(":")[2])
    for left in Path("/dev/shm").glob(f"{_shared_memory(port)}*"):
        left.unlink(missing_ok=True)


def _shared_memory(grpc_port: int) -> str:
    """The prefix of a server's shared memory. By it that of a killed server is found and removed."""
    return f"rrl_triton_{os.getpid()}_{grpc_port}_"


def _reason(log: str) -> str:
    """The reason that the log gives for a model or the server, or its first line, as for wrong flags."""
    lines = log.splitlines() or ["it said nothing"]
    of_models = [line for line in lines if line.startswith("E") and "failed to load '" in line]
    of_server = [line for line in lines if "already in use" in line or line.startswith("error:")]
    reason = (of_models or of_server or lines)[0].rpartition("] ")[2].partition("\\n")[0]
    return reason.removeprefix("error:").strip(' "')
