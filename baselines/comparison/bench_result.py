"""What a run of a bench found, as one JSON file that does not change its form.

| key | what it is |
|---|---|
| `format` | `rrl-bench-result/1` |
| `bench`, `fingerprint` | the version and what its scenarios are known by |
| `rrl_tune` | the version that ran it |
| `agents` | for each agent where it is from |
| `scenarios` | for each scenario that ran: its machines, and for each agent its `FIGURES` |
| `left_out` | for each other scenario why it did not run |
| `score` | for each agent the geometric mean of `ratio_whole_run` over the scenarios that ran |

A score of 1 is the oracle's: the best configuration for every load, known beforehand. Scores of results with
other scenarios do not compare, so a place on the leaderboard takes all of a version's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from baselines.agents import origin
from baselines.comparison.summary import AgentSummary
from envs.scenarios.bench import VersionedBench
from rrl.declared_types import mistyped
from serving_adapter.whole_files import written_whole

FORMAT = "rrl-bench-result/1"
FIGURES = (
    "ratio_whole_run",
    "ratio_after_30",
    "decisions_until_10_percent",
    "share_got_there",
    "share_p95_over_twice_best",
    "decide_median_ms",
)
"""Those of `summary` that a result holds: the interquartile mean over the runs, its interval, the worst."""

SCORED = "ratio_whole_run"
FILE_NAME = "result.json"


@dataclass(frozen=True)
class BenchResult:
    """The file's contents."""

    bench: str
    fingerprint: str
    rrl_tune: str
    agents: dict[str, str]
    scenarios: dict[str, dict[str, Any]]
    left_out: dict[str, str]
    score: dict[str, float]
    format: str = FORMAT

    def write(self, path: Path) -> None:
        with written_whole(path) as file:
            file.write(f"{json.dumps(asdict(self), indent=2)}\n".encode())

    @classmethod
    def read(cls, path: Path) -> BenchResult:
        """ValueError with one sentence for a file that is no result."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            result = cls(**{field.name: values[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(f"{path} is not a result of rrl-bench") from None
        if result.format != FORMAT or mistyped(result):
            raise ValueError(f"{path} is not a result of rrl-bench in the format {FORMAT}")
        return result


def result_of(
    bench: VersionedBench, summaries: Mapping[str, Sequence[AgentSummary]], left_out: dict[str, str]
) -> BenchResult:
    """The result of a bench, from the summaries of the scenarios that ran."""
    agents = list(dict.fromkeys(row.agent for rows in summaries.values() for row in rows))
    scenarios = {name: _scenario(bench, name, rows) for name, rows in summaries.items()}
    return BenchResult(
        bench=bench.version,
        fingerprint=bench.fingerprint,
        rrl_tune=version("rrl-tune"),
        agents={agent: origin(agent) for agent in agents},
        scenarios=scenarios,
        left_out=left_out,
        score={agent: _score(scenarios, agent) for agent in agents},
    )


def _scenario(bench: VersionedBench, name: str, rows: Sequence[AgentSummary]) -> dict[str, Any]:
    figures: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.figure in FIGURES:
            values = {"mean": row.iqm, "low": row.low, "high": row.high, "worst": row.worst}
            found = {key: _number(value) for key, value in values.items()}
            figures.setdefault(row.agent, {})[row.figure] = found
    return asdict(bench.scenarios[name]) | {"runs": rows[0].runs, "figures": figures}


def _score(scenarios: Mapping[str, dict[str, Any]], agent: str) -> float:
    ratios = [scenario["figures"][agent][SCORED]["mean"] for scenario in scenarios.values()]
    return round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 4)


def _number(value: float) -> float | None:
    """Six digits are enough for a figure. JSON has none for what was never reached."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
