"""Which signals stop a process in order, and which end it at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

# It stops in order once it is told to by its standard input.
STOPPED_IN_ORDER = """
import asyncio, sys
from serving_adapter.stop_signal import done_before, stop_on_signal

async def main():
    stop = stop_on_signal()
    print("ready", flush=True)
    print(await done_before(stop, asyncio.sleep(3600)))
    print(stop.signal_number, flush=True)
    sys.stdin.readline()

asyncio.run(main())
"""


FIRST_OF_A_CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


@pytest.fixture
def running() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", STOPPED_IN_ORDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def _said(process: subprocess.Popen[str]) -> tuple[str, str]:
    assert process.stdout is not None
    return process.stdout.readline().strip(), process.stdout.readline().strip()


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_same_signal_twice_ends_at_once_and_another_changes_nothing(
    running: subprocess.Popen[str], first: signal.Signals, second: signal.Signals
) -> None:
    running.send_signal(first)
    assert _said(running) == ("False", str(int(first)))
    running.send_signal(second)
    if first == second != signal.SIGHUP:
        assert running.wait(30) == -second
    else:
        running.communicate("\n", timeout=30)
        assert running.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_same_signal_twice_ends_the_first_process_of_a_container_too(number: signal.Signals) -> None:
    if subprocess.run([*FIRST_OF_A_CONTAINER, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this machine lets nobody have a container")
    command = [*FIRST_OF_A_CONTAINER, sys.executable, "-c", STOPPED_IN_ORDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as outside:
        assert outside.stdout is not None
        assert outside.stdout.readline() == "ready\n"
        (first,) = psutil.Process(outside.pid).children()
        first.send_signal(number)
        assert _said(outside) == ("False", str(int(number)))
        first.send_signal(number)
        assert outside.wait(30) == 128 + number
