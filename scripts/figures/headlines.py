"""The rules by which TrIMS's and ParM's rows of RESULTS.md are judged.

How the paper's cell is worded says which rule a row has. The worst of a row's numbers decides.

| the paper's cell | example | yes | partly |
|---|---|---|---|
| a bound | at most 6.5 | ours is at most that | at most twice as much |
| a level to be near | close to 1 | ours is at most 1.1 times that | at most twice as much |
| a reduction | -38 to -48 % | ours is at least three quarters as large | at least half as large |
| a factor or a share to reach | 2.6-3.5, up to 8x, 24x | ours is at least that | at least half as much |
| no number | – | never: the verdict is – | never |

Of a range the end counts that is easier to reach. Cells with a slash have a number for each case, or the
paper's one for all. Our cell says `(1 run)` or `(2 runs)` where there are fewer than `FEWEST_RUNS`, and the
verdict is –. A pair of data and network that was trained once is a run. RRL's reductions are partly
reproduced where they are surely below zero. These rows have no intervals, so half as large stands for that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES
from scripts.figures.rrl.rules import AS_LARGE, FEWEST_RUNS

CLOSE = 1.1  # times the level
TWICE, HALF = 2.0, 0.5
_NUMBER = re.compile(r"(?:(?<![\d.])-)?\d[\d,]*(?:\.\d+)?")  # a dash after a digit is that of a range
_RUNS = re.compile(r"\((\d+) runs?\)")


def verdict_of_bound(bound: float, ours: float, tolerance: float = 1.0) -> str:
    """Reproduces: at most `tolerance` times the bound. Partly: at most twice the bound."""
    return REPRODUCES if ours <= tolerance * bound else PARTLY if ours <= TWICE * bound else FAILS


def verdict_of_factor(paper: float, ours: float, share: float = 1.0) -> str:
    """Reproduces: at least `share` of the paper's. Partly: at least half of it."""
    return REPRODUCES if ours >= share * paper else PARTLY if ours >= HALF * paper else FAILS


def verdict_of_headline(paper: str, ours: str) -> str:
    """The verdict of a row of RESULTS.md from its paper's and our cell."""
    runs = _RUNS.search(ours)
    cases = [_numbers(case) for case in paper.split("/")]
    our_cases = [_numbers(case) for case in _RUNS.sub("", ours).split("/")]
    if not any(cases) or (runs and int(runs[1]) < FEWEST_RUNS):
        return NO_CLAIM
    if len(cases) == 1:
        cases *= len(our_cases)
    verdicts = {
        _verdict(paper, numbers, number)
        for numbers, our_numbers in zip(cases, our_cases, strict=True)
        for number in our_numbers
    }
    return next(verdict for verdict in (FAILS, PARTLY, REPRODUCES) if verdict in verdicts)


def _verdict(words: str, paper: Sequence[float], ours: float) -> str:
    if words.startswith("at most"):
        return verdict_of_bound(max(paper), ours)
    if words.startswith("close to"):
        return verdict_of_bound(max(paper), ours, CLOSE)
    if max(paper) < 0:
        return verdict_of_factor(-max(paper), -ours, AS_LARGE)
    return verdict_of_factor(min(paper), ours)


def _numbers(cell: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(cell)]
