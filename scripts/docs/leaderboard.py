"""The page of the leaderboard, written from the result files of `rrl-bench` that lie beside it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from baselines.comparison.bench_result import BenchResult
from envs.scenarios.bench import BENCHES, VersionedBench
from envs.scenarios.public_traces import TRACES

ENTRIES = Path(__file__).parents[2] / "docs" / "results" / "leaderboard"

HEAD = """\
---
hide: [toc]
---

# Leaderboard

Agents on the scenarios of `rrl-bench`, the best first.
[Bench your agent](../how-to/bench-agents.md) says how to enter.

The *score* is the geometric mean, over the scenarios, of what an agent's configurations cost by what the
best ones cost, over the whole run. 1 is the oracle, which knows every load and cost beforehand. *Worst* is
the highest such figure of any machine. *Got there* is the mean share of runs that came within 10 % of the
best and stayed. *ms* is the slowest scenario's median time of a decision.

`make docs` writes this page from the result files in `docs/results/leaderboard/`.
"""


class LeaderboardRow(NamedTuple):
    """One agent of one entry."""

    agent: str
    score: float
    worst: float
    got_there: float
    decide_ms: float
    origin: str
    entry: str  # the name of the result file, without its suffix


def leaderboard_page(folder: Path = ENTRIES) -> str:
    """The whole page. ValueError for an entry that is no result, or not of its version's scenarios."""
    parts = [HEAD]
    for bench in BENCHES.values():
        entries = {path.stem: BenchResult.read(path) for path in sorted(folder.glob("*.json"))}
        own = {name: result for name, result in entries.items() if result.bench == bench.version}
        for name, result in own.items():
            if result.fingerprint != bench.fingerprint:
                raise ValueError(f"{folder / name}.json is of other scenarios than those of {bench.version}")
        parts += [f"## {bench.version}\n", *_tables(bench, own), _scenarios(bench)]
    return "\n".join(parts)


def _tables(bench: VersionedBench, entries: dict[str, BenchResult]) -> Iterator[str]:
    """A table for each set of scenarios, the largest first: scores over different ones do not compare."""

    def covered(name: str) -> tuple[int, list[str]]:
        return -len(entries[name].scenarios), sorted(entries[name].scenarios)

    for _, names in groupby(sorted(entries, key=covered), key=covered):
        same = list(names)
        left_out = [each for each in bench.scenarios if each not in entries[same[0]].scenarios]
        title = f"Without {', '.join(left_out)}" if left_out else f"All {len(bench.scenarios)} scenarios"
        rows = sorted((row for name in same for row in _rows(name, entries[name])), key=lambda row: row.score)
        yield "\n".join(
            [
                f"### {title}\n",
                "| agent | score | worst | got there | ms | from | entry |",
                "|---|---|---|---|---|---|---|",
                *map(_line, rows),
                "",
            ]
        )


def _rows(entry: str, result: BenchResult) -> Iterator[LeaderboardRow]:
    for agent, score in result.score.items():
        figures = [scenario["figures"][agent] for scenario in result.scenarios.values()]
        yield LeaderboardRow(
            agent,
            score,
            max(each["ratio_whole_run"]["worst"] for each in figures),
            sum(each["share_got_there"]["mean"] for each in figures) / len(figures),
            max(each["decide_median_ms"]["mean"] for each in figures),
            f"rrl-tune {result.rrl_tune}" if result.agents[agent] == "rrl-tune" else result.agents[agent],
            entry,
        )


def _line(row: LeaderboardRow) -> str:
    cells = (
        f"`{row.agent}`",
        f"{row.score:.3f}",
        f"{row.worst:.2f}",
        f"{row.got_there:.0%}",
        f"{row.decide_ms:.1f}",
        row.origin,
        f"[{row.entry}](leaderboard/{row.entry}.md)",
    )
    return f"| {' | '.join(cells)} |"


def _scenarios(bench: VersionedBench) -> str:
    rows = [
        f"| `{name}` | `{each.machine}` | {each.truth} | "
        f"{each.workload if each.trace is None else f'trace `{each.trace}`'} | {each.decisions} |"
        for name, each in bench.scenarios.items()
    ]
    traces = [
        f"| `{name}` | {trace.what} | {trace.source} | {trace.cite} | `{trace.published_sha256[:12]}` |"
        for name, trace in TRACES.items()
        if name in {each.trace for each in bench.scenarios.values()}
    ]
    return "\n".join(
        [
            f"### Scenarios of {bench.version}\n",
            "| scenario | machines | truth | load | decisions |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "| trace | what it is | where it is from | cite | SHA-256 |",
            "|---|---|---|---|---|",
            *traces,
            "",
        ]
    )
