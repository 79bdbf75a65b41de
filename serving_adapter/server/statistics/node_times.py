"""Service times by node of a cluster, so that a batch goes where it is through first (RRL, section 5).

| symbol | meaning |
|---|---|
| t(b) | how long a batch of b rows takes, averaged over the nodes that such batches went to |
| s(n) | how many times as long it takes on node n |
| q(n) | the share of the workers of node n that hold a batch: its queue |

A batch is expected to take s(n) (1 + q(n)) t(b), since the busy workers of a node slow each other down. A
node that has run nothing yet has s(n) = 0, so each is tried. What is known of one that gets no batches fades
to s(n) = 0, so that a slow first batch, or a slow hour, does not shut a node out. No batch waits on a node:
what no idle worker can take stays in the queue of the front.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

NEWEST = 0.1  # the weight of a new service time beside all before
KEPT = 0.999  # of what is known of a node, while the others run one more batch


class OnNode(Protocol):
    """What is asked of a worker."""

    @property
    def node(self) -> str: ...

    @property
    def job(self) -> object | None: ...


class NodeTimes:
    """Learns s(n) and t(b) from every batch that is through."""

    def __init__(self) -> None:
        self.batches: Counter[str] = Counter()  # run so far, by node
        self.service_ns: Counter[str] = Counter()  # that they took
        self._typical_ns: dict[int, float] = {}  # t(b)
        self._slowness: dict[str, float] = {}  # s(n) when node n was through with its latest batch
        self._learned_at: dict[str, int] = {}  # how many batches had run then, on all nodes
        self._run = 0  # batches, on all nodes

    def learn(self, node: str, rows: int, service_ns: int) -> None:
        """A batch was through; `service_ns` is from its dispatch to its answer."""
        self._run += 1
        self.batches[node] += 1
        self.service_ns[node] += service_ns
        typical_ns = self._typical_ns.get(rows, float(service_ns))
        self._typical_ns[rows] = typical_ns + NEWEST * (service_ns - typical_ns)
        if typical_ns > 0:
            ratio = service_ns / typical_ns
            slowness = self._now(node) if node in self._slowness else ratio
            self._slowness[node] = slowness + NEWEST * (ratio - slowness)
            self._learned_at[node] = self._run

    def best(self, idle: Sequence[OnNode], workers: Iterable[OnNode]) -> int:
        """Which of the idle workers gets the next batch; of equals the last one, whose caches are warm."""
        there, busy = Counter[str](), Counter[str]()
        for worker in workers:
            there[worker.node] += 1
            busy[worker.node] += worker.job is not None

        def expected(index: int) -> float:
            node = idle[index].node
            return self._now(node) * (1 + busy[node] / there[node])

        return min(reversed(range(len(idle))), key=expected)

    def _now(self, node: str) -> float:
        """s(n) as it is believed by now."""
        if node not in self._slowness:
            return 0.0
        return self._slowness[node] * KEPT ** (self._run - self._learned_at[node])
