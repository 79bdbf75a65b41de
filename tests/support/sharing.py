"""How several processes share the tests: one of them runs all of a file, and all that has the real Triton."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

ONE_REAL_TRITON = "tests/real_triton"

# They take long, so they start first, and no process is left alone with one at the end.
LONGEST_FIRST = (
    ONE_REAL_TRITON,
    "tests/test_wheel.py",
    "tests/rrl/command_line",
    "tests/test_agent_contract.py",
    "tests/envs",
    "tests/baselines",
    "tests/serving_adapter",
)


class SharedByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)


def share_of(nodeid: str) -> str:
    """What one process runs whole: a file, or all files of the real Triton."""
    file = nodeid.partition("::")[0]
    return ONE_REAL_TRITON if file.startswith(ONE_REAL_TRITON) else file


def turn_of(nodeid: str) -> int:
    """Smaller for what starts earlier."""
    turns = (turn for turn, start in enumerate(LONGEST_FIRST) if nodeid.startswith(start))
    return next(turns, len(LONGEST_FIRST))
