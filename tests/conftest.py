"""Real servers for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator

import psutil
import pytest
from hypothesis import HealthCheck, settings

from serving_adapter.model_store import Client, StoreUnavailable
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from tests.support.running_server import RunningServer, start

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The same examples each time, however slow the machine is: what fails is the code, and fails again.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

# A shell that runs the tests in the background has them ignore Ctrl-C, and what they start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# A store of the tests' own, which the first that opens a model starts.
STORE_FOLDER = tempfile.mkdtemp(prefix="rrl-store-")
os.environ["RRL_STORE"] = STORE_FOLDER
os.environ.pop("RRL_STORE_TOKEN", None)


# Groups of tests that take long start first, so that no process is left alone with one at the end.
ONE_REAL_TRITON = "tests/real_triton"
LONGEST_FIRST = (
    ONE_REAL_TRITON,
    "tests/rrl/guided/test_agent.py",
    "tests/test_wheel.py",
    "tests/rrl/command_line",
    "tests/test_agent_contract.py",
    "tests/envs",
    "tests/baselines",
    "tests/serving_adapter",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, each file stays in one, and so does the real Triton."""
    if config.getoption("dist", "no") != "loadgroup":
        return
    files = {item: item.path.relative_to(config.rootpath).as_posix() for item in items}
    for item, file in files.items():
        group = ONE_REAL_TRITON if file.startswith(ONE_REAL_TRITON) else file
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _turn(files[item]))


def _turn(file: str) -> int:
    turns = (turn for turn, start in enumerate(LONGEST_FIRST) if file.startswith(start))
    return next(turns, len(LONGEST_FIRST))


def pytest_unconfigure() -> None:
    shutil.rmtree(STORE_FOLDER, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def end_store() -> Iterator[None]:
    yield
    with contextlib.suppress(StoreUnavailable), Client(starts_store=False) as client:
        store = psutil.Process(client.call("Stats", pb.Empty()).pid)
        store.terminate()
        store.wait(30)  # it takes its sockets away itself


@pytest.fixture
def start_server() -> Iterator[Callable[..., RunningServer]]:
    """Starts servers with the given flags; all are ended after the test."""
    running: list[RunningServer] = []

    def started(*arguments: object) -> RunningServer:
        running.append(start(*arguments))
        return running[-1]

    yield started
    for server in running:
        server.stop(signal.SIGKILL)
        if server.process.stdout is not None:
            server.process.stdout.close()


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """One server of the `sleep` model for all tests that leave it as they found it."""
    running = start("--model", "sleep", "--model-option", "ms=2")
    yield running
    running.stop()
    if running.process.stdout is not None:
        running.process.stdout.close()
