"""What agents decide, and what a journal is read as, stays as it was recorded.

`tests/recorded/` holds the journals of three live runs: the embedded server, the same under bursts with
another agent, and a stock Triton. Beside them lies what a replay of each gave, and what four agents decided
in `rrl-compare`. A change that is meant records them anew: `python -m tests.test_unchanged_behaviour FOLDER`.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from baselines import make_agent
from baselines.comparison.command_line import main as compare
from rrl import journal
from rrl.agent import Task
from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.objective import make_objective
from rrl.views.summary import reference_table_of, summarise

RECORDED = Path(__file__).parent / "recorded"
RUNS = ("embedded", "bursts", "triton")
KNOBS = ("instances", "intra_op_threads", "max_batch_size")
COMPARISON = (
    *("--machine", "family:0-2", "--agents", "guided,rrl-paper,capes,gp-bandit", "--seeds", "1"),
    *("--decisions", "20", "--knobs", "instances=1:3,intra_op_threads=1,2,max_batch_size=1,2,4,8"),
)


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def replayed(run: str) -> dict[str, Any]:
    """What agent, guard and summary make of a recorded journal, interval by interval."""
    header, records = journal.read(RECORDED / run)
    objective = make_objective(header.objective, header.slo_p95_ms)
    agent = make_agent(header.agent, Task(header.space, objective, 2, settles=True), header.seed)
    guard = Guard(header.space.number(header.start), GuardSettings(slo_p95_ms=header.slo_p95_ms))
    rows = []
    for record in records:
        guard.replay(record)
        if record.counted:
            agent.update(record.lesson)
        elif record.not_taken:
            agent.refused(record.number)
        agent.finish_training()
        proposal = header.space.number_of_action(agent.act(record.transition.next_observation))
        told = [proposal, agent.recommended(), agent.explain()]
        rows.append([*told, guard.best, guard.takes_over, guard.to_keep()])
    summary = summarise(header, records)
    return {
        "intervals": rows,
        "left": summary.kept,
        "why_left": summary.why_kept,
        "gain": summary.gain,
        "validated": summary.validated,
        "turns": list(summary.turns),
        "exploration": list(summary.exploration),
        "table": reference_table_of(header, records).to_yaml()["levels"],
    }


def decided(folder: Path) -> dict[str, Any]:
    """By agent and machine: the configurations in force, and what their intervals cost."""
    compare([*COMPARISON, "--out", str(folder), "--processes", "2"])
    runs: dict[str, Any] = {}
    with (folder / "decisions.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["agent"] != "oracle":
                run = runs.setdefault(
                    f"{row['agent']} on {row['machine']}", {"configurations": [], "costs_ms": []}
                )
                run["configurations"].append("/".join(row[name] for name in KNOBS))
                run["costs_ms"].append(float(row["cost_ms"]))
    return runs


def are_alike(values: Any, others: Any) -> bool:
    """Whether all is the same but the last digits of numbers, which differ between processors."""
    if isinstance(values, dict):
        return values.keys() == others.keys() and all(are_alike(values[k], others[k]) for k in values)
    if isinstance(values, list):
        return len(values) == len(others) and all(map(are_alike, values, others))
    if isinstance(values, float):
        return math.isclose(values, others, rel_tol=1e-9, abs_tol=1e-12)
    return bool(values == others)


@pytest.mark.parametrize("run", RUNS)
def test_a_stored_journal_is_replayed_as_it_was(run: str) -> None:
    assert are_alike(json.loads(json.dumps(replayed(run))), recorded("replays")[run])


def test_agents_decide_as_they_did(tmp_path: Path) -> None:
    assert are_alike(decided(tmp_path), recorded("decisions"))


if __name__ == "__main__":
    for name, values in (
        ("replays", {run: replayed(run) for run in RUNS}),
        ("decisions", decided(Path(sys.argv[1]))),
    ):
        (RECORDED / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
