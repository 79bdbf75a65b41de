"""`python -m scripts.robustness front --seeds 0:2000`: simulates the front once for each seed.

A seed for which something does not hold is printed with its last events. `--seeds N` replays it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scripts.robustness import figures
from scripts.robustness.simulated_front.simulation import SimulationResult, simulate
from serving_adapter import resources

SEEDS_AT_ONCE = 20  # by one process, before it looks for descriptors that were left open
EVENTS_SHOWN = 40
FAILURES_SHOWN = 5


@dataclass(frozen=True)
class Options:
    """Simulates the front of rrl-serve once for each seed, and says for which something does not hold."""

    seeds: str = "0:20000"
    """FIRST:END, the end left out; or one seed, whose events are printed."""
    processes: int = 0
    """Simulations at a time; 0 is the number of cores."""
    out: Path | None = None
    """JSON file to which the figures are appended."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d+(:\d+)?", self.seeds) or not self.numbers:
            raise ValueError(f"--seeds must be FIRST:END or one seed, such as 0:2000, got {self.seeds!r}")
        if not 0 <= self.processes <= 256:
            raise ValueError(f"--processes must be from 0 to 256, got {self.processes}")

    @property
    def numbers(self) -> range:
        first, colon, end = self.seeds.partition(":")
        return range(int(first), int(end) if colon else int(first) + 1)


class FrontFigures(NamedTuple):
    """What came of some seeds."""

    seeds: int
    requests: int
    steps: int
    failed: list[SimulationResult]


def simulated(seeds: Sequence[int]) -> FrontFigures:
    """Simulates some seeds in this process; the last one is blamed for descriptors that were left open."""
    gc.collect()
    before = _open_descriptors()
    results = [simulate(seed) for seed in seeds]
    gc.collect()
    left = _open_descriptors() - before
    failed = [result for result in results if result.sentence]
    if left > 0 and not failed:
        sentence = f"{left} descriptors are left open after the seeds {seeds[0]} to {seeds[-1]}"
        failed = [results[-1]._replace(sentence=sentence)]
    steps, requests = sum(r.steps for r in results), sum(r.requests for r in results)
    return FrontFigures(len(results), requests, steps, failed)


def run(options: Options) -> bool:
    """Simulates all seeds; whether everything held."""
    began_s, numbers = time.perf_counter(), options.numbers
    chunks = [numbers[i : i + SEEDS_AT_ONCE] for i in range(0, len(numbers), SEEDS_AT_ONCE)]
    total, told_s = FrontFigures(0, 0, 0, []), began_s
    for part in _in_processes(chunks, options.processes or resources.cores()):
        for result in part.failed:
            if len(total.failed) < FAILURES_SHOWN or len(numbers) == 1:
                _show(result)
            total.failed.append(result)
        total = FrontFigures(
            total.seeds + part.seeds, total.requests + part.requests, total.steps + part.steps, total.failed
        )
        if time.perf_counter() - told_s > 10:
            told_s = time.perf_counter()
            print(f"{total.seeds} of {len(numbers)} seeds, {len(total.failed)} failed", flush=True)
    if len(numbers) == 1 and not total.failed:
        _show(simulate(numbers[0]))
    _tell(options, total, time.perf_counter() - began_s)
    return not total.failed


def _in_processes(chunks: Sequence[range], processes: int) -> Iterator[FrontFigures]:
    if len(chunks) == 1 or processes == 1:
        yield from map(simulated, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(min(processes, len(chunks))) as pool:
        yield from pool.imap_unordered(simulated, chunks)


def _show(result: SimulationResult) -> None:
    print("\n".join(result.events[-EVENTS_SHOWN:]))
    if result.sentence:
        print(f"seed {result.seed}: {result.sentence}")
        print(f"replay: python -m scripts.robustness front --seeds {result.seed}\n", flush=True)


def _tell(options: Options, total: FrontFigures, took_s: float) -> None:
    row = {
        "seeds": total.seeds,
        "requests": total.requests,
        "steps": total.steps,
        "steps/s": round(total.steps / took_s),
        "minutes": round(took_s / 60, 1),
        "failed seeds": len(total.failed),
    }
    print(figures.markdown([row]))
    if options.out is not None:
        failed = {str(result.seed): result.sentence for result in total.failed}
        figures.append(options.out, "front", row | {"failures": failed})


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
