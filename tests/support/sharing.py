"""How several processes share the tests: each runs whole files, and one alone all that has the real Triton.

So it is with the real cluster of Ray. Only some at once run tests that start real servers: a server that gets
no processor beside the others does not answer in time, which is no fault of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from xdist.scheduler import LoadScopeScheduling

ONE_REAL_TRITON = "tests/real_triton"
ONE_REAL_RAY = "tests/real_ray"

# They take long, so they start first, and no process is left alone with one at the end.
LONGEST_FIRST = (
    ONE_REAL_TRITON,
    ONE_REAL_RAY,
    "tests/test_wheel.py",
    "tests/rrl/command_line",
    "tests/test_agent_contract.py",
    "tests/envs",
    "tests/baselines",
    "tests/serving_adapter",
)

# Most of their tests start servers, loads and other programs.
WITH_SERVERS = (
    ONE_REAL_TRITON,
    ONE_REAL_RAY,
    "tests/rrl/command_line",
    "tests/serving_adapter",
    "tests/scripts/robustness",
)
WITH_SERVERS_AT_ONCE = 2


class SharedByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        others = [work for other, work in self.assigned_work.items() if other is not node]
        with_servers = sum(
            any(has_servers(share) and not all(tests.values()) for share, tests in work.items())
            for work in others
        )
        self.workqueue.move_to_end(next_share(self.workqueue, with_servers), last=False)
        super()._assign_work_unit(node)
        if self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)  # a process starts a test only once it knows the next

    def remove_node(self, node: Any) -> str | None:
        """What the process ran when it died, which counts as run; the others get all that it had before it.

        As inherited, they would get what it had run already, too. A process that is given only that waits
        forever, and so would all.
        """
        died_in = next((test for test, is_done in self._tests_of(node) if not is_done), None)
        if died_in is not None:
            self.assigned_work[node][share_of(died_in)][died_in] = True
        work = self.assigned_work[node]
        self.assigned_work[node] = {share: tests for share, tests in work.items() if not all(tests.values())}
        super().remove_node(node)
        return died_in

    def _tests_of(self, node: Any) -> Iterator[tuple[str, bool]]:
        for tests in self.assigned_work[node].values():
            yield from tests.items()


def next_share(waiting: Iterable[str], with_servers: int) -> str:
    """Of the `waiting` the first that may run where `with_servers` other processes have servers.

    The first of all where none may: no process waits for another.
    """
    shares = list(waiting)
    allowed = (share for share in shares if with_servers < WITH_SERVERS_AT_ONCE or not has_servers(share))
    return next(allowed, shares[0])


def has_servers(share: str) -> bool:
    return share.startswith(WITH_SERVERS)


def share_of(nodeid: str) -> str:
    """What one process runs whole: a file, or all files of the real Triton, or of the real Ray."""
    file = nodeid.partition("::")[0]
    whole = (folder for folder in (ONE_REAL_TRITON, ONE_REAL_RAY) if file.startswith(folder))
    return next(whole, file)


def turn_of(nodeid: str) -> int:
    """Smaller for what starts earlier."""
    turns = (turn for turn, start in enumerate(LONGEST_FIRST) if nodeid.startswith(start))
    return next(turns, len(LONGEST_FIRST))
