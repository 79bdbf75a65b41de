"""One real Triton for all tests of this folder, and our own server beside it."""

from __future__ import annotations

import contextlib
import json
import py_compile
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.triton_server.installation import Installation, install
from scripts.triton_server.repository import ModelSpec, write_repository
from scripts.triton_server.running import RunningTriton, running
from serving_adapter.target import OpenInferenceTarget
from tests.support.folder_end import until_folder_ends
from tests.support.models import fragile
from tests.support.servers.running_server import RunningServer
from tests.support.servers.triton_served import Served

INSTALL_TIMEOUT_S = 600  # the first test's; the package index may be slow

RICH = """
version_policy { specific { versions: 1 } }
dynamic_batching { preferred_batch_size: 4 preserve_ordering: true }
model_warmup { name: "zeros" batch_size: 1
  inputs { key: "x" value { data_type: TYPE_FP32 dims: 16 zero_data: true } } }
parameters { key: "OWNER" value { string_value: "the search team" } }
metric_tags { key: "team" value: "search" }
instance_group { name: "pool" kind: KIND_CPU count: 1 }
"""
"""Much that a tuner has no business with."""

DIRECT = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
OLDEST = "sequence_batching { oldest { max_candidate_sequences: 4 } }"

PIPELINE = """
name: "pipeline" platform: "ensemble" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 16 } output { name: "y" data_type: TYPE_FP32 dims: 16 }
ensemble_scheduling { step { model_name: "member" model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }
"""

LIGHT = ("sleep", "conversation", "dialogue", "member", "pipeline", "fragile", "add_sub")
HEAVY = ("minilm", "efficientnet_lite0")  # loaded by the tests that want them


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.triton)
            item.add_marker(pytest.mark.timeout(INSTALL_TIMEOUT_S))


@pytest.fixture(scope="session")
def installation() -> Installation:
    try:
        return install(say=lambda text: None)
    except RuntimeError as error:
        pytest.fail(f"{error}; or leave these tests out with: pytest -m 'not triton'")


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_repository(
        tmp_path_factory.mktemp("repository"),
        {
            "sleep": ModelSpec("sleep", {"ms": 2}, extra=RICH),
            "conversation": ModelSpec("noop", extra=DIRECT),
            "dialogue": ModelSpec("noop", extra=OLDEST),
            "member": ModelSpec("noop"),
            "fragile": ModelSpec("noop"),
            "add_sub": ModelSpec("add_sub"),
            **{name: ModelSpec(name) for name in HEAVY},
        },
    )
    (folder / "pipeline" / "1").mkdir(parents=True)
    (folder / "pipeline" / "config.pbtxt").write_text(PIPELINE, encoding="utf-8")
    model = folder / "fragile" / "1" / "model.py"
    with model.open("a", encoding="utf-8") as file:
        file.write(fragile.PYTHON_BACKEND)
    py_compile.compile(str(model), doraise=True)
    return folder


@pytest.fixture(scope="session")
def light_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For a Triton of a test's own: one model."""
    return write_repository(tmp_path_factory.mktemp("light"), {"member": ModelSpec("noop")})


@pytest.fixture(scope="session")
def triton(installation: Installation, repository: Path) -> Iterator[RunningTriton]:
    models = (f"--load-model={name}" for name in LIGHT)
    with until_folder_ends(Path(__file__).parent) as stack:
        yield stack.enter_context(running(repository, *models, installation=installation))


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """A view of a running server's model, closed after the test."""
    with contextlib.ExitStack() as stack:

        def view(server: RunningServer | RunningTriton, model: str) -> Served:
            log = getattr(server, "log", None)
            served = Served(server.address, server.metrics_url, model, log)
            stack.callback(served.close)
            return served

        yield view


@pytest.fixture(params=["rrl-serve", "triton"])
def served(request: pytest.FixtureRequest, serve: Callable[..., Served]) -> Iterator[Served]:
    """The model `sleep` of each server, found and left in the same configuration."""
    view = serve(request.getfixturevalue("server" if request.param == "rrl-serve" else "triton"), "sleep")
    found = view.config()
    yield view
    view.load(found)


@pytest.fixture
def make_target() -> Iterator[Callable[..., OpenInferenceTarget]]:
    """Makes targets of a served model, connected unless told otherwise."""
    with contextlib.ExitStack() as stack:

        def make(
            served: Served, metrics: bool = True, control: bool = True, **options: Any
        ) -> OpenInferenceTarget:
            settings = {"model": served.model, "metrics_url": served.metrics_url if metrics else None}
            target = OpenInferenceTarget(served.address, **settings | options)
            stack.callback(target.close)
            target.connect(control=control)
            return target

        yield make


class Load:
    """`rrl-load` while it runs, and after it what its clients saw."""

    def __init__(self, served: Served, rate_per_s: float, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "serving_adapter.load.command_line", "--target", served.address]
        command += ["--model", served.model, "--rate", str(rate_per_s), "--duration-s", "0"]
        self.process = subprocess.Popen(
            [*command, "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.is_sending = self.process.stdout.readline().startswith("sending")
        self.sent, self.failed = 0, {"it did not end": 1}

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        report = json.loads((self.folder / "load.json").read_text(encoding="utf-8"))
        self.sent, self.failed = report["sent"], report["failed"]


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., contextlib.AbstractContextManager[Load]]:
    """Requests at a steady mean rate for as long as the context lasts."""

    @contextlib.contextmanager
    def sending(served: Served, rate_per_s: float = 40) -> Iterator[Load]:
        load = Load(served, rate_per_s, tmp_path / f"load-{served.model}")
        try:
            assert load.is_sending
            yield load
            load.end()
        finally:
            load.process.kill()
            load.process.wait()
            if load.process.stdout is not None:
                load.process.stdout.close()

    return sending
