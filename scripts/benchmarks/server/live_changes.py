"""`live-changes`: 200 random configurations of all five knobs under 50 requests/s.

The model burns about 5 ms of one core on two parallel branches, which give `inter_op_threads` its meaning.
Every configuration bears the load, so a request that fails does so because of a change.

A change is in force when RepositoryModelLoad has returned and ModelConfig shows it. The call returns when
every new batch goes to workers of the new kind. There is no peer: no Python server changes all five knobs
live, and a stock Triton reloads the model for all but the instance count.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from scripts.serving.processes import serving, started
from serving_adapter.target import OpenInferenceTarget

CHANGES = 200
RATE_PER_S = 50
MODEL = ("burn", "--model-option", "branches=2", "--model-option", "rounds=3")
VALUES = {
    "instances": (1, 2, 3, 4),
    "intra_op_threads": (1, 2),
    "inter_op_threads": (1, 2),
    "max_batch_size": (1, 2, 4, 8, 16),
    "max_queue_delay_us": (0, 1000, 2000, 5000),
}
REACH_S = 1.0


def run() -> dict[str, Any]:
    with serving(*MODEL) as address, contextlib.closing(OpenInferenceTarget(address)) as target:
        target.connect()

        def changed(rng: Generator) -> float:
            configuration = {knob: int(rng.choice(values)) for knob, values in VALUES.items()}
            start_s = time.perf_counter()
            target.apply(configuration)
            took_s = time.perf_counter() - start_s
            if target.configuration() != configuration:
                raise RuntimeError(f"{configuration} was sent, the server shows {target.configuration()}")
            return took_s

        return changes_under_load(address, RATE_PER_S, REACH_S, changed)


def changes_under_load(
    address: str, rate_per_s: float, reach_s: float, changed: Callable[[Generator], float]
) -> dict[str, Any]:
    """The figures of `CHANGES` changes; `changed` makes one, and says how long it took."""
    rng = np.random.default_rng(0)
    took_s = []
    with tempfile.TemporaryDirectory() as out:
        load = ("--target", address, "--rate", rate_per_s, "--duration-s", 0, "--out", out)
        with started("serving_adapter.load.command_line", *load) as generator:
            assert generator.stdout is not None
            generator.stdout.readline()  # it says when it starts sending
            for _ in range(CHANGES):
                took_s.append(changed(rng))
                time.sleep(float(rng.uniform(0.0, 0.3)))
        report = json.loads((Path(out) / "load.json").read_text())
    failed = sum(report["failed"].values())
    p50_s, p99_s = (float(np.percentile(took_s, q)) for q in (50, 99))
    offered_per_s, completed = report["offered_rate_per_s"], report["completed"]
    print(f"{CHANGES} changes under {offered_per_s:.0f} requests/s: {completed} answered, {failed} failed")
    print(f"in force after p50 {p50_s:.3f} s, p99 {p99_s:.3f} s, at most {max(took_s):.3f} s")
    return {
        "value": round(p99_s, 3),
        "unit": "s until in force, p99",
        "peer": None,
        "ratio": None,
        "reach": reach_s,
        "holds": p99_s <= reach_s and failed == 0,
        "failed_requests": failed,
        "answered_requests": completed,
    }
