"""`triton-change-cost`: what users of a stock Triton feel of one change, its instances in turns or not.

The load is Poisson, at 0.75 of what Triton's default configuration serves of a burst. The configuration
changes to one of two, three or four instances, each a new load of the model. Each change is made in two ways,
under the same arrivals in a round:

- as `Target` makes it on a machine of few cores: the new load first, further instances in turns;
- with all instances in the new load.

The cost is the latency summed over the requests of a window around the change.

    scripts/bench triton-change-cost [--model minilm] [--rounds 3] [--quick]
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rrl.knobs import in_words
from rrl.space import Configuration
from scripts.benchmarks.triton.served import (
    LIGHT_MODEL,
    TRITONS_DEFAULT,
    Traffic,
    Triton,
    capacity_per_s,
    load,
    triton,
)
from scripts.serving.client_log import Requests
from serving_adapter.flags.parsing import parse

UTILISATION = 0.75
CHANGES: tuple[Configuration, ...] = (
    {"instances": 2, "intra_op_threads": 1, "max_batch_size": 4, "max_queue_delay_us": 0},
    {"instances": 3, "intra_op_threads": 2, "max_batch_size": 8, "max_queue_delay_us": 0},
    {"instances": 4, "intra_op_threads": 2, "max_batch_size": 1, "max_queue_delay_us": 0},
)


@dataclass(frozen=True)
class Options:
    """Measures what one change of a stock Triton costs its users."""

    model: str = "minilm"
    """minilm, efficientnet_lite0, burn."""
    rounds: int = 3
    """In which every change is made both ways."""
    quick: bool = False
    """A light model and a short window: only to see that it works."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"--rounds must be at least 1, got {self.rounds}")


@dataclass(frozen=True)
class Cost:
    """What one change costs."""

    latency_s: float  # summed over the window's requests
    took_s: float  # until the configuration was in force
    failures: int


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    model, before_s, window_s = (LIGHT_MODEL, 0.5, 3.0) if options.quick else (options.model, 3.0, 16.0)
    costs: dict[tuple[int, bool], list[Cost]] = {}
    with triton(model) as server, tempfile.TemporaryDirectory() as folder:
        rate_per_s = round(UTILISATION * capacity_per_s(server), 1)
        for seed in range(options.rounds):
            for k, configuration in enumerate(CHANGES):
                for in_turns in (True, False):
                    log = Path(folder) / f"{seed}-{k}-{in_turns}"
                    traffic = Traffic("poisson", rate_per_s, seed)
                    cost = _cost(server, configuration, in_turns, traffic, log, before_s, window_s)
                    costs.setdefault((k, in_turns), []).append(cost)
    print(f"{model} at {rate_per_s:g}/s, from {in_words(TRITONS_DEFAULT)}; medians of {options.rounds}")
    for (k, in_turns), found in costs.items():
        print(
            f"to {in_words(CHANGES[k])}, {'in turns' if in_turns else 'all at once'}: "
            f"{median(c.latency_s for c in found):.0f} s of latency in {window_s:g} s, "
            f"in force after {median(c.took_s for c in found):.1f} s"
        )
    sums_s = {in_turns: _sum_s(costs, in_turns) for in_turns in (True, False)}
    return {
        "value": round(sums_s[True] / len(CHANGES), 1),
        "unit": f"s of latency in {window_s:g} s around a change, instances in turns",
        "peer": round(sums_s[False] / len(CHANGES), 1),
        "ratio": round(sums_s[False] / sums_s[True], 2),
        "reach": None,
        "holds": sums_s[True] < sums_s[False],
        "failures": sum(cost.failures for found in costs.values() for cost in found),
    }


def _sum_s(costs: dict[tuple[int, bool], list[Cost]], in_turns: bool) -> float:
    """Over the changes, of each the median."""
    return sum(median(c.latency_s for c in found) for (_, turns), found in costs.items() if turns == in_turns)


def _cost(
    server: Triton,
    configuration: Configuration,
    in_turns: bool,
    traffic: Traffic,
    log: Path,
    before_s: float,
    window_s: float,
) -> Cost:
    """Makes the change from Triton's default configuration, `before_s` into the window."""
    target, together = server.target, server.target.starts_at_once
    target.apply(TRITONS_DEFAULT)
    with load(server, traffic, log, window_s) as client:
        time.sleep(before_s)
        target.starts_at_once = together if in_turns else None
        began_s = time.perf_counter()
        target.apply(configuration)
        took_s = time.perf_counter() - began_s
        target.starts_at_once = together
        client.communicate(timeout=window_s + 120)
    requests = Requests.read(log)
    return Cost(requests.sum_s, took_s, requests.failures)
