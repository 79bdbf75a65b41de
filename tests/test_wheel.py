"""A wheel, installed outside the checkout, has all commands, all data and the environments.

Its virtual environment borrows the libraries of the one that runs the tests, so that nothing is downloaded.
It borrows what the checkout has compiled of its simulator, too: `test_compiling` says how that comes to be.
Its user has packages `envs` and `baselines`, too: installed, and in the working folder.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from envs.simulated import SimulatedServing
from rrl.journal import read

CHECKOUT = Path(__file__).resolve().parent.parent
DOCKERFILE = CHECKOUT / "scripts" / "deployment" / "Dockerfile"
PACKAGES = ("rrl", "envs", "baselines", "serving_adapter")
MOVED = ("envs", "baselines")
INSTALLED = ("rrl", "rrl.envs", "rrl.baselines", "serving_adapter")
OF_A_USER = "whose = 'the user'\n"
DATA = ("*.py", "*.pyi", "*.proto", "py.typed", "*.css", "*.js", "*.npz")
KERNELS = "rrl/queueing/kernels.py"

STEPS_OF_OTHER_PROCESSES = """
import sys
from functools import partial

import gymnasium as gym

if __name__ == "__main__":
    makers = [partial(gym.make, "rrl.envs:rrl/SimulatedServing-v0") for _ in range(2)]
    for method in ("spawn", "forkserver"):
        environments = gym.vector.AsyncVectorEnv(makers, context=method)
        environments.reset(seed=1)
        _, rewards, _, _, _ = environments.step(environments.action_space.sample())
        environments.close()
        assert (rewards < 0).all(), rewards
        print(method)
"""

# Each command's file is run in a process of its own, which has the libraries that most take long to load.
HELP_OF_EACH = """
import os, runpy, sys
from pathlib import Path

import grpc, gymnasium, matplotlib.pyplot, numba, scipy.stats, torch, tyro

for command in sys.argv[1:]:
    if not os.fork():
        os.dup2(os.open(Path(command).name, os.O_WRONLY | os.O_CREAT), sys.stdout.fileno())
        sys.argv = [command, "--help"]
        try:
            runpy.run_path(command, run_name="__main__")
        except SystemExit as ended:
            sys.stdout.flush()
            os._exit(ended.code or 0)  # without a second or two for torch's end
        os._exit(1)
    assert os.wait()[1] == 0, command
"""

pytestmark = pytest.mark.packaging

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of a source distribution, in a copy, as a build leaves its own folders in the tree.

    The copy has what the image's Dockerfile copies.
    """
    copy = tmp_path_factory.mktemp("copy")
    for name in copied_by_the_image():
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, copy)
    folder = tmp_path_factory.mktemp("dist")
    make_sdist = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", make_sdist, folder], cwd=copy, check=True, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    pip("wheel", *offline, "--wheel-dir", str(folder), str(sdist))
    (built,) = folder.glob("*.whl")
    return built


def copied_by_the_image() -> list[str]:
    """What the Dockerfile copies from the checkout."""
    lines = DOCKERFILE.read_text(encoding="utf-8").splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    return [name for names in copies for name in names]


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
    packages_of_a_user(own)
    # What is installed already is the checkout's own, borrowed with the rest.
    outside = ["--no-deps", "--no-index", "--ignore-installed", str(wheel)]
    pip("--python", str(venv / "bin" / "python"), "install", *outside)
    borrow_compiled(own)
    return venv / "bin"


def borrow_compiled(own: Path) -> None:
    """numba's files of the checkout's kernels, which count for a module of the same time and size."""
    SimulatedServing().reset(seed=1)  # compiles them, where nobody has yet
    source, place = CHECKOUT / KERNELS, own / KERNELS
    for file in (source.parent / "__pycache__").glob("kernels.*.nb[ci]"):
        shutil.copy(file, place.parent / "__pycache__")
    os.utime(place, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))


def packages_of_a_user(folder: Path) -> None:
    """Packages with the names that ours have in the tree, and with nothing that ours have."""
    for name in MOVED:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(OF_A_USER, encoding="utf-8")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    packages_of_a_user(tmp_path)
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return without | {"XDG_STATE_HOME": str(tmp_path / "state")}


def place(file: Path) -> str:
    """Where the wheel has a file of the checkout."""
    relative = file.relative_to(CHECKOUT)
    is_moved = relative.parts[0] in MOVED
    return (Path("rrl") / relative if is_moved else relative).as_posix()


