"""Real servers for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from serving_adapter.model_store import Client, StoreUnavailable
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from tests.support.folder_end import end_other_folders
from tests.support.servers.running_server import RunningServer, start

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The same examples each time, however slow the machine is: what fails is the code, and fails again.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

# A shell that runs the tests in the background has them ignore Ctrl-C, and `nohup` has them ignore a closed
# terminal. What they start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# A store of the tests' own, which the first that opens a model starts.
STORE_FOLDER = tempfile.mkdtemp(prefix="rrl-store-")
os.environ["RRL_STORE"] = STORE_FOLDER
os.environ.pop("RRL_STORE_TOKEN", None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.sharing import SharedByFile

    return SharedByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # this process shares the tests with others
        from tests.support.sharing import turn_of

        items.sort(key=lambda item: turn_of(item.nodeid))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the fixtures of the test itself."""
    if nextitem is not None:
        end_other_folders(nextitem.path)


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
