"""A wheel, installed outside the checkout, has all commands, all data and the environments.

Its virtual environment borrows the libraries of the one that runs the tests, so that nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rrl.journal import read

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGES = ("rrl", "envs", "baselines", "serving_adapter")
DATA = ("*.py", "*.pyi", "*.proto", "py.typed", "*.css", "*.js", "*.npz")
HELP_TIMEOUT_S = 120.0

STEPS_OF_OTHER_PROCESSES = """
import sys
from functools import partial

import gymnasium as gym

if __name__ == "__main__":
    makers = [partial(gym.make, "envs:rrl/SimulatedServing-v0") for _ in range(2)]
    for method in ("spawn", "forkserver"):
        environments = gym.vector.AsyncVectorEnv(makers, context=method)
        environments.reset(seed=1)
        _, rewards, _, _, _ = environments.step(environments.action_space.sample())
        environments.close()
        assert (rewards < 0).all(), rewards
        print(method)
"""

pytestmark = pytest.mark.packaging

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of a copy, as a build leaves its own folders in the tree."""
    copy = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        shutil.copytree(CHECKOUT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, copy)
    folder = tmp_path_factory.mktemp("dist")
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    pip("wheel", *offline, "--wheel-dir", str(folder), str(copy))
    (built,) = folder.glob("*.whl")
    return built


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands of the installed wheel are."""
    venv = tmp_path_factory.mktemp("outside") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (own,) = venv.glob("lib/*/site-packages")
    (own / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    # What is installed already is the checkout's own, borrowed with the rest.
    outside = ["--no-deps", "--no-index", "--ignore-installed", str(wheel)]
    pip("--python", str(venv / "bin" / "python"), "install", *outside)
    return venv / "bin"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return without | {"XDG_STATE_HOME": str(tmp_path / "state")}


def test_everything_of_the_packages_is_in_it(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(PACKAGES)}
    expected = {
        path.relative_to(CHECKOUT).as_posix()
        for package in PACKAGES
        for pattern in DATA
        for path in (CHECKOUT / package).rglob(pattern)
    }
    assert {name for name in held if not name.startswith("rrl_tune-")} == expected


def test_all_commands_answer(binaries: Path, environment: dict[str, str], tmp_path: Path) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    started = {
        name: subprocess.Popen(
            [binaries / name, "--help"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )
        for name in project["scripts"]
    }
    said = {name: process.communicate(timeout=HELP_TIMEOUT_S)[0] for name, process in started.items()}
    assert {name: process.returncode for name, process in started.items()} == dict.fromkeys(started, 0)
    assert all(name in text for name, text in said.items())


def test_it_is_the_installed_code_that_runs(
    binaries: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    code = f"import {', '.join(PACKAGES)}; print({', '.join(f'{name}.__file__' for name in PACKAGES)})"
    command = [str(binaries / "python"), "-c", code]
    files = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True).split()
    assert all(Path(file).is_relative_to(binaries.parent) for file in files)


def test_environments_are_made_in_other_processes(
    binaries: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "steps.py"
    script.write_text(STEPS_OF_OTHER_PROCESSES, encoding="utf-8")
    command = [binaries / "python", script]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert said.stdout.split() == ["spawn", "forkserver"], said.stderr


def test_the_embedded_server_is_tuned(binaries: Path, environment: dict[str, str], tmp_path: Path) -> None:
    short = ["--intervals", "1", "--interval-s", "2", "--settle-s", "0.5", "--validation", "1"]
    command = [str(binaries / "rrl-tune"), *short, "--out", "run"]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    header, records = read(tmp_path / "run")
    assert header.target == "embedded"
    assert header.model == "minilm"
    assert any(record.kind == "tune" for record in records)
