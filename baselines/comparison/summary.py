"""The figures of a comparison: of every run, then over runs as interquartile means with intervals.

| symbol | here | meaning |
|---|---|---|
| e_t | `expected_ms` | expected cost of the configuration in force at decision t = 0, 1, ... |
| o_t | `oracle_ms` | the lowest expected cost of any configuration at that load |
| d | `decisions_until_10_percent` | decisions before e/o <= 1.10, after which the running median stays so |
| | `ratio_after_30` | Σ e_t / Σ o_t over t >= 30 |
| | `excess` | Σ (e_t - o_t) over the whole run |

The running median at t is that of the decisions t-2 .. t+2. So a single exploration, or two in five
decisions, do not undo what was reached. d is infinite for a run that ends above.
`decisions_until_10_percent_of_21` takes the decisions t-10 .. t+10, so that a load which is new and soon gone
does not undo it either.

| over runs | is |
|---|---|
| `iqm` | the interquartile mean, that of the middle half of the runs |
| `low`, `high` | its 95 % interval from bootstrap samples, which draw machines, then seeds of each |
| `median`, `worst` | over machines, each the mean of its seeds |

The intervals follow Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
2021. Machines are resampled too, as they are a sample of a family.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from baselines.comparison.decisions import write_rows
from rrl.knobs import THREAD_KNOBS

FILE_NAME = "summary.csv"
MULTIPLES_FILE_NAME = "excess_multiples.csv"

WITHIN = 1.10  # of the oracle's expected cost
MEDIAN_REACH = 2  # decisions on either side that the running median takes in
LONG_MEDIAN_REACH = 10  # the same for the median over 21 decisions
SOON = 10  # decisions; d counts those before, so that the tenth is near where d is 9
WARM_UP = 30  # decisions that `ratio_after_30` leaves out
AFTER_SLOWDOWN = 60  # decisions after a slow-down that `ratio_60_after_slowdown` leaves out
FAR_P95 = 2.0  # a p95 above so many times the best one is far
RESAMPLES = 2000
CONFIDENCE = 0.95


class Figure(NamedTuple):
    """One figure of a run. Lower is better, except for `share_got_there`."""

    unit: str
    of_run: Callable[[np.ndarray], float]  # the rows of one run, by decision
    trimmed: bool = True  # whether the mean over runs leaves the extreme quarters out


def running_median(values: np.ndarray, reach: int = MEDIAN_REACH) -> np.ndarray:
    """(n,) the median of each value and `reach` neighbours to either side, fewer at the ends."""
    return np.array(
        [np.median(values[max(0, t - reach) : t + reach + 1]) for t in range(len(values))], dtype=float
    )


def decisions_until_within(ratios: np.ndarray, reach: int = MEDIAN_REACH, within: float = WITHIN) -> float:
    """d: how many decisions come before the first one within, after which the running median stays so."""
    outside = np.flatnonzero(running_median(ratios, reach) > within)
    first = outside[-1] + 1 if len(outside) else 0
    inside = np.flatnonzero(ratios[first:] <= within)
    return float(first + inside[0]) if len(inside) else math.inf


def are_soon(until: np.ndarray) -> np.ndarray:
    """(...) bool: of values of d, whether one of the first `SOON` decisions is the first to be near."""
    return until < SOON


def ratio_of_sums(rows: np.ndarray) -> float:
    return float(rows["expected_ms"].sum() / rows["oracle_ms"].sum()) if len(rows) else math.nan


def _until(rows: np.ndarray, reach: int = MEDIAN_REACH) -> float:
    return decisions_until_within(rows["expected_ms"] / rows["oracle_ms"], reach)


def _excess(rows: np.ndarray) -> float:
    return float((rows["expected_ms"] - rows["oracle_ms"]).sum())


def _far_share(rows: np.ndarray) -> float:
    """The share of intervals whose p95 is far from the best. An interval without any answer counts as far."""
    return float(np.mean(~(rows["p95_ms"] <= FAR_P95 * rows["best_p95_ms"])))


def _threads(rows: np.ndarray) -> float:
    threads = np.ones(len(rows))
    for knob in THREAD_KNOBS:
        if knob in (rows.dtype.names or ()):
            threads = threads * rows[knob]
    return float(threads.mean())


def figures(unit: str = "ms", *, slo: bool = False, slowdown: int | None = None) -> dict[str, Figure]:
    """The figures by name. Some have a meaning only with a limit on the p95, or with a slow-down."""
    named = {
        "decisions_until_10_percent": Figure("decisions", _until),
        "decisions_until_10_percent_of_21": Figure("decisions", lambda rows: _until(rows, LONG_MEDIAN_REACH)),
        "share_got_there": Figure("of runs", lambda rows: float(math.isfinite(_until(rows))), False),
        "ratio_whole_run": Figure("x oracle", ratio_of_sums),
        "ratio_after_30": Figure("x oracle", lambda rows: ratio_of_sums(rows[WARM_UP:])),
        "excess": Figure(f"{unit} summed over intervals", _excess),
        "share_p95_over_twice_best": Figure("of intervals", _far_share),
        "mean_threads": Figure("threads", _threads),
        "decide_median_ms": Figure("ms", lambda rows: float(np.median(rows["decide_ms"]))),
        "decide_p99_ms": Figure("ms", lambda rows: float(np.quantile(rows["decide_ms"], 0.99))),
    }
    if slo:
        named["share_slo_violated"] = Figure("of intervals", lambda rows: float(rows["slo_violated"].mean()))
    if slowdown is not None:
        first = slowdown + AFTER_SLOWDOWN
        named["ratio_60_after_slowdown"] = Figure("x oracle", lambda rows: ratio_of_sums(rows[first:]))
    return named


@dataclass(frozen=True)
class RunFigures:
    """(machines, seeds) the value of each figure for every run of one agent."""

    agent: str
    machines: tuple[str, ...]
    values: dict[str, np.ndarray]


def figures_of_runs(decisions: np.ndarray, named: dict[str, Figure]) -> list[RunFigures]:
    """One entry for each agent, in the table's order. Every agent has the same machines and seeds."""
    return [
        RunFigures(
            agent,
            tuple(_in_order(rows["machine"])),
            {name: _by_run(rows, figure) for name, figure in named.items()},
        )
        for agent, rows in by_agent(decisions)
    ]


