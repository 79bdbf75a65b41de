"""Which workers go where they are too many: on a cluster as their placement says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, TypeVar

from serving_adapter.server.workers.parallelism import ANYWHERE, PACK, NodePlacement


class PlacedWorker(Protocol):
    """What is asked of a worker."""

    node: str  # empty at home

    @property
    def job(self) -> object | None: ...


W = TypeVar("W", bound=PlacedWorker)


def surplus_of(workers: Sequence[W], surplus: int, placement: NodePlacement = ANYWHERE) -> list[W]:
    """So many of the workers: of the fullest nodes first, or of the emptiest where they are to be packed.

    On a node those go first that hold a batch.
    """
    by_node: defaultdict[str, list[W]] = defaultdict(list)
    for worker in sorted(workers, key=lambda w: w.job is None):
        by_node[worker.node].append(worker)
    choose = min if placement.strategy == PACK else max
    return [choose(filter(None, by_node.values()), key=len).pop(0) for _ in range(surplus)]
