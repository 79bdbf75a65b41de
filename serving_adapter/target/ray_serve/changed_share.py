"""How much of a deployment nodes took with them, and came back: it says nothing of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from serving_adapter.target.ray_serve.deployed import Deployed


class ChangedShare:
    """The shares of the replicas that nodes took with them, and of those that came for them, summed.

    A replica that ends by itself is none: its configuration may be to blame.
    """

    def __init__(self) -> None:
        self._sum = 0.0
        self._knobs: Mapping[str, int] = {}
        self._nodes: Mapping[str, str] = {}  # by replica
        self._missing = 0  # replicas that nodes took and none has come for yet

    def until(self, deployed: Deployed, nodes_alive: Callable[[], Collection[str]]) -> float:
        """The sum, with what has changed since it was last asked for. A change of knobs is none.

        `nodes_alive()` is asked where replicas are gone; empty: nobody tells. Nor is a replica counted whose
        node nobody told.
        """
        knobs, nodes = deployed.values(), deployed.replicas()
        if knobs == self._knobs:
            changed = self._taken(nodes, nodes_alive) + self._returned(nodes)
            self._sum += changed / max(1, knobs.get("instances", 1))
        else:
            self._missing = 0
        self._knobs, self._nodes = knobs, nodes
        return self._sum

    def _taken(self, nodes: Mapping[str, str], nodes_alive: Callable[[], Collection[str]]) -> int:
        gone = self._nodes.keys() - nodes.keys()
        alive = nodes_alive() if gone else ()
        told = [node for replica in gone if (node := self._nodes[replica])]
        taken = sum(node not in alive for node in told) if alive else 0
        self._missing += taken
        return taken

    def _returned(self, nodes: Mapping[str, str]) -> int:
        returned = min(self._missing, len(nodes.keys() - self._nodes.keys()))
        self._missing -= returned
        return returned
