"""Several processes share the tests by file, and one of them alone has the real Triton, or the real Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sharing import (
    LONGEST_FIRST,
    ONE_REAL_RAY,
    ONE_REAL_TRITON,
    WITH_SERVERS,
    WITH_SERVERS_AT_ONCE,
    next_share,
    share_of,
    turn_of,
)

CHECKOUT = Path(__file__).resolve().parent.parent

SHARES_BY_FILE = f"""
import sys
sys.path.insert(0, {str(CHECKOUT)!r})
from tests.support.sharing import SharedByFile
def pytest_xdist_make_scheduler(config, log):
    return SharedByFile(config, log)
"""
TEN_TESTS = """
import pytest
@pytest.mark.parametrize("number", range(10))
def test_passes(number): pass
"""
DIES = """
import os
def test_dies():
    os.abort()
"""


def test_a_file_is_one_share() -> None:
    assert share_of("tests/rrl/test_space.py::test_one[a-b]") == "tests/rrl/test_space.py"
    assert share_of("tests/rrl/test_space.py::test_two") == "tests/rrl/test_space.py"


@pytest.mark.parametrize("folder", [ONE_REAL_TRITON, ONE_REAL_RAY])
def test_a_real_server_of_others_is_one_share(folder: str) -> None:
    files = [path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / folder).glob("test_*.py")]
    assert files
    assert {share_of(f"{file}::test") for file in files} == {folder}


def test_what_takes_long_starts_first_and_is_there() -> None:
    assert all((CHECKOUT / start).exists() for start in LONGEST_FIRST)
    assert turn_of("tests/real_triton/test_target_contract.py::test") < turn_of(
        "tests/rrl/test_space.py::test"
    )


def test_beside_some_with_servers_a_process_has_tests_without() -> None:
    waiting = [
        "tests/rrl/command_line/test_a.py",
        "tests/real_ray",
        "tests/test_names.py",
        "tests/envs/test_b.py",
    ]
    assert next_share(waiting, WITH_SERVERS_AT_ONCE - 1) == waiting[0]
    assert next_share(waiting, WITH_SERVERS_AT_ONCE) == "tests/test_names.py"
    assert next_share(waiting[:2], WITH_SERVERS_AT_ONCE) == waiting[0]
    assert all((CHECKOUT / start).exists() for start in WITH_SERVERS)


def test_a_process_that_dies_fails_one_test_and_the_others_run_the_rest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SHARES_BY_FILE)
    for number in range(8):
        (tmp_path / f"test_{number}.py").write_text(TEN_TESTS)
    (tmp_path / "test_3.py").write_text(TEN_TESTS + DIES)
    (tmp_path / "test_7.py").write_text("def test_alone() -> None: pass")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n2",
            "--dist=loadfile",
            "--no-loadscope-reorder",
            "-pno:cacheprovider",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 failed, 71 passed" in run.stdout, run.stdout[-2000:]
    assert "crashed while running 'test_3.py::test_dies'" in run.stdout
