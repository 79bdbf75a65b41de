"""A noisy neighbour: a process that takes a part of one core for a while, pauses, and takes another.

    python -m scripts.serving.neighbour --seed 0 --from-s 30

The same seed repeats the same schedule, so that configurations can be measured beside the same neighbour. It
runs until it is ended.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from serving_adapter.flags.parsing import parse

LENGTHS_S = (5.0, 60.0)  # of a spell of work or of a pause
SHARES = (0.3, 1.0)  # of one core, in a spell of work
PERIOD_S = 0.02  # A share of each period is worked, and the rest slept.


@dataclass(frozen=True)
class NeighbourOptions:
    """Takes a part of one core at random times."""

    seed: int = 0
    """Of the schedule."""
    from_s: float = 0.0
    """Where in the schedule to begin."""


class Spell(NamedTuple):
    """A stretch of the schedule."""

    length_s: float
    share: float  # of one core; 0 is a pause


def schedule(seed: int, from_s: float = 0.0) -> Iterator[Spell]:
    """Work and pauses by turns, for ever; what lies before `from_s` is left out."""
    rng = np.random.default_rng([seed, 3])
    works = bool(rng.random() < 0.5)
    before_s = from_s
    while True:
        length_s, share = rng.uniform(*LENGTHS_S), rng.uniform(*SHARES)
        left_s = length_s - max(0.0, before_s)
        before_s -= length_s
        if left_s > 0:
            yield Spell(left_s, share if works else 0.0)
        works = not works


def take(
    spells: Iterator[Spell],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Takes what the schedule says. A late spell is cut short, so that lateness does not add up."""
    end_s = now()
    for spell in spells:
        begin_s, end_s = end_s, end_s + spell.length_s
        if spell.share == 0:
            sleep(max(0.0, end_s - now()))
            continue
        for k in itertools.count():
            period_s = begin_s + k * PERIOD_S
            if period_s >= end_s:
                break
            while now() < period_s + spell.share * PERIOD_S:
                pass
            sleep(max(0.0, min(period_s + PERIOD_S, end_s) - now()))


def main() -> None:
    options = parse(NeighbourOptions)
    take(schedule(options.seed, options.from_s))


if __name__ == "__main__":
    main()
