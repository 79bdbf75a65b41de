"""Agents that tune a real server, against an exhaustive sweep of it.

First every configuration is measured for a window, then each agent tunes. At the end the clients measure what
each kept, and the contenders of the sweep, in turns. The least of many windows is luck in part, and so is
that of many means. So the best of each turn is what the other turns have as the best. A turn has them all
within the same minutes: where there is one more of them, it is measured anew.

| word | meaning |
|---|---|
| *latency* | mean of all requests; one that failed counts as the longest wait for an answer |
| *contenders* | configurations that the sweep has within 20 % of its least latency |
| *over the best* | latency in a turn over that of its best, geometric mean of the turns |
| *measurements* | intervals until what is in force is near the best, and nine in ten after |
| *failed* | requests that failed while an agent tuned |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

import numpy as np

from rrl import journal
from rrl.records import Record
from scripts.kept_rows import KeptRows
from scripts.serving.client_log import Requests
from scripts.serving.served_agents import settled_after

CONTENDS = 1.2

Window = Mapping[str, Any]
"""`mean_ms`, infinite where nothing was answered, and how many `failed`."""
Run = Mapping[str, Any]
"""The `numbers` in force, interval by interval, what was `kept`, and how many requests `failed`."""


@dataclass(frozen=True)
class AgainstSweep:
    """What is measured; whatever `rows` has is not done again."""

    agents: Sequence[str]  # the one that is judged first, then its peers
    seeds: int  # runs of each
    window_s: float  # of the sweep; those in turns are twice as long
    rounds: int  # in turns
    window: Callable[[int, float], Window]  # of a configuration's number, for so many seconds
    tuned: Callable[[str, int], Run]  # by an agent, with a seed
    rows: KeptRows  # by `what`, of one setting
    label: str = ""  # of its rows, where the file has those of others

    def outcome(self, numbers: Sequence[int], reach: float) -> dict[str, Any]:
        """All of it over the configurations of these `numbers`; near is within `reach` of the best."""
        sweep = {n: self.done(f"sweep {n}", partial(self.window, n, self.window_s)) for n in numbers}
        least_ms = min(each["mean_ms"] for each in sweep.values())
        if math.isinf(least_ms):
            raise RuntimeError("no configuration of the sweep answered a request")
        contenders = [n for n, each in sweep.items() if each["mean_ms"] <= CONTENDS * least_ms]
        runs = {
            (agent, seed): self.done(f"run {agent} {seed}", partial(self.tuned, agent, seed))
            for seed in range(self.seeds)
            for agent in self.agents
        }
        kept = sorted({*contenders, *(each["kept"] for each in runs.values())})
        named = " ".join(map(str, kept))
        turns = [
            self.done(f"turn {turn} of {named}", partial(self._turn, turn, kept))
            for turn in range(self.rounds)
        ]
        ends = {n: [turn[k]["mean_ms"] for turn in turns] for k, n in enumerate(kept)}
        return outcome(self.agents, runs, over_the_best(ends), reach) | {"commits": self.rows.commits}

    def _turn(self, turn: int, numbers: Sequence[int]) -> list[Window]:
        """What clients see of each, measured in an order of this turn's own."""
        order = np.random.default_rng(turn).permutation(numbers).tolist()
        seen = {n: self.window(n, 2 * self.window_s) for n in order}
        return [seen[n] for n in numbers]

    def done(self, what: str, do: Callable[[], Any]) -> Any:
        """What was found when this was done, which is now if it was not before."""
        row = {"what": f"{self.label} {what}".strip()}
        if row not in self.rows:
            self.rows.add({**row, "found": do()})
            print(f"{row['what']}: {self.rows[row]['found']}", flush=True)
        return self.rows[row]["found"]


def window_of(seen: Requests) -> Window:
    """What clients saw of a configuration."""
    return {"mean_ms": seen.mean_felt_ms, "failed": seen.failures}


def over_the_best(ends: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Each configuration's latency over the best's, given those of each in all turns.

    One turn is its own judge. What answered nothing in a turn is not its best. A turn in which nothing was
    answered tells nothing.
    """
    turns = range(len(next(iter(ends.values()))))
    answered = {turn: [n for n, each in ends.items() if math.isfinite(each[turn])] for turn in turns}
    told = [turn for turn in turns if answered[turn]]
    if not told:
        raise RuntimeError("no request was answered in any turn")
    best_ms = {}
    for turn in told:
        others = [other for other in told if other != turn] or [turn]
        best = min(answered[turn], key=lambda n: sum(ends[n][other] for other in others))
        best_ms[turn] = ends[best][turn]
    return {n: geometric_mean(each[turn] / best_ms[turn] for turn in told) for n, each in ends.items()}


def outcome(
    agents: Sequence[str], runs: Mapping[tuple[str, int], Run], ends: Mapping[int, float], reach: float
) -> dict[str, Any]:
    """The first of the agents beside the others. `ends` has the latency over the best's by configuration."""
    near = {number for number, ratio in ends.items() if ratio <= reach}
    finals, needed, failed = {}, {}, {}
    for agent in agents:
        own = [each for (name, _), each in runs.items() if name == agent]
        finals[agent] = geometric_mean(ends[each["kept"]] for each in own)
        needed[agent] = mean(_measurements(each["numbers"], near) for each in own)
        failed[agent] = sum(each["failed"] for each in own)
        print(
            f"{agent:12} final / best {finals[agent]:.3f}  measurements {needed[agent]:.1f}  "
            f"failed {failed[agent]}",
            flush=True,
        )
    judged, peers = agents[0], agents[1:]
    peer = min((finals[name] for name in peers), default=math.nan)
    fewer = all(needed[judged] < needed[name] for name in peers)
    return {
        "value": round(finals[judged], 3),
        "unit": "latency of what is kept over the sweep's best, by clients, geometric mean",
        "peer": round(peer, 3),
        "ratio": round(finals[judged] / peer, 3),
        "reach": reach,
        "holds": finals[judged] <= reach and fewer and failed[judged] == 0,
        "measurements": needed,
        "finals": {name: round(each, 3) for name, each in finals.items()},
        "failed": failed,
    }


def _measurements(numbers: Sequence[int], near: set[int]) -> int:
    """Intervals until it stays near the best; all where it never does."""
    return settled_after([number in near for number in numbers]) or len(numbers)


def searching(folder: Path) -> list[Record]:
    """A run's counted intervals before those of its validation, which puts the start in force, too."""
    return [each for each in journal.read(folder)[1] if each.counted and each.kind != "validation"]
