"""An injected neighbour: somebody else's queries run on a worker's machine now and then (ParM, Fig. 13).

| symbol | meaning |
|---|---|
| λ | queries a second, Poisson; one at a time is answered, the others wait |
| q | how long each takes, as if it had the machine to itself |
| w | how long a batch takes without the neighbour |

While a query is being answered, the batch gets half of the machine. So it ends when its whole time alone
and half of its time beside queries add up to w. Batches do not slow the queries: these have a length of
their own, as a light tenant is not the one that is measured.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NS_PER_S, NS_PER_MS = 1e9, 1e6
SHARE = 0.5  # of the machine, beside a query


class Tenant(NamedTuple):
    """The queries of one neighbour, which came at a moment of the monotonic clock."""

    queries_per_s: float
    query_ms: float
    seed: int = 0
    since_ns: int = 0


class TenantQueries:
    """When a tenant's queries are answered; ask for moments in order."""

    def __init__(self, tenant: Tenant) -> None:
        self._rng = np.random.default_rng(tenant.seed)
        self._gap_ns, self._query_ns = NS_PER_S / tenant.queries_per_s, NS_PER_MS * tenant.query_ms
        self._asked_ns = self._begins_ns = self._ends_ns = float(tenant.since_ns)
        self._next()

    def _next(self) -> None:
        """Goes on to the next query."""
        self._asked_ns += self._rng.exponential(self._gap_ns)
        self._begins_ns = max(self._asked_ns, self._ends_ns)
        self._ends_ns = self._begins_ns + self._query_ns

    def delay_ns(self, began_ns: int, work_ns: int) -> int:
        """How much longer a batch takes beside the queries, that began then and took so long without them."""
        left_ns, now_ns = float(work_ns), float(began_ns)
        while left_ns > 0:
            while self._ends_ns <= now_ns:
                self._next()
            alone_ns = min(left_ns, max(0.0, self._begins_ns - now_ns))
            left_ns, now_ns = left_ns - alone_ns, now_ns + alone_ns
            if left_ns > 0:
                beside_ns = min(left_ns, SHARE * (self._ends_ns - now_ns))
                left_ns, now_ns = left_ns - beside_ns, now_ns + beside_ns / SHARE
        return round(now_ns - began_ns) - work_ns
