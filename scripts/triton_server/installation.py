"""Installs Triton in a virtual environment of its own: the server, its Python backend, and NumPy below 2.

NumPy 2 makes the Python backend of this Triton answer empty outputs, without a word. The server's package is
installed without what it depends on, which is for its own Python interface and not for the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
DEFAULT = CHECKOUT / ".triton"
SERVER = "nvidia-pytriton==0.7.0"  # Triton 2.51
NUMPY = "numpy==1.26.4"
NEEDS = ("Triton", "x86-64 Linux and a package index")
MIN_GLIBC = (2, 35)
STAMP = "installed"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Installation:
    """Where an installed Triton lies."""

    folder: Path

    @property
    def packages(self) -> Path:
        return self.folder / "venv" / "lib" / f"python{PYTHON}" / "site-packages"

    @property
    def binary(self) -> Path:
        return self.packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"

    @property
    def backends(self) -> Path:
        return self.folder / "backends"

    def environment(self) -> dict[str, str]:
        """The server's environment; its Python models import our packages by PYTHONPATH."""
        libraries = (self.packages / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR"))
        modules = (CHECKOUT, sysconfig.get_path("purelib"))
        return dict(os.environ) | {
            "PATH": f"{self.folder / 'venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
            "PYTHONPATH": os.pathsep.join(map(str, modules)),
        }


def install(folder: Path = DEFAULT, say: Callable[[str], object] = print) -> Installation:
    """Installs what is not there yet; two processes that do so at once wait for each other.

    RuntimeError, in one sentence, where it cannot be installed.
    """
    folder = folder.absolute()
    installation = Installation(folder)
    if _is_complete(installation):
        return installation
    _check_machine()
    with one_at_a_time(folder, "Triton"):
        if not _is_complete(installation):
            say(f"installing Triton in {folder} (once; 145 MB, about half a minute)")
            _make_environment(folder / "venv")
            _make_backends(installation)
            (folder / STAMP).write_text(_pins(folder), encoding="utf-8")
    return installation


def _pins(folder: Path) -> str:
    """What makes an installation another one; virtual environments cannot be moved."""
    return "\n".join((SERVER, NUMPY, f"python {PYTHON}", str(folder), ""))


def _is_complete(installation: Installation) -> bool:
    try:
        stamp = (installation.folder / STAMP).read_text(encoding="utf-8")
    except OSError:
        return False
    return stamp == _pins(installation.folder) and installation.binary.is_file()


def _check_machine() -> None:
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) < MIN_GLIBC:
        least = ".".join(map(str, MIN_GLIBC))
        raise RuntimeError(
            f"Triton needs Linux with glibc {least} or later, and this is {name or platform.system()} "
            f"{version}; use a newer system, such as Debian 12 or Ubuntu 22.04"
        )
    library = sysconfig.get_config_var("INSTSONAME")
    if not _can_load(f"{sysconfig.get_config_var('LIBDIR')}/{library}") and not _can_load(library):
        raise RuntimeError(
            f"Triton's Python backend needs Python's shared library, and {library} is not there; install it "
            f"(Debian's libpython{PYTHON}), or use a Python built with --enable-shared"
        )


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def one_at_a_time(folder: Path, what: str) -> Iterator[None]:
    """Makes the folder, and holds off other processes that would install there meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise RuntimeError(
            f"cannot install {what} in {folder}: {error.strerror}; name another folder"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install_apart(
    folder: Path, what: str, pins: Sequence[str], size: str, say: Callable[[str], object]
) -> Path:
    """The commands' folder of a virtual environment with these packages, made if it is not there.

    Two processes that do so at once wait for each other. RuntimeError, in one sentence, where it cannot be
    installed.
    """
    folder = folder.absolute()
    stamp, wanted = folder / STAMP, "\n".join((*pins, sys.version, str(folder)))
    with one_at_a_time(folder, what):
        if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
            say(f"installing {what} in {folder} (once; {size}, a minute or a few)")
            venv.create(folder / "venv", clear=True, symlinks=True, with_pip=False)
            pip_install(folder / "venv" / "bin" / "python", (what, "a package index"), *pins)
            stamp.write_text(wanted, encoding="utf-8")
    return folder / "venv" / "bin"


def _make_environment(folder: Path) -> None:
    venv.create(folder, clear=True, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    pip_install(python, NEEDS, "--no-deps", SERVER)
    pip_install(python, NEEDS, NUMPY)


def pip_install(python: Path, needs: tuple[str, str], *arguments: str) -> None:
    """Installs for another interpreter; RuntimeError, in one sentence, where that fails.

    `needs` says for what, and what that needs.
    """
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *arguments]
    done = subprocess.run(
        [*command, "--disable-pip-version-check"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.splitlines() or ["it said nothing"]
        why = ([line for line in lines if line.startswith("ERROR: ")] or lines)[-1].removeprefix("ERROR: ")
        raise RuntimeError(
            f"pip cannot install {arguments[-1]} for {needs[0]} ({why.rstrip('. ')}); it needs {needs[1]}"
        )


def _make_backends(installation: Installation) -> None:
    """A folder with the Python backend, and in it the process of a model for this version of Python."""
    server = installation.packages / "pytriton" / "tritonserver"
    stub = server / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    if not stub.is_file():
        there = sorted(path.name for path in stub.parents[1].glob("3.*"))
        raise RuntimeError(f"{SERVER} has no backend for Python {PYTHON}; use Python {' or '.join(there)}")
    shutil.rmtree(installation.backends, ignore_errors=True)
    shutil.copytree(server / "backends" / "python", installation.backends / "python")
    shutil.copy2(stub, installation.backends / "python")
    (installation.backends / "python" / stub.name).chmod(0o755)
