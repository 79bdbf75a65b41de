"""The table of the default agent's reach, from folders that `rrl-compare` wrote.

Each row sets a limit and gives what was measured, over machines (each the mean of its seeds). A folder's
comparison decides which rows it fills: its workload, its truth, and its agents.

Decisions until within 10 % are judged as `rrl-compare` counts them, by a running median of five decisions.
Beside it stands the count without the median: all decisions up to the last that was further away. A single
exploration late in the run makes that one large.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from baselines import DEFAULT_AGENT
from baselines.comparison.comparison import BENCH_FILE
from baselines.comparison.decisions import FILE_NAME, read_decisions
from baselines.comparison.summary import (
    SOON,
    Figure,
    are_soon,
    decisions_until_within,
    excess_multiples,
    figures,
    figures_of_runs,
)
from envs.scenarios.families import SLOWDOWN_AT

MODEL, SLOWDOWN = "model", "slowdown"  # truths

SOON_SHARE = 0.95  # of the machines
NEAR, NEAR_WHERE_NOT_MODEL, NEAR_AFTER_SLOWDOWN = 1.03, 1.10, 1.05  # times the oracle's cost
LARGEST_EXCESS = {  # excess cost of the default agent as a share of the other agent's
    "gp-bandit": 1 / 3,
    "rrl-released": 1 / 5,
    "capes": 1 / 30,
    "deeprm": 1 / 30,
    "capes-tuned": 1 / 10,
    "deeprm-tuned": 1 / 10,
    "dqn": 1 / 10,
    "ppo": 1 / 10,
}
MEDIAN_MS, P99_MS = 10.0, 30.0  # CPU time of a decision

LAST_OUTSIDE = "decisions_until_last_outside"
"""Decisions until within 10 %, judged without a running median."""


def _until_last_outside(rows: np.ndarray) -> float:
    return decisions_until_within(rows["expected_ms"] / rows["oracle_ms"], reach=0)


@dataclass(frozen=True)
class Compared:
    """One folder of `rrl-compare`."""

    workload: str
    truth: str
    decisions: np.ndarray

    @classmethod
    def read(cls, folder: Path) -> Compared:
        """The comparison; ValueError where the folder holds none, or none with the default agent."""
        try:
            bench = json.loads((folder / BENCH_FILE).read_text(encoding="utf-8"))
            workload, truth = str(bench["workload"]), str(bench["truth"])
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{folder} is no folder of rrl-compare: {error}") from error
        decisions = read_decisions(folder / FILE_NAME)
        if DEFAULT_AGENT not in decisions["agent"]:
            raise ValueError(f"{folder} holds no run of {DEFAULT_AGENT!r}; name it among --agents")
        return cls(Path(workload).name, truth, decisions)

    @property
    def load(self) -> str:
        """The workload, and for how long."""
        return f"{self.workload}, {int(self.decisions['decision'].max()) + 1} decisions"

    def by_machine(self, figure: str, agent: str = DEFAULT_AGENT) -> np.ndarray:
        """(machines,) a figure of `rrl-compare`, or `LAST_OUTSIDE`, each the mean over its seeds."""
        named = figures(slowdown=SLOWDOWN_AT) | {LAST_OUTSIDE: Figure("decisions", _until_last_outside)}
        rows = self.decisions[self.decisions["agent"] == agent]
        (runs,) = figures_of_runs(rows, {figure: named[figure]})
        means: np.ndarray = runs.values[figure].mean(axis=1)
        return means


class ReachRow(NamedTuple):
    what: str
    limit: str
    measured: str
    holds: bool


def reach_table(folders: Sequence[Path]) -> str:
    """The table in Markdown. A row that no folder fills is left out."""
    compared = [Compared.read(folder) for folder in folders]
    on_model = [c for c in compared if c.truth == MODEL]
    elsewhere = [c for c in compared if c.truth not in (MODEL, SLOWDOWN)]
    slowed = [c for c in compared if c.truth == SLOWDOWN]
    rows = [row(c) for row in (_soon, _near) for c in on_model]
    rows += [row for c in on_model for row in _excess(c)]
    rows += [_far(c) for c in on_model if "oracle" in c.decisions["agent"]]
    rows += [_near_where_not_model(c) for c in elsewhere] + [_after_slowdown(c) for c in slowed]
    rows += _speed(on_model)
    lines = ["| | reach | here | holds |", "|---|---|---|---|"]
    lines += [f"| {r.what} | {r.limit} | {r.measured} | {'yes' if r.holds else 'no'} |" for r in rows]
    return "\n".join(lines)


def _soon(c: Compared) -> ReachRow:
    until = c.by_machine("decisions_until_10_percent")
    stuck, soon = int(np.isinf(until).sum()), int(are_soon(until).sum())
    needed = int(np.ceil(SOON_SHARE * len(until)))
    strict = c.by_machine(LAST_OUTSIDE)
    return ReachRow(
        f"decisions until within 10 % of the oracle, and staying (running median of 5): {c.load}",
        f"by decision {SOON} on {needed} of {len(until)} machines, none stuck",
        f"by decision {SOON} on {soon}; median {_middle(until)}, worst {np.max(until):.0f}, {stuck} stuck. "
        f"Until the last single decision outside: by decision {SOON} on {int(are_soon(strict).sum())}, "
        f"median {_middle(strict)}, worst {np.max(strict):.0f}",
        soon >= needed and not stuck,
    )


def _near(c: Compared) -> ReachRow:
    what = f"expected latency by the oracle's, after decision 30: {c.load}"
    return _ratio(what, c.by_machine("ratio_after_30"), NEAR, np.median)


def _near_where_not_model(c: Compared) -> ReachRow:
    what = f"the same where the truth is not the model: {c.truth}, {c.load}"
    return _ratio(what, c.by_machine("ratio_after_30"), NEAR_WHERE_NOT_MODEL, np.max)


def _after_slowdown(c: Compared) -> ReachRow:
    what = f"60 decisions after the machine slowed down, by the new oracle's: {c.load}"
    return _ratio(what, c.by_machine("ratio_60_after_slowdown"), NEAR_AFTER_SLOWDOWN, np.median)


def _ratio(what: str, ratios: np.ndarray, limit: float, judged: Callable[[np.ndarray], float]) -> ReachRow:
    """`judged` picks what the limit is for, the median or the worst machine. Both are shown."""
    which = "the worst" if judged is np.max else "the median"
    measured = f"median {np.median(ratios):.3f}, worst {np.max(ratios):.3f}"
    return ReachRow(what, f"{which} at most {limit:.2f}", measured, bool(judged(ratios) <= limit))


def _excess(c: Compared) -> list[ReachRow]:
    shares = {m.other: m for m in excess_multiples(c.decisions) if m.agent == DEFAULT_AGENT}
    return [
        ReachRow(
            f"excess latency over the whole run, by that of {other}: {c.load}",
            f"the median at most 1/{1 / limit:.0f}",
            f"median {_share(shares[other].median)}, worst {_share(shares[other].worst)}",
            bool(shares[other].median <= limit),
        )
        for other, limit in LARGEST_EXCESS.items()
        if other in shares
    ]


def _share(share: float) -> str:
    """A share of another agent's excess in words, such as `1/3.2`."""
    return f"1/{1 / share:.1f}" if 0 < share < 1 else f"{share:.2f}"


