"""A CPU of its node is reserved with Ray for each worker, so that Ray gives it to nobody else.

A unit has one on each of its nodes.

No worker waits for it. While new workers replace the old, there may be more of them than CPUs, and where
tasks of others have all CPUs, the reservation comes when one ends.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

log = logging.getLogger(__name__)

ONE_CPU = {"CPU": 1.0}
NODE_ID_LABEL = "ray.io/node-id"


class Reservations:
    """One CPU a worker and node, by the worker's number.

    Ray is called in a thread, one call after the other.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "reservations")
        self._groups: dict[int, Future[Any]] = {}

    def reserve(self, number: int, node_ids: Sequence[str]) -> None:
        self._groups[number] = self._thread.submit(_reserved, node_ids)

    def free(self, number: int) -> None:
        if (group := self._groups.pop(number, None)) is not None:
            self._thread.submit(_free, group)


def _reserved(node_ids: Sequence[str]) -> Any:
    from ray.util.placement_group import placement_group

    nodes = [{NODE_ID_LABEL: node_id} for node_id in node_ids]
    return placement_group([ONE_CPU] * len(nodes), bundle_label_selector=nodes)


def _free(group: Future[Any]) -> None:
    from ray.util.placement_group import remove_placement_group

    try:
        remove_placement_group(group.result())
    except Exception as error:  # whatever Ray raises where its head is gone: then nothing is reserved either
        log.info("a CPU was not given back: %s", error)
