"""The tables of many runs of `triton-head-to-head`, one a workload, from the rows that the runs left.

What a run shows of a peer is taken as ln figure = workload and peer + run + rest. The run's own part, the
machine of that day, is the same for all peers. So peers are compared within each run. A peer's rest has one
variance in all workloads. Intervals are Student's t of 95 %. Their degrees of freedom are the runs less
the workloads. Below three there are none, and none where a peer kept the best each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from baselines import DEFAULT_AGENT
from rrl.guarding.gain import students_t
from rrl.knobs import in_words
from scripts.kept_rows import KeptRows, Row

FILE_NAME = "triton-head-to-head.jsonl"
SETTING = (
    "model",
    "arrivals",
    "asked_rate_per_s",
    "knobs",
    "measurements",
    "interval_s",
    "rounds",
    "guarded",
)
"""What runs of one workload have in common. Their code may differ: the tables name its commits."""

FEWEST_FREEDOM = 3  # below, Student's t is so wide that an interval tells nothing

COLUMNS = (
    "peer", "mean / best", "p95 / best", "settled after", "changes", f"latency over {DEFAULT_AGENT}'s",
    "over the limit", "left",
)  # fmt: skip


class Reached(NamedTuple):
    """What is judged of one peer with one workload: medians over the runs, never as infinitely late."""

    mean_ratio: float
    p95_ratio: float
    settled: float
    knew: float
    over_limit: float
    latency: float
    """Summed over the tuning period, over the default agent's in the same run: the geometric mean."""


def reached(runs: Sequence[Row]) -> dict[str, Reached]:
    """The judgement of each peer that was in every run of one workload."""
    return {name: _reached(name, runs) for name in _in_all(runs)}


def _reached(name: str, runs: Sequence[Row]) -> Reached:
    middle = {
        figure: median(_or_infinite(run["peers"][name][figure]) for run in runs)
        for figure in Reached._fields[:-1]
    }
    return Reached(**middle, latency=compared(name, runs, [runs]).middle)


def _or_infinite(figure: float | None) -> float:
    return math.inf if figure is None or math.isnan(figure) else figure


def _in_all(runs: Sequence[Row]) -> list[str]:
    return [name for name in runs[0]["peers"] if all(name in run["peers"] for run in runs)]


class RunsMean(NamedTuple):
    """A geometric mean over runs, with its interval (NaN where one cannot be told)."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.middle:.3f}"
        return f"{self.middle:.3f} [{self.low:.2f}, {self.high:.2f}]"


def kept_runs(path: Path | None) -> KeptRows:
    return KeptRows(path, (*SETTING, "seed"))


def head_to_head_tables(rows: Sequence[Row]) -> str:
    """A table for each workload, in the order in which the workloads came."""
    workloads = by_workload(rows)
    return "\n\n".join(_table(runs, workloads) for runs in workloads)


def by_workload(rows: Iterable[Row]) -> list[list[Row]]:
    workloads: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        workloads.setdefault(tuple(row[name] for name in SETTING), []).append(row)
    return list(workloads.values())


def _table(runs: Sequence[Row], workloads: Sequence[Sequence[Row]]) -> str:
    names = sorted(
        _in_all(runs), key=lambda name: (name != DEFAULT_AGENT, compared(name, runs, workloads).middle)
    )
    lines = [_in_row(COLUMNS), _in_row(["---"] * len(COLUMNS))]
    return "\n".join([_heading(runs), "", *lines, *(_line(name, runs, workloads) for name in names)])


def _in_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _heading(runs: Sequence[Row]) -> str:
    first = runs[0]
    seeds, rates, commits = (
        ", ".join(dict.fromkeys(f"{run[name]}" for run in runs)) for name in ("seed", "rate_per_s", "commit")
    )
    means_ms = ", ".join(f"{run['best_mean_ms']:.1f}" for run in runs)
    p95s_ms = ", ".join(f"{run['best_p95_ms']:.1f}" for run in runs)
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    return (
        f"**{first['model']}, {first['arrivals']}: {count}**, seed {seeds}, commit {commits}, at {rates} "
        f"requests/s. The best has a mean of {means_ms} ms and a p95 of {p95s_ms} ms."
    )


def _line(name: str, runs: Sequence[Row], workloads: Sequence[Sequence[Row]]) -> str:
    results = [run["peers"][name] for run in runs]
    latency = "" if name == DEFAULT_AGENT else str(compared(name, runs, workloads))
    left = "; ".join(dict.fromkeys(in_words(result["left"]) for result in results))
    cells = (
        name,
        str(estimated("mean_ratio", name, runs, workloads)),
        str(estimated("p95_ratio", name, runs, workloads)),
        ", ".join(or_never(result["settled"]) for result in results),
        f"{median(result['changes'] for result in results):g}",
        latency,
        ", ".join(f"{result['over_limit']:,}" for result in results),
        left,
    )
    return _in_row(cells)


def estimated(figure: str, name: str, runs: Sequence[Row], workloads: Sequence[Sequence[Row]]) -> RunsMean:
    """Of one figure of a peer in the runs of one workload."""
    return _over_runs(lambda peers: peers[name][figure], name, runs, workloads)


def compared(name: str, runs: Sequence[Row], workloads: Sequence[Sequence[Row]]) -> RunsMean:
    """A peer's latency summed over its tuning period, over the default agent's in the same run."""

    def ratio(peers: Row) -> float:
        return float(peers[name]["latency_s"] / peers[DEFAULT_AGENT]["latency_s"])

    return _over_runs(ratio, name, runs, workloads)


def _over_runs(
    figure: Callable[[Row], float], name: str, runs: Sequence[Row], workloads: Sequence[Sequence[Row]]
) -> RunsMean:
    """Of a figure of each run's peers, where this one is among them."""

    def logs(of: Sequence[Row]) -> list[float]:
        return [math.log(figure(run["peers"])) for run in of if name in run["peers"]]

    return _estimate(logs(runs), [logs(workload) for workload in workloads])


def _estimate(here: Sequence[float], everywhere: Sequence[Sequence[float]]) -> RunsMean:
    """Of one workload; the variance is that within all of them.

    Values that are all the same have no interval: what was kept is then the best itself, time and again.
    """
    told = [values for values in everywhere if values and all(map(math.isfinite, values))]
    freedom = sum(len(values) - 1 for values in told)
    middle = mean(here)
    squares = sum((value - mean(values)) ** 2 for values in told for value in values)
    all_alike = squares == 0 or (len(here) > 1 and len(set(here)) == 1)
    if freedom < FEWEST_FREEDOM or all_alike or not math.isfinite(middle):
        return RunsMean(math.exp(middle), math.nan, math.nan)
    half = students_t(freedom) * math.sqrt(squares / freedom / len(here))
    return RunsMean(*(math.exp(value) for value in (middle, middle - half, middle + half)))


def or_never(count: float | None) -> str:
    return "never" if count is None else f"{count:g}"


def run_row(case: Mapping[str, Any], setting: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of one run, given as its JSON: the figures of the table, and what tells it from others."""
    kept = ("mean_ratio", "p95_ratio", "settled", "knew", "changes", "latency_s", "over_limit", "failures")
    peers = {
        name: {"left": found["configuration"]} | {figure: found[figure] for figure in kept}
        for name, found in case["peers"].items()
    }
    of_case = ("model", "arrivals", "seed", "rate_per_s", "best_mean_ms", "best_p95_ms")
    return {**setting, **{name: case[name] for name in of_case}, "peers": peers}
