"""Installs everything into one virtual environment: `make setup` calls `python3 -m scripts.setup .venv`.

PyTorch is chosen by the machine. PyPI's build for Linux brings gigabytes of CUDA, so a Linux machine without
an NVIDIA GPU takes PyTorch alone from PyTorch's index of CPU builds. Where that index cannot be reached, pip
takes PyTorch from the index it is configured with, which may be a mirror. Everything else comes from the
user's index in any case, by `uv` where that is installed and finds its index, else by pip.

This module runs before anything is installed, so it imports the standard library only.
"""

from __future__ import annotations

import http.client
import os
import platform
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
CONSTRAINTS = "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PYPI = "https://pypi.org/simple"
ANSWER_TIMEOUT_S = 5.0
OLDEST_PYTHON = (3, 11)
WEIGHTS_EXTRA = "models"
# Installed without their dependencies, which they do not need to run here.
MORE_MODELS = ("pytorchcv==0.0.74",)
PIP_CHOICES_OF_AN_INDEX = (".index-url=", ":env:.extra-index-url=", ".no-index=")
UV_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")

Command = tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """What the choice depends on."""

    system: str  # as `platform.system()`: Linux, Darwin or Windows
    has_nvidia_gpu: bool
    cpu_index_answers: bool
    uv: str | None  # the path of a `uv` that finds its index


@dataclass(frozen=True)
class Wanted:
    """What is to be installed, as pyproject.toml and constraints.txt say."""

    torch: str  # a requirement with its version
    extras: tuple[str, ...]
    without_dependencies: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Commands in their order, and the reason for the choice of PyTorch."""

    make_environment: Command
    torch: Command
    torch_elsewhere: Command | None  # where the CPU index breaks off after all
    rest: tuple[Command, ...]
    reason: str


def plan(facts: Facts, wanted: Wanted, venv: Path) -> Plan:
    python = str(venv / "bin" / "python")
    pip: Command = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    install: Command = pip
    make: Command = (sys.executable, "-m", "venv", str(venv))
    if facts.uv:
        install = (facts.uv, "pip", "install", "--quiet", "--python", python)
        make = (facts.uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(venv))
    by_pip: Command = (*pip, "--constraint", CONSTRAINTS, wanted.torch)
    torch: Command
    elsewhere: Command | None = None
    if facts.system != "Linux":
        torch, reason = (*install, wanted.torch), f"the package index has the builds for {facts.system}"
    elif facts.has_nvidia_gpu:
        torch, reason = (*install, wanted.torch), "with CUDA, as there is an NVIDIA GPU"
    elif facts.cpu_index_answers:
        torch = (*install, "--no-deps", "--index-url", CPU_INDEX, wanted.torch)
        elsewhere = by_pip
        reason = f"the CPU build from {CPU_INDEX}, as there is no NVIDIA GPU"
    else:
        torch = by_pip
        reason = (
            f"from pip's own index, as {CPU_INDEX} does not answer; without a CPU build there it is large"
        )
    project = f".[{','.join(wanted.extras)}]"
    rest = (
        (*install, "--constraint", CONSTRAINTS, "--editable", project),
        (*install, "--no-deps", *wanted.without_dependencies),
    )
    return Plan(make, torch, elsewhere, rest, reason)


def wanted(pyproject: Mapping[str, Mapping[str, object]], constraints: str) -> Wanted:
    extras = pyproject["project"]["optional-dependencies"]
    assert isinstance(extras, dict)
    return Wanted(
        torch=next(line.strip() for line in constraints.splitlines() if line.startswith("torch==")),
        extras=tuple(name for name in extras if name != WEIGHTS_EXTRA),
        without_dependencies=(*extras[WEIGHTS_EXTRA], *MORE_MODELS),
    )


def uv_index(environment: Mapping[str, str], pip_configuration: str) -> str | None:
    """Where `uv` looks for packages; None where pip has been told of an index that `uv` does not know.

    `pip_configuration` is what `pip config list` prints, which has the variables of the environment, too.
    """
    for variable in UV_INDEX_VARIABLES:
        if environment.get(variable):
            return environment[variable]
    chosen = any(name in pip_configuration for name in PIP_CHOICES_OF_AN_INDEX)
    return None if chosen else PYPI


# --- What the machine says -------------------------------------------------------------------------------


def read_facts(environment: Mapping[str, str]) -> Facts:
    system = platform.system()
    has_gpu = has_nvidia_gpu()
    asks_cpu_index = system == "Linux" and not has_gpu and not environment.get("PIP_NO_INDEX")
    return Facts(
        system,
        has_gpu,
        cpu_index_answers=asks_cpu_index and answers(f"{CPU_INDEX}/torch/"),
        uv=_usable_uv(environment),
    )


def has_nvidia_gpu(devices: Path = Path("/dev"), lister: str = "nvidia-smi") -> bool:
    """A card's device file is there, or (under WSL, which has none) NVIDIA's own lister finds a card."""
    if any(devices.glob("nvidia[0-9]*")):
        return True
    found = shutil.which(lister)
    if found is None:
        return False
    listed = subprocess.run([found, "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and listed.stdout.startswith("GPU ")


def answers(url: str, timeout_s: float = ANSWER_TIMEOUT_S) -> bool:
    """Whether a page is there for us, through the proxy that the environment names."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=timeout_s):
            return True
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _usable_uv(environment: Mapping[str, str]) -> str | None:
    uv = shutil.which("uv")
    if uv is None:
        return None
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    index = uv_index(environment, listed.stdout)
    return uv if index is not None and answers(index) else None


# --- The command -----------------------------------------------------------------------------------------


def main() -> None:
    if sys.version_info < OLDEST_PYTHON:
        raise SystemExit("rrl-tune needs Python 3.11 or newer: set PYTHON=/path/to/python3.11")
    import tomllib  # new in Python 3.11

    venv = Path(sys.argv[1] if len(sys.argv) > 1 else ".venv")
    os.chdir(CHECKOUT)
    with open("pyproject.toml", "rb") as file:
        what = wanted(tomllib.load(file), Path(CONSTRAINTS).read_text(encoding="utf-8"))
    facts = read_facts(os.environ)
    chosen = plan(facts, what, venv)
    print(f"set-up by {'uv' if facts.uv else 'pip'}; {what.torch}: {chosen.reason}", flush=True)
    if not (venv / "bin" / "python").exists():
        _run(chosen.make_environment)
    if _status(chosen.torch) != 0:
        if chosen.torch_elsewhere is None:
            raise SystemExit(f"PyTorch could not be installed by: {' '.join(chosen.torch)}")
        print(f"{CPU_INDEX} broke off; PyTorch from pip's own index", flush=True)
        _run(chosen.torch_elsewhere)
    for command in chosen.rest:
        _run(command)


def _status(command: Command) -> int:
    return subprocess.run(command, check=False).returncode


def _run(command: Command) -> None:
    if _status(command) != 0:
        raise SystemExit(
            f"the set-up stopped, as this failed: {' '.join(command)}; to begin anew, run make clean first"
        )


if __name__ == "__main__":
    main()
