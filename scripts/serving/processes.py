"""What a benchmark starts as processes: servers that end with it, and `rrl-tune`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple, TextIO

from tritonclient.grpc import service_pb2 as pb


@contextlib.contextmanager
def started(
    module: str,
    *arguments: object,
    patience_s: float = 60.0,
    quiet: bool = False,
    log: TextIO | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """`python -m MODULE ...` with its standard output piped; ended at the end, its children too.

    What it says on standard error goes to `log`, or nowhere if it is to be `quiet`.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    errors = subprocess.DEVNULL if quiet else log
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)  # a load generator waits for its last answers
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def ended_well(load: subprocess.Popen[str], timeout_s: float) -> None:
    """Waits for a load that ends by itself; RuntimeError where it ended badly."""
    load.communicate(timeout=timeout_s)
    if load.returncode != 0:
        raise RuntimeError(f"the load ended with {load.returncode}, so its requests tell nothing")


def check_under_way(load: subprocess.Popen[str], what: str) -> None:
    """RuntimeError where a load without an end was over before this was."""
    if load.poll() is not None:
        raise RuntimeError(f"the load ended with {load.returncode} before {what} was through")


def tune_command(*arguments: object) -> list[str]:
    """The command line of `rrl-tune` with these arguments, in this interpreter."""
    return [sys.executable, "-m", "rrl.command_line", *map(str, arguments)]


class StartedServer(NamedTuple):
    """An `rrl-serve` of a benchmark."""

    address: str
    metrics_url: str
    front_pid: int


@contextlib.contextmanager
def serving(model: str, *arguments: object) -> Iterator[str]:
    """`rrl-serve` of a model on free ports; yields its address."""
    with served(model, *arguments) as server:
        yield server.address


@contextlib.contextmanager
def serving_with_metrics(model: str, *arguments: object, quiet: bool = False) -> Iterator[tuple[str, str]]:
    """The same; yields its address and the URL of its metrics page."""
    with served(model, *arguments, quiet=quiet) as server:
        yield server.address, server.metrics_url


@contextlib.contextmanager
def served(model: str, *arguments: object, quiet: bool = False) -> Iterator[StartedServer]:
    """The same; yields its front's process, too."""
    command = ("--model", model, "--port", 0, "--metrics-port", 0, *arguments)
    with started("serving_adapter.server.command_line", *command, quiet=quiet) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"on (\S+:\d+), metrics on (\S+)", line)
        if match is None:
            raise RuntimeError(f"rrl-serve did not start: {line.strip() or 'it said nothing'}")
        yield StartedServer(match.group(1), match.group(2), process.pid)


def infer_request(model: str, name: str, datatype: str, shape: list[int], data: bytes) -> bytes:
    """A serialised ModelInfer request of one input."""
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(data)
    return bytes(request.SerializeToString())