def _far(c: Compared) -> ReachRow:
    ours, oracles = (c.by_machine("share_p95_over_twice_best", agent) for agent in (DEFAULT_AGENT, "oracle"))
    return ReachRow(
        f"intervals with p95 over twice the best p95: {c.load}",
        "at most twice the oracle's share",
        f"{100 * ours.mean():.2f} % against {100 * oracles.mean():.2f} %",
        bool(ours.mean() <= 2 * oracles.mean()),
    )


def _speed(compared: Sequence[Compared]) -> list[ReachRow]:
    if not compared:
        return []
    times_ms = np.concatenate(
        [c.decisions["decide_ms"][c.decisions["agent"] == DEFAULT_AGENT] for c in compared]
    )
    median, p99 = np.quantile(times_ms, [0.5, 0.99])
    return [
        ReachRow(
            "CPU time of a decision",
            f"median {MEDIAN_MS:.0f} ms, p99 {P99_MS:.0f} ms",
            f"median {median:.1f} ms, p99 {p99:.1f} ms",
            bool(median <= MEDIAN_MS and p99 <= P99_MS),
        )
    ]


def _middle(values: np.ndarray) -> str:
    """The median. It is the higher of two middle values, so that infinity (never) is not averaged."""
    return f"{np.sort(values)[len(values) // 2]:.0f}"
