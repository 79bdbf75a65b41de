"""What a seed draws: the model, the load, the configurations and the troubles of one simulation."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from scripts.robustness.simulated_front.checked_models import (
    ANSWERS_NONSENSE,
    ANSWERS_TWICE,
    CHECKED_MODELS,
    CRASHES,
    FINE,
    HANGS,
    LINEAR,
    RAISES,
    CheckedModel,
)
from scripts.robustness.simulated_front.fates import Deeds
from serving_adapter.server.configuration import Knobs
from serving_adapter.server.redundancy.settings import ResilienceSettings

MODES = ("none", "equal-resources", "replication", "hedging", "approximate-backup", "default-answer")
BATCH_SIZES = (1, 2, 4, 8)
DELAYS_US = (0, 0, 1000, 5000, 20_000)
WORKER_TIMEOUTS_S = (1.0, 5.0)
QUEUE_SIZES = (4, 16, 2048, 2048)
HELD_BYTES = (math.inf, math.inf, math.inf, 600.0)  # a few requests fill the last one
PRIORITY_LEVELS = (0, 0, 3)
OWNERS = ("ann", "bob", "cleo")
LEASES_MS = (0, 1, 20, 200, 2000)
DEEDS = (RAISES, CRASHES, HANGS, ANSWERS_NONSENSE, ANSWERS_TWICE)


@dataclass(frozen=True)
class SimulatedRequest:
    """One call of a client: when, what of, and how long it waits for the answer."""

    at_s: float
    rows: int
    deed: int
    exact: bool
    gives_up_after_s: float | None
    priority: int = 0


@dataclass(frozen=True)
class SimulatedChange:
    """A live change of the configuration; its client may go away before it is done."""

    at_s: float
    knobs: Knobs
    resilience: ResilienceSettings
    gives_up_after_s: float | None
    lease: SimulatedLease | None
    """What its client asks for beside it; None for a change by hand."""


@dataclass(frozen=True)
class SimulatedLease:
    """Who wants the lease on the model, and for how long; 0 ms gives it back."""

    owner: str
    duration_ms: int


@dataclass(frozen=True)
class Trouble:
    """What happens to a process: `victim` and `deed` name a method of `Troubles`; lots choose the process."""

    at_s: float
    victim: str
    deed: str
    lot: float
    lasts_s: float


@dataclass(frozen=True)
class FrontScenario:
    """One simulation, drawn whole before it starts."""

    seed: int
    model: CheckedModel
    has_parallel_branches: bool
    knobs: Knobs
    resilience: ResilienceSettings
    max_queue_size: int
    max_held_bytes: float
    worker_timeout_s: float
    mean_service_s: float
    priority_levels: int
    requests: tuple[SimulatedRequest, ...]
    changes: tuple[SimulatedChange, ...]
    leases: tuple[tuple[float, SimulatedLease], ...]
    """Asked for without a change, each at its moment in seconds."""
    troubles: tuple[Trouble, ...]
    bad_builds: tuple[str, ...]
    bad_forks: tuple[str, ...]
    closes_at_s: float | None
    """When the server is told to end; None: after all is answered."""

    @property
    def kills(self) -> bool:
        return any(trouble.deed == "kill" for trouble in self.troubles)


def drawn(seed: int) -> FrontScenario:
    """The scenario of a seed."""
    draw = random.Random(seed)
    model = draw.choice(CHECKED_MODELS)
    branches = draw.random() < 0.3
    length_s = draw.choice((0.2, 1.0, 4.0))
    bad_deeds = draw.random() < 0.4
    troubled = draw.random() < 0.6
    n_troubles = draw.randint(1, 8) if troubled else 0
    knobs = _knobs(draw, branches)
    leased = draw.random() < 0.5
    levels = random.Random(f"priorities of {seed}").choice(PRIORITY_LEVELS)
    return FrontScenario(
        seed=seed,
        model=model,
        has_parallel_branches=branches,
        knobs=knobs,
        resilience=_resilience(draw, model, knobs),
        max_queue_size=draw.choice(QUEUE_SIZES),
        max_held_bytes=draw.choice(HELD_BYTES),
        worker_timeout_s=draw.choice(WORKER_TIMEOUTS_S),
        mean_service_s=draw.choice((0.002, 0.01, 0.05)),
        priority_levels=levels,
        requests=_with_priorities(seed, levels, _requests(draw, length_s, 0.08 if bad_deeds else 0.0)),
        changes=tuple(
            _change(draw, length_s, model, branches, leased) for _ in range(draw.choice((0, 1, 3, 8)))
        ),
        leases=tuple(
            (draw.uniform(0, length_s), _lease(draw)) for _ in range(draw.randint(0, 6) if leased else 0)
        ),
        troubles=tuple(_trouble(draw, length_s) for _ in range(n_troubles)),
        bad_builds=_bad(draw, 2) if troubled else (),
        bad_forks=_bad(draw, 4) if troubled else (),
        closes_at_s=draw.uniform(0.0, length_s) if draw.random() < 0.15 else None,
    )


def _knobs(draw: random.Random, branches: bool) -> Knobs:
    return Knobs(
        instances=draw.randint(1, 4),
        intra_op_threads=draw.randint(1, 3),
        inter_op_threads=draw.randint(1, 2) if branches else 1,
        max_batch_size=draw.choice(BATCH_SIZES),
        max_queue_delay_us=draw.choice(DELAYS_US),
    )


def _resilience(draw: random.Random, model: CheckedModel, knobs: Knobs) -> ResilienceSettings:
    modes = [*MODES, "none", "hedging"]
    if model is LINEAR and knobs.instances >= 2:
        modes += ["parity"] * 12
    k = draw.randint(2, max(2, knobs.instances))
    return ResilienceSettings(
        mode=draw.choice(modes),
        k=k,
        r=draw.randint(1, 2),
        redundant_instances=draw.choice((0, 0, 1, 2)),
        late_percentile=draw.choice((0, 50, 95)),
        late_after_us=draw.choice((1, 10_000, 100_000)),
        group_timeout_us=draw.choice((0, 1000, 100_000)),
        overflow=1 if draw.random() < 0.5 else 0,
    )


def _requests(draw: random.Random, length_s: float, bad_share: float) -> list[SimulatedRequest]:
    requests: list[SimulatedRequest] = []
    at_s = 0.0
    number = draw.choice((5, 20, 60))
    while len(requests) < number:
        at_s += draw.expovariate(number / length_s)
        for _ in range(draw.choice((1, 1, 1, 4))):  # some come in a burst
            gives_up = draw.expovariate(1 / 0.05) if draw.random() < 0.25 else None
            deed = draw.choice(DEEDS) if draw.random() < bad_share else FINE
            requests.append(
                SimulatedRequest(at_s, draw.choice((1, 1, 1, 2, 3, 9)), deed, draw.random() < 0.3, gives_up)
            )
    return requests


def _with_priorities(
    seed: int, levels: int, requests: list[SimulatedRequest]
) -> tuple[SimulatedRequest, ...]:
    """Drawn apart, so that all else of a seed is what it would be without."""
    draw = random.Random(f"levels of {seed}")
    return tuple(replace(request, priority=draw.randint(0, levels)) for request in requests)


def _change(
    draw: random.Random, length_s: float, model: CheckedModel, branches: bool, leased: bool
) -> SimulatedChange:
    knobs = _knobs(draw, branches)
    resilience = _resilience(draw, model, knobs)
    if leased and draw.random() < 0.8:  # whoever goes away learns nothing of its lease, so these wait
        return SimulatedChange(draw.uniform(0, length_s), knobs, resilience, None, _lease(draw))
    gives_up = draw.expovariate(1 / 0.01) if draw.random() < 0.15 else None
    return SimulatedChange(draw.uniform(0, length_s), knobs, resilience, gives_up, None)


def _lease(draw: random.Random) -> SimulatedLease:
    return SimulatedLease(draw.choice(OWNERS), draw.choice(LEASES_MS))


def _trouble(draw: random.Random, length_s: float) -> Trouble:
    victim = draw.choice(("worker", "worker", "worker", "zygote"))
    deed = draw.choice(("kill", "kill", "stop"))
    return Trouble(draw.uniform(0, length_s), victim, deed, draw.random(), draw.expovariate(1 / 0.5))


def _bad(draw: random.Random, most: int) -> tuple[str, ...]:
    """The first builds or forks, most of which go well."""
    return tuple(
        draw.choice(Deeds.ALL_BUT_FINE) if draw.random() < 0.5 else Deeds.FINE
        for _ in range(draw.randint(0, most))
    )
