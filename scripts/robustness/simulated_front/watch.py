"""What must hold, noted while a simulation runs: the first thing that does not is kept, with the last events.

What a change has told is in force from then on. So each batch that reaches a worker is compared with the
configurations that may be in force when it was sent: the last one told, and those on their way.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

from scripts.robustness.simulated_front.checked_models import DEPLOYED
from scripts.robustness.simulated_front.clients import SimulatedClient
from scripts.robustness.simulated_front.fates import WatchedWorker
from scripts.robustness.simulated_front.leases import LeaseLog
from scripts.robustness.simulated_front.virtual_time import SimulatedLoop
from serving_adapter.server.configuration import Knobs
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.workers.messages import RunBatch

STEPS_TO_REACH = 3  # of the loop, from the moment at which the front sends until a worker is seen to have it
EVENTS_KEPT = 60
MODES_WITH_LANES = ("parity", "approximate-backup")


@dataclass(frozen=True)
class MayBeInForce:
    """A configuration that a server was told to have, and has unless another one came after it."""

    knobs: Knobs
    resilience: ResilienceSettings

    @property
    def deployed_instances(self) -> int:
        """Workers of the deployed model that may run its batches."""
        if self.resilience.mode in MODES_WITH_LANES:
            return self.knobs.instances
        return self.knobs.instances + self.resilience.redundant(self.knobs.instances)

    @property
    def lends_workers(self) -> bool:
        """Whether idle workers of the deployed model may run parity queries."""
        return self.resilience.mode == "parity" and self.resilience.overflow == 1


@dataclass
class _Change:
    began: int
    wanted: MayBeInForce
    given_up: bool = False


@dataclass
class FrontWatch:
    """Hears of everything and says what is wrong."""

    loop: SimulatedLoop
    clients: list[SimulatedClient]
    has_parallel_branches: bool
    found: MayBeInForce
    kills: bool
    sentence: str = ""
    events: deque[tuple[float, str, tuple[object, ...]]] = field(
        default_factory=lambda: deque(maxlen=EVENTS_KEPT)
    )

    def __post_init__(self) -> None:
        self.leases = LeaseLog(self.loop, self.note)
        self._numbers = itertools.count()
        self._changes: dict[int, _Change] = {}
        self._told = self.found
        self._told_at_s = 0.0
        self._may_be: list[tuple[int, list[MayBeInForce]]] = [(0, [self.found])]
        self._seen: set[frozenset[int]] = set()
        self._arrived_s: dict[int, float] = {}
        self._last_end_step = -1  # at which a worker ended
        self.lent = 0  # parity queries that workers of the deployed model ran

    # --- what is told ----------------------------------------------------------------------------

    def note(self, kind: str, *facts: object) -> None:
        if not self.sentence:
            self.events.append((self.loop.time(), kind, facts))

    def broken(self, sentence: str) -> None:
        """Something did not hold; the first sentence stays."""
        self.note("BROKEN", sentence)
        self.sentence = self.sentence or sentence
        self.loop.stop_here()

    @property
    def in_force(self) -> list[MayBeInForce]:
        """The configurations of which one is in force."""
        return self._may_be[-1][1]

    def change_began(self, knobs: Knobs, resilience: ResilienceSettings) -> int:
        key = next(self._numbers)
        self._changes[key] = _Change(key, MayBeInForce(knobs, resilience))
        self.note("change", key, knobs, resilience.mode)
        self._remember()
        return key

    def change_told(self, key: int) -> None:
        """Changes happen one after the other, so those that began before are over."""
        change = self._changes.pop(key)
        self._changes = {k: c for k, c in self._changes.items() if not (c.given_up and c.began < key)}
        self._told, self._told_at_s = change.wanted, self.loop.time()
        self.note("told", key)
        self._remember()

    def change_refused(self, key: int, why: str) -> None:
        del self._changes[key]
        self.note("refused", key, why)
        self._remember()

    def change_given_up(self, key: int) -> None:
        self._changes[key].given_up = True
        self.note("change given up", key)

    def _remember(self) -> None:
        may_be = [self._told, *(change.wanted for change in self._changes.values())]
        self._may_be.append((self.loop.steps, may_be))

    def _may_have_been(self) -> list[MayBeInForce]:
        """Those that may have been in force when what is seen now was sent."""
        may = []
        for step, in_force in reversed(self._may_be):
            may += in_force
            if step < self.loop.steps - STEPS_TO_REACH:
                break
        return may

    # --- what processes see ----------------------------------------------------------------------

    def batch_reached(self, worker: WatchedWorker, order: RunBatch, numbers: list[int]) -> None:
        self.note("runs", worker.pid, worker.holds_of, numbers)
        clients = [self.clients[number] for number in numbers]
        somebody_waits = any(not client.gave_up_step for client in clients)
        for client in clients:
            client.reached += 1
            gave_up = client.gave_up_step
            late = gave_up and self.loop.steps > gave_up + STEPS_TO_REACH
            # A batch sent to a worker that had just been killed was never seen, and runs again whole.
            runs_again = somebody_waits and self._last_end_step > client.sent_step
            if client.reached == 1 and late and not runs_again:
                self.broken(f"request {client.number} ran for the first time after its client had given up")
        may = self._may_have_been()
        if worker.holds_of != DEPLOYED:
            if worker.zygote.references[0] == DEPLOYED:
                self._check_lent(may)
            return
        self._check_batch(order.inputs[0].shape[0], frozenset(numbers), may)
        if not any(order.intra_op_threads == one.knobs.intra_op_threads for one in may):
            self.broken(f"a batch ran with {order.intra_op_threads} intra-op threads, which nobody was told")
        inter = worker.threads.inter_op_threads
        if self.has_parallel_branches and not any(inter == one.knobs.inter_op_threads for one in may):
            self.broken(f"a batch ran with {inter} inter-op threads, which nobody was told")
        if worker.zygote.references[0] == DEPLOYED:
            busy = worker.zygote.busy_workers
            most = max(one.deployed_instances for one in may)
            if busy > most:
                self.broken(f"{busy} batches ran at once, but at most {most} instances were told")

    def _check_lent(self, may: list[MayBeInForce]) -> None:
        self.lent += 1
        if not any(one.lends_workers for one in may):
            self.broken("a worker of the deployed model ran a parity query, as nobody was told it may")

    def _check_batch(self, rows: int, numbers: frozenset[int], may: list[MayBeInForce]) -> None:
        """A batch that runs again, whole or in part, keeps the size that it was formed with."""
        again = any(numbers <= seen for seen in self._seen)
        self._seen.add(numbers)
        most = max(one.knobs.max_batch_size for one in may)
        if len(numbers) == 1 or rows <= most or again:
            return
        # One that was sent to a worker which had just been killed was never seen before.
        formed_before = all(self.clients[n].sent_at_s <= self._told_at_s for n in numbers)
        if not (self.kills and formed_before):
            self.broken(f"a batch of {rows} rows was formed, but at most {most} were told")

    def batch_left(self, worker: WatchedWorker, numbers: list[int]) -> None:
        self.note("has run", worker.pid, numbers)

    def worker_ended(self, worker: WatchedWorker, held: list[int]) -> None:
        self.note("worker ends", worker.pid, held)
        self._last_end_step = self.loop.steps
        for number in held:
            self.clients[number].losses += 1
