"""`triton-changes`: 100 changes of a stock Triton's configuration under load, every second one in place.

A load of 20 requests/s is light enough that every one of the configurations bears it, so that what fails,
fails by a change. In turns the number of instances alone is changed, which Triton does in place, and all five
knobs, for which it loads the model anew. A change is in force when `Target.apply` returns: the model is ready
and ModelConfig shows it.

    scripts/bench triton-changes [--model minilm] [--changes 100] [--quick]
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.server.live_changes import VALUES
from scripts.benchmarks.triton.served import LIGHT_MODEL, Traffic, Triton, load, triton
from scripts.serving.client_log import Requests
from serving_adapter.flags.parsing import parse

RATE_PER_S = 20.0
KINDS = {True: "in place", False: "by a reload"}


@dataclass(frozen=True)
class Options:
    """Changes the configuration of a stock Triton under load."""

    model: str = "minilm"
    """minilm, efficientnet_lite0, burn."""
    changes: int = 100
    """How many."""
    quick: bool = False
    """Ten changes of a light model: only to see that it works."""

    def __post_init__(self) -> None:
        if self.changes < 2:
            raise ValueError(f"--changes must be at least 2, got {self.changes}")


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    model, changes = (LIGHT_MODEL, 10) if options.quick else (options.model, options.changes)
    with triton(model) as server, tempfile.TemporaryDirectory() as folder:
        with load(server, Traffic("poisson", RATE_PER_S, seed=0), Path(folder)):
            took_s = changed(server, changes)
        requests = Requests.read(Path(folder))
    print(
        f"{changes} changes under {RATE_PER_S:g} requests/s: {len(requests)} requests, "
        f"{requests.failures} failed, p50 {requests.percentile_ms(50):.0f} ms, "
        f"p99 {requests.percentile_ms(99):.0f} ms, slowest {requests.latency_ms.max():.0f} ms"
    )
    for kind, seconds in took_s.items():
        if seconds:
            p50_s, p99_s = np.percentile(seconds, [50, 99])
            longest_s = max(seconds)
            print(f"{len(seconds)} {kind}: p50 {p50_s:.2f} s, p99 {p99_s:.2f} s, at most {longest_s:.2f} s")
    return {
        "value": requests.failures,
        "unit": "failed requests",
        "peer": None,
        "ratio": None,
        "reach": 0,
        "holds": requests.failures == 0,
        "requests": len(requests),
        "slowest_request_ms": round(float(requests.latency_ms.max()), 1),
    } | {
        f"p50_s_{kind.replace(' ', '_')}": round(float(np.median(seconds)), 3)
        for kind, seconds in took_s.items()
        if seconds
    }


def changed(server: Triton, changes: int) -> dict[str, list[float]]:
    """How long each change took, by how Triton made it."""
    rng = np.random.default_rng(0)
    took_s: dict[str, list[float]] = {kind: [] for kind in KINDS.values()}
    present = server.target.configuration()
    for k in range(changes):
        wanted = _another(present, rng, ("instances",) if k % 2 else tuple(VALUES))
        began_s = time.perf_counter()
        applied = server.target.apply(wanted)
        took_s[KINDS[applied.in_place]].append(time.perf_counter() - began_s)
        present = server.target.configuration()
        if present != wanted:
            raise RuntimeError(f"{wanted} was sent, the server shows {present}")
        time.sleep(float(rng.uniform(0.0, 0.3)))
    return took_s


def _another(present: dict[str, int], rng: np.random.Generator, knobs: tuple[str, ...]) -> dict[str, int]:
    """A configuration that differs in some of these knobs."""
    while True:
        wanted = present | {knob: int(rng.choice(VALUES[knob])) for knob in knobs}
        if wanted != present:
            return wanted
