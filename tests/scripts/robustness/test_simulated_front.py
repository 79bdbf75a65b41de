"""The simulated front: it is the same for a seed, finds what is broken on purpose, and finds nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pytest

from scripts.robustness.simulated_front.simulation import simulate
from serving_adapter.lease import MAX_DURATION_MS
from serving_adapter.server import answers, dispatcher
from serving_adapter.server.dispatcher import Dispatcher
from serving_adapter.server.protocol.lease import ModelLease
from serving_adapter.server.protocol.loads import ModelLoads
from serving_adapter.server.queue.batching import Batching
from serving_adapter.server.queue.in_flight import InFlight
from serving_adapter.server.redundancy.parity_mode import Parity
from serving_adapter.server.requests import OutputTensor, Request, Specs
from serving_adapter.server.statistics.model_statistics import ModelStatistics
from serving_adapter.server.workers.handles import WorkerHandle
from serving_adapter.server.workers.pool import WorkerPool
from tests.support import CHECKOUT

SEEDS = range(40)
MOST_SEEDS = 60  # within which each of the breaks below must show
TELLING = (45, 20)  # the first seeds of the two that show late; the others show in the first few
DIGEST = (
    "from scripts.robustness.simulated_front.simulation import simulate; "
    "print(*(line for seed in (3, 8, 14) for line in simulate(seed).events), sep='\\n')"
)

Patch = Callable[[pytest.MonkeyPatch], None]


def events(hash_seed: str) -> str:
    """The last events of some seeds, as another process has them."""
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(
        [sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_a_seed_has_the_same_events_in_every_process() -> None:
    first = events("1")
    assert len(first.splitlines()) > 100
    assert events("2") == first


def test_everything_holds_in_the_first_seeds() -> None:
    assert not [result for seed in SEEDS if (result := simulate(seed)).sentence]


def test_some_seeds_lend_workers_of_the_deployed_model() -> None:
    assert any(simulate(seed).lent for seed in range(100, 400))


def rows_of_the_neighbour(patch: pytest.MonkeyPatch) -> None:
    """Every request but the first of a batch gets the rows before its own."""
    cut = answers.cut

    def shifted(
        outputs: Mapping[str, np.ndarray], specs: Specs, first_row: int, rows: int, wanted: Collection[str]
    ) -> list[OutputTensor]:
        return cut(outputs, specs, max(0, first_row - 1), rows, wanted)

    patch.setattr(answers, "cut", shifted)


def batches_of_any_size(patch: pytest.MonkeyPatch) -> None:
    """The batches are formed as if their size were not limited."""
    next_batch = dispatcher.next_batch

    def unlimited(queue: Any, batching: Batching, now_ns: int) -> Any:
        return next_batch(queue, Batching(1000, batching.max_queue_delay_ns), now_ns)

    patch.setattr(dispatcher, "next_batch", unlimited)


def nothing_in_force(patch: pytest.MonkeyPatch) -> None:
    """A change is told, but the dispatcher goes on as before."""
    put_in_force = Dispatcher.put_in_force

    def only_once(self: Dispatcher, knobs: Any, mode: Any) -> None:
        before = vars(self).get("_intra_op_threads")
        put_in_force(self, knobs, mode)
        if before is not None:
            self._intra_op_threads = before

    patch.setattr(Dispatcher, "put_in_force", only_once)


def dead_workers_stay_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerPool, "_start_repair", lambda self: None)


def failures_uncounted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelStatistics, "record_failure", lambda *_: None)


def the_given_up_run(patch: pytest.MonkeyPatch) -> None:
    """A request whose client went away while it waited stays in the queue."""

    def leave(self: InFlight, request: Request) -> None:
        request.settled = True
        if request.batch is not None:
            request.batch = None
            self.executing -= 1

    patch.setattr(InFlight, "leave", leave)


def lost_batches_stay_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InFlight, "run_again", lambda self, batch: None)


def answers_of_any_batch(patch: pytest.MonkeyPatch) -> None:
    """What a worker says counts for the batch that it holds, whichever it answers."""
    run = WorkerPool.run

    def unnumbered(self: WorkerPool, worker: WorkerHandle, *arguments: Any) -> None:
        worker.number = -1
        run(self, worker, *arguments)

    patch.setattr(WorkerPool, "run", unnumbered)


def leases_for_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelLease, "take", lambda *_: None)


def leases_for_ever(patch: pytest.MonkeyPatch) -> None:
    take = ModelLease.take

    def for_an_hour(self: ModelLease, owner: str, duration_ms: int) -> None:
        take(self, owner, MAX_DURATION_MS)

    patch.setattr(ModelLease, "take", for_an_hour)


def leases_that_end_before_their_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelLease, "last_until", lambda *_: None)


def changes_without_the_lease(patch: pytest.MonkeyPatch) -> None:
    """A change is made before the lease that it asks for is looked at."""
    taken_lease = ModelLoads._taken_lease

    def changed_first(self: ModelLoads, request: Any) -> ModelLease | None:
        model = self._models[request.model_name]
        if "config" in request.parameters:
            model.dispatcher.put_in_force(self._override(model, request.parameters["config"])[0], model._mode)
        return taken_lease(self, request)

    patch.setattr(ModelLoads, "_taken_lease", changed_first)


def workers_lent_against_the_settings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Parity, "shared_models", property(lambda self: [lane.model for lane in self.lanes]))


def too_many_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerPool, "busy", property(lambda self: 0))
    patch.setattr(WorkerPool, "_retire", lambda self, worker: None)


@pytest.mark.parametrize(
    "break_it",
    [
        rows_of_the_neighbour,
        batches_of_any_size,
        nothing_in_force,
        dead_workers_stay_dead,
        failures_uncounted,
        the_given_up_run,
        lost_batches_stay_lost,
        answers_of_any_batch,
        leases_for_everybody,
        leases_for_ever,
        leases_that_end_before_their_changes,
        changes_without_the_lease,
        workers_lent_against_the_settings,
        too_many_at_once,
    ],
)
def test_what_is_broken_on_purpose_is_found(break_it: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    assert any(simulate(seed).sentence for seed in (*range(4), *TELLING, *range(4, MOST_SEEDS)))
