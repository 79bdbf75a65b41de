"""NVIDIA's perf_analyzer measures our server, over HTTP and over gRPC, as it measures a Triton."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from scripts.triton_server.installation import CHECKOUT, install_apart
from scripts.triton_server.model_analyzer import environment
from tests.support.servers.running_server import RunningServer, start

FOLDER = CHECKOUT / ".triton" / "perf-analyzer"
PINS = ("tritonclient==2.47.0", "nvidia-cuda-runtime-cu12==12.9.79")
QUICK = ("--measurement-mode", "count_windows", "--measurement-request-count", "20", "-s", "999")
"""Figures of any stability: a machine that runs tests is never at rest."""


@pytest.fixture(scope="module")
def commands() -> Path:
    """The folder of an installed perf_analyzer."""
    folder = install_apart(FOLDER, "perf_analyzer", PINS, "130 MB", print)
    tried = run(folder, "--version")
    if tried.returncode != 0:
        pytest.skip(f"perf_analyzer does not start ({tried.stderr.strip()}): it needs Debian's libb64-0d")
    return folder


def run(commands: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(commands / "perf_analyzer"), *arguments]
    return subprocess.run(command, env=environment(commands), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    running = start("--model", "noop", "--http-port", 0)
    yield running
    running.stop()
    assert running.process.stdout is not None
    running.process.stdout.close()


@pytest.mark.parametrize(
    ("protocol", "more"),
    [
        *((protocol, more) for protocol in ("http", "grpc") for more in ((), ("--async",), ("-b", "4"))),
        ("grpc", ("--async", "--streaming")),
    ],
)
def test_it_measures_our_server(
    commands: Path, server: RunningServer, protocol: str, more: tuple[str, ...]
) -> None:
    address = urlsplit(server.rest_url).netloc if protocol == "http" else server.address
    said = run(commands, "-m", "noop", "-i", protocol, "-u", address, *QUICK, *more)
    assert said.returncode == 0, said.stdout + said.stderr
    throughput = re.search(r"Throughput: ([\d.]+) infer/sec", said.stdout)
    assert throughput is not None, said.stdout
    assert float(throughput[1]) > 0
    assert "Successful request count" in said.stdout  # of the server's statistics