def test_everything_of_the_packages_is_in_it_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    pages = {f"rrl/{page.relative_to(CHECKOUT).as_posix()}" for page in (CHECKOUT / "docs").rglob("*.md")}
    assert held == pages | {
        place(path)
        for package in PACKAGES
        for pattern in DATA
        for path in (CHECKOUT / package).rglob(pattern)
    }


def names_of_modules(source: str) -> Iterator[str]:
    """Every module that a source imports, and every text that may be the name of one."""
    yield from modules_imported(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and re.fullmatch(r"[\w.]+[.:][\w/.:-]+", str(node.value)):
            yield str(node.value)


def test_nothing_in_it_means_a_package_of_the_user(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    for name in archive.namelist():
        if name.endswith((".py", ".pyi")):
            for module in names_of_modules(archive.read(name).decode()):
                assert re.split("[.:]", module)[0] not in MOVED, (name, module)


def test_what_it_says_of_itself_is_in_order(wheel: Path) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert wheel.name == f"rrl_tune-{project['version']}-py3-none-any.whl"
    archive = zipfile.ZipFile(wheel)
    top_level = archive.read(f"rrl_tune-{project['version']}.dist-info/top_level.txt").decode().split()
    assert top_level == ["rrl", "serving_adapter"]
    if find_spec("twine") is not None:  # `make setup` installs it.
        said = subprocess.run(
            [sys.executable, "-m", "twine", "check", "--strict", wheel], capture_output=True, text=True
        )
        assert said.returncode == 0, said.stdout


def test_it_asks_for_every_library_that_it_imports() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_users = [of for extra, of in project["optional-dependencies"].items() if extra not in ("dev", "docs")]
    asked = [*project["dependencies"], *(each for of in of_users for each in of)]
    declared = {plain(re.split(r"[^\w.-]", each)[0]) for each in asked}
    sources = [path for package in PACKAGES for path in (CHECKOUT / package).rglob("*.py")]
    imported = {
        name.split(".")[0] for path in sources for name in modules_imported(path.read_text(encoding="utf-8"))
    }
    for name in imported & packages_distributions().keys() - set(PACKAGES) - sys.stdlib_module_names:
        assert declared & set(map(plain, packages_distributions()[name])), name


def modules_imported(source: str) -> Iterator[str]:
    """Every module that a source imports, at its head or in a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def plain(distribution: str) -> str:
    """The name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_all_commands_answer(binaries: Path, environment: dict[str, str], tmp_path: Path) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    commands = [binaries / name for name in project["scripts"]]
    asking = [binaries / "python", "-c", HELP_OF_EACH, *commands]
    said = subprocess.run(asking, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert all(command.name in (tmp_path / command.name).read_text(encoding="utf-8") for command in commands)
    assert all(os.access(command, os.X_OK) for command in commands)


def test_a_command_tells_its_version(binaries: Path, environment: dict[str, str], tmp_path: Path) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    command = [str(binaries / "rrl-tune"), "--version"]
    said = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    assert said == f"rrl-tune {project['version']}\n"


def test_an_error_names_a_page_that_is_there(
    binaries: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [str(binaries / "rrl-compare"), "--agents", "alphago"]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    page = re.search(r"\(see (.*)\)", said.stderr)
    assert page is not None, said.stderr
    assert Path(page[1]).is_relative_to(binaries.parent)
    assert Path(page[1]).name == "agents.md"
    assert Path(page[1]).is_file()


def test_it_is_the_installed_code_that_runs(
    binaries: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    code = f"import {', '.join(INSTALLED)}; print({', '.join(f'{name}.__file__' for name in INSTALLED)})"
    command = [str(binaries / "python"), "-c", code]
    files = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True).split()
    assert all(Path(file).is_relative_to(binaries.parent) for file in files)


@pytest.mark.parametrize("safe_path", [(), ("-P",)], ids=["working folder", "installed"])
def test_a_users_packages_and_ours_are_there_together(
    safe_path: tuple[str, ...], binaries: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    code = (
        "import envs, baselines, rrl.envs, rrl.baselines as ours;"
        "print(envs.whose, baselines.whose, rrl.envs.SimulatedServing.__module__, ours.DEFAULT_AGENT)"
    )
    command = [str(binaries / "python"), *safe_path, "-c", code]
    said = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    assert said == "the user the user rrl.envs.simulated guided\n"


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