def by_agent(decisions: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    for agent in _in_order(decisions["agent"]):
        yield agent, decisions[decisions["agent"] == agent]


def by_run(rows: np.ndarray) -> Iterator[tuple[str, int, np.ndarray]]:
    """(machine, seed, its rows) of one agent, in the table's order."""
    for machine in _in_order(rows["machine"]):
        own = rows[rows["machine"] == machine]
        for seed in np.unique(own["seed"]):
            yield machine, int(seed), own[own["seed"] == seed]


def _by_run(rows: np.ndarray, figure: Figure) -> np.ndarray:
    values = [figure.of_run(run) for _, _, run in by_run(rows)]
    return np.reshape(values, (len(_in_order(rows["machine"])), -1))


def _in_order(names: np.ndarray) -> list[str]:
    return list(dict.fromkeys(names.tolist()))


@dataclass(frozen=True)
class AgentSummary:
    """One figure of one agent."""

    agent: str
    figure: str
    unit: str
    iqm: float
    low: float
    high: float
    median: float
    worst: float
    worst_machine: str
    machines: int
    runs: int


def summarise(decisions: np.ndarray, named: dict[str, Figure], seed: int = 0) -> list[AgentSummary]:
    """One row for each agent and figure. The same seed draws the same bootstrap samples."""
    rows = []
    for runs in figures_of_runs(decisions, named):
        for name, figure in named.items():
            values = runs.values[name]
            of_machines = np.mean(values, axis=1)
            rng = np.random.default_rng(seed)
            low, high = bootstrap_interval(values, rng, trimmed=figure.trimmed)
            worst = _worst(of_machines, highest=name != "share_got_there")
            rows.append(
                AgentSummary(
                    agent=runs.agent,
                    figure=name,
                    unit=figure.unit,
                    iqm=interquartile_mean(values) if figure.trimmed else float(np.mean(values)),
                    low=low,
                    high=high,
                    median=float(np.median(of_machines)),
                    worst=float(of_machines[worst]),
                    worst_machine=runs.machines[worst],
                    machines=len(runs.machines),
                    runs=values.size,
                )
            )
    return rows


def _worst(of_machines: np.ndarray, highest: bool) -> int:
    """The index of the worst machine. One with a NaN is it only if all have one."""
    values = np.where(np.isnan(of_machines), -math.inf, of_machines if highest else -of_machines)
    return int(np.argmax(values))


def interquartile_mean(values: np.ndarray) -> float:
    """The mean of the middle half. A quarter of the values, rounded down, is left out at either end."""
    return float(_middle_mean(np.sort(np.ravel(values))))


def bootstrap_interval(
    values: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES, trimmed: bool = True
) -> tuple[float, float]:
    """The 95 % interval of the (interquartile) mean of (machines, seeds), both drawn with replacement."""
    machines, seeds = values.shape
    machine = rng.integers(machines, size=(resamples, machines, 1))
    seed = rng.integers(seeds, size=(resamples, machines, seeds))
    drawn = np.sort(values[machine, seed].reshape(resamples, -1), axis=1)
    tails = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    means = _middle_mean(drawn) if trimmed else np.mean(drawn, axis=1)
    low, high = np.quantile(means, tails, method="inverted_cdf")  # infinite means may occur
    return float(low), float(high)


def _middle_mean(ordered: np.ndarray) -> np.ndarray:
    """(...,) the mean of the middle half over the last axis, which ascends."""
    count = ordered.shape[-1]
    cut = count // 4
    return np.asarray(np.mean(ordered[..., cut : count - cut], axis=-1))


@dataclass(frozen=True)
class Multiple:
    """One agent's excess cost as a multiple of another's."""

    agent: str
    other: str
    multiple: float  # of their interquartile means
    median: float  # over machines with any excess
    worst: float


def excess_multiples(decisions: np.ndarray) -> list[Multiple]:
    """Every agent against every other. NaN: neither has any excess. Infinite: the other alone has none.

    A machine on which neither has any counts neither in the median nor as the worst.
    """
    found = figures_of_runs(decisions, {"excess": figures()["excess"]})
    excess = {runs.agent: runs.values["excess"] for runs in found}
    rows = []
    for agent, own in excess.items():
        for other, theirs in excess.items():
            if agent != other:
                pairs = zip(own.sum(axis=1), theirs.sum(axis=1), strict=True)
                of_machines = [_quotient(a, b) for a, b in pairs if a > 0 or b > 0] or [math.nan]
                multiple = _quotient(interquartile_mean(own), interquartile_mean(theirs))
                worst, median = float(np.max(of_machines)), float(np.median(of_machines))
                rows.append(Multiple(agent, other, multiple, median, worst))
    return rows


def _quotient(a: float, b: float) -> float:
    if b > 0:
        return a / b
    return math.inf if a > 0 else math.nan


def write_summary(path: Path, rows: list[AgentSummary]) -> None:
    write_rows(
        path, tuple(AgentSummary.__dataclass_fields__), (map(_cell, vars(row).values()) for row in rows)
    )


def write_multiples(path: Path, rows: list[Multiple]) -> None:
    write_rows(path, tuple(Multiple.__dataclass_fields__), (map(_cell, vars(row).values()) for row in rows))


def _cell(value: object) -> object:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value
