"""TensorBoard events: one run for each agent, the mean over machines and seeds, so that agents overlay."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from baselines.comparison.run import folder_name
from baselines.comparison.summary import by_agent, by_run
from rrl.views.event_file import FILES, EventFile

FOLDER = "tensorboard"


def write(folder: Path, decisions: np.ndarray) -> None:
    """Writes the events of every agent anew, by decision."""
    for agent, rows in by_agent(decisions):
        own = folder / folder_name(agent)
        for earlier in own.glob(FILES):
            earlier.unlink()
        writer = EventFile(own)
        for tag, means in curves(rows).items():
            for decision, value in enumerate(means.tolist()):
                if np.isfinite(value):
                    writer.add_scalar(tag, value, decision)
        writer.close()


def curves(rows: np.ndarray) -> dict[str, np.ndarray]:
    """(decisions,) the mean over one agent's runs."""
    runs = np.stack([run for _, _, run in by_run(rows)])  # (runs, decisions)
    excess = runs["expected_ms"] - runs["oracle_ms"]
    return {
        "comparison/expected_by_oracle": np.mean(runs["expected_ms"] / runs["oracle_ms"], axis=0),
        "comparison/cumulative_excess": np.mean(np.cumsum(excess, axis=1), axis=0),
        "comparison/cost": np.mean(runs["cost_ms"], axis=0),
        "comparison/expected_cost": np.mean(runs["expected_ms"], axis=0),
        "comparison/slo_violated": np.mean(runs["slo_violated"], axis=0),
        "load/arrivals_per_s": np.mean(runs["arrival_rate_per_s"], axis=0),
        "tuner/decide_ms": np.mean(runs["decide_ms"], axis=0),
    }
