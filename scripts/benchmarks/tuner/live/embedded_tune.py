"""`embedded-tune`: what `make tune` does, and how far from the best of an exhaustive sweep it ends.

First `rrl-tune` as a newcomer runs it. Then the same server and load again, and every configuration of the
same grid once, in a seeded order, the guard's watch aborting what runs away. Last, because single intervals
are noisy, the start, what was tuned and the sweep's best few are measured in turns.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from envs.live import LiveServing
from rrl.guarding.guard import Guard
from rrl.interval import Watch
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from scripts.serving.in_turns import latencies_in_turns_ms
from scripts.serving.processes import serving, started, tune_command
from serving_adapter.target import OpenInferenceTarget

REACH = 2.0
SWEEP_INTERVAL_S, SWEEP_SETTLE_S = 2.5, 0.5
FINALISTS = 3
ROUNDS, FINAL_INTERVAL_S = 5, 6.0


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        subprocess.run(tune_command("--out", out), check=True)
        header = json.loads((out / "journal.jsonl").read_text().splitlines()[0])
        tuned = yaml.safe_load((out / "best_configuration.yaml").read_text())["configuration"]
    space = ConfigurationSpace.of(**header["space"])
    best = space.number({name: tuned[name] for name in space.names})
    start = space.number({name: header["start"][name] for name in space.names})
    rate_per_s = header["load"]["rate"]
    load = ("--rate", rate_per_s, "--duration-s", 0, "--seed", 1)
    with (
        serving("minilm") as address,
        started("serving_adapter.load.command_line", "--target", address, *load),
    ):
        target = OpenInferenceTarget(address)
        target.connect()
        swept_ms = _sweep(target, space, start)
        finalists = {start, best, *sorted(swept_ms, key=lambda n: swept_ms[n])[:FINALISTS]}
        final_ms = latencies_in_turns_ms(
            target, space, sorted(finalists), ROUNDS, FINAL_INTERVAL_S, SWEEP_SETTLE_S
        )
        target.close()
    sweeps_best = min(final_ms, key=lambda n: final_ms[n])
    gain, distance = final_ms[start] / final_ms[best], final_ms[best] / final_ms[sweeps_best]
    for name, number in (("start", start), ("tuned", best), ("best of the sweep", sweeps_best)):
        print(f"{name:18} {final_ms[number]:8.1f} ms  {space.configuration(number)}")
    print(f"load {rate_per_s}/s; gain {gain:.2f}x; tuned / best of the sweep {distance:.3f}")
    return {
        "value": round(gain, 2),
        "unit": "x lower mean latency than at the start",
        "peer": round(final_ms[start] / final_ms[sweeps_best], 2),
        "ratio": round(distance, 3),
        "reach": REACH,
        "holds": gain >= REACH,
    }


def _sweep(target: OpenInferenceTarget, space: ConfigurationSpace, start: int) -> dict[int, float]:
    """Mean latency in ms of every configuration, one interval each."""
    order = np.random.default_rng(0).permutation(len(space))
    env = LiveServing(target, space, MeanLatency(), SWEEP_INTERVAL_S, SWEEP_SETTLE_S)
    guard = Guard(start)
    watch = Watch(guard.watch)
    env.run(start)
    costs_ms = {}
    for number in map(int, order):
        guard.enter(number)
        costs_ms[number] = env.run(number, watch).cost
    return costs_ms
