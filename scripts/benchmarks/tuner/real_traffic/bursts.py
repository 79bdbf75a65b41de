"""`bursts`: what `rrl-tune` leaves in force under arrivals in bursts, against a sweep over the same arrivals.

A run for each kind of arrivals (`burst_arrivals`), load and seed, as `run_and_sweep` describes it.

    scripts/bench bursts [--arrivals on-off batches:15 FILE.csv] [--loads 0.2 0.4 0.6] [--out FILE.jsonl]
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from scripts.benchmarks.tuner.real_traffic.report import result
from scripts.benchmarks.tuner.real_traffic.run_and_sweep import Beside, TrafficOptions, measured
from serving_adapter.flags.parsing import fail, parse


@dataclass(frozen=True)
class Options(TrafficOptions):
    """Tunes a server under bursts, and sweeps over the same arrivals."""

    arrivals: tuple[str, ...] = ("on-off", "gaps:2", "gaps:15", "batches:5", "batches:15")
    """poisson, on-off (0.8 s on, 3 s off on average), gaps:CV, batches:CV or a trace FILE.csv, each at every
    load. CV is the coefficient of variation of the gaps."""


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    arrivals = options.arrivals[:1] if options.quick else options.arrivals
    try:
        return result(measured("bursts", options, arrivals, _alone))
    except ValueError as error:
        fail(str(error))


def _alone(seed: int) -> Beside:
    return lambda from_s: nullcontext()
