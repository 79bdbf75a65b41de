"""`compare`: how long a comparison of ten agents takes, the deep ones and the slow ones among them.

10 agents x 10 seeds x 400 decisions on one machine of 1,000 configurations, over two processes: what
`rrl-compare` does from its start to its last picture.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from baselines.comparison import read_decisions
from baselines.comparison.summary import by_agent

AGENTS = (
    "guided",
    "rrl-paper",
    "rrl-released",
    "capes",
    "deeprm",
    "dqn",
    "ppo",
    "gp-bandit",
    "optuna-tpe",
    "random",
)
SEEDS, DECISIONS, PROCESSES = 10, 400, 2
REACH_MINUTES = 10.0


def run(agents: tuple[str, ...] = AGENTS, seeds: int = SEEDS, decisions: int = DECISIONS) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "--agents": ",".join(agents),
            "--machine": "family:1000",
            "--seeds": seeds,
            "--decisions": decisions,
            "--processes": PROCESSES,
            "--out": folder,
        }
        flags = [str(part) for pair in options.items() for part in pair]
        began_s = perf_counter()
        subprocess.run([sys.executable, "-m", "baselines.comparison.command_line", *flags], check=True)
        minutes = (perf_counter() - began_s) / 60
        table = read_decisions(Path(folder) / "decisions.csv")
    print(f"{'agent':14} {'ms a decision':>14} {'of all runs, s':>15}")
    for agent, rows in by_agent(table):
        print(f"{agent:14} {np.mean(rows['decide_ms']):14.2f} {np.sum(rows['decide_ms']) / 1e3:15.1f}")
    return {
        "value": round(minutes, 2),
        "unit": f"minutes for {len(agents)} agents x {seeds} seeds x {decisions} decisions",
        "peer": None,
        "ratio": round(minutes / REACH_MINUTES, 3),
        "reach": REACH_MINUTES,
        "holds": minutes <= REACH_MINUTES,
    }
