"""`neighbour`: what `rrl-tune` leaves in force beside a noisy neighbour, against a sweep beside the same one.

The neighbour takes 30 to 100 % of a core for 5 to 60 s, and pauses for as long (`scripts.serving.neighbour`).
Its schedule begins with the load. A window of the sweep begins where it lay in the schedule of the run.
So the best of the sweep is the best for the machine as it is.

    scripts/bench neighbour [--loads 0.3 0.5] [--seeds 0 1 2 3 4] [--out FILE.jsonl]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from scripts.benchmarks.tuner.real_traffic.report import result
from scripts.benchmarks.tuner.real_traffic.run_and_sweep import Beside, TrafficOptions, measured
from scripts.serving.processes import started
from serving_adapter.flags.parsing import fail, parse

MODULE = "scripts.serving.neighbour"


@dataclass(frozen=True)
class Options(TrafficOptions):
    """Tunes a server beside a noisy neighbour, and sweeps beside the same one."""

    loads: tuple[float, ...] = (0.3, 0.5)
    """Mean rates, as shares of what the rule of thumb serves of a burst without a neighbour."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Of arrivals, neighbour and agent; a run for each."""
    windows: int = 5
    """Parts of the run, with the neighbour as it was then, that each configuration meets in a round."""
    arrivals: tuple[str, ...] = ("poisson",)
    """As scripts/bench bursts takes them."""


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    try:
        return result(measured("neighbour", options, options.arrivals, _beside))
    except ValueError as error:
        fail(str(error))


def _beside(seed: int) -> Beside:
    return lambda from_s: started(MODULE, "--seed", seed, "--from-s", from_s)
