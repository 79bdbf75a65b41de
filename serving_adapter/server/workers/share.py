"""How several fronts share out what is counted for the whole cluster: workers, and the CPUs for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """The part of one front. Number k of anything is that of front k modulo the number of fronts."""

    front: int = 0  # its number, from 0
    fronts: int = 1

    def of(self, count: int) -> int:
        """How many of `count` are this front's; the parts of all fronts add up to `count`."""
        return len(range(self.front, count, self.fronts))

    def least(self, count: int) -> int:
        """How many the front with the smallest part has."""
        return count // self.fronts

    def by_node(self, cpus: list[int]) -> list[int]:
        """How many CPUs of each node are this front's, where the nodes have so many.

        All fronts that list the nodes in one order agree, without a word between them. Nodes added at the end
        change nothing of the others. Where one is left out, the part of others may change by one.
        """
        parts, before = [], 0
        for count in cpus:
            parts.append(self.of(before + count) - self.of(before))
            before += count
        return parts


ALL = Share()
"""Of the only front."""
