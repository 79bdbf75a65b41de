"""Several processes share the tests by file, and one of them alone has the real Triton."""

from __future__ import annotations

from pathlib import Path

from tests.support.sharing import LONGEST_FIRST, ONE_REAL_TRITON, share_of, turn_of

CHECKOUT = Path(__file__).resolve().parent.parent


def test_a_file_is_one_share() -> None:
    assert share_of("tests/rrl/test_space.py::test_one[a-b]") == "tests/rrl/test_space.py"
    assert share_of("tests/rrl/test_space.py::test_two") == "tests/rrl/test_space.py"


def test_the_real_triton_is_one_share() -> None:
    files = [path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / ONE_REAL_TRITON).glob("test_*.py")]
    assert len(files) > 1
    assert {share_of(f"{file}::test") for file in files} == {ONE_REAL_TRITON}


def test_what_takes_long_starts_first_and_is_there() -> None:
    assert all((CHECKOUT / start).exists() for start in LONGEST_FIRST)
    assert turn_of("tests/real_triton/test_target_contract.py::test") < turn_of(
        "tests/rrl/test_space.py::test"
    )
