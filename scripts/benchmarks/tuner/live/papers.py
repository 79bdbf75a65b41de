"""`live-papers`: our default, RRL, CAPES and DeepRM on the live server, hundreds of intervals side by side.

    scripts/bench live-papers [--intervals 300] [--agents guided rrl-paper capes deeprm] [--out FOLDER]

All tune the embedded server in the same grid of 60 configurations, under the same load, as `rrl-tune` does
with its guard. They take turns, a block of intervals each, in an order that moves on with each turn. So a
slow spell of the machine meets all of them. Each agent's journal is a folder in `--out`. The same command
goes on where it was interrupted, with the same load. What another seed began is refused.

| column | over the intervals that have a cost |
|---|---|
| whole, second half | mean latency |
| against | change of the mean latency against a peer's, with its 95 % interval over blocks |
| aborted | intervals that the guard ended early |
| settled | intervals until nine in ten are within 5 % of the best configuration |

The best is that of the lowest mean over all agents' intervals, of those that had five or more.

RRL's reductions are judged as in its figures (`scripts/figures/rrl/rules.py`), with blocks in place of runs.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from rrl import journal
from rrl.command_line.embedded.embedded import Embedded
from rrl.command_line.embedded.embedded_settings import EmbeddedSettings
from rrl.command_line.embedded.embedded_target import EmbeddedTarget
from rrl.records import Record
from scripts.figures.bootstrap import BootstrapInterval
from scripts.figures.rrl import rules
from scripts.serving.processes import tune_command
from scripts.serving.served_agents import REACH, settled_after
from serving_adapter.flags.parsing import parse
from serving_adapter.whole_files import written_whole

KNOBS = "instances=1:5,intra_op_threads=1:3,max_batch_size=1,2,4,8"
INTERVAL_S, SETTLE_S = 1.5, 0.35
PEER, OURS = "capes", "rrl-paper"
PAPER_PERCENT = {PEER: -79.0, "deeprm": -52.9}  # RRL against each under WiKi, "up to" (section 6.4)
OFTEN = 5  # intervals: the mean of fewer may be low by chance
SERVER_FILE = "server.json"  # the load and the ports, which stay those of the first start


@dataclass(frozen=True)
class Options:
    """Lets the papers' agents tune the embedded server in turns."""

    agents: tuple[str, ...] = ("guided", OURS, PEER, "deeprm")
    """The agents."""
    intervals: int = 300
    """Of every agent."""
    block: int = 50
    """Intervals of an agent until the next one's turn."""
    seed: int = 0
    """Of the agents and of the load."""
    out: Path = Path("runs/live-papers")
    """Folder for the journals; the same command goes on with what is there."""

    def __post_init__(self) -> None:
        if not {PEER, OURS} <= set(self.agents):
            raise ValueError(f"--agents must name {OURS} and {PEER}, which are compared")
        if not 1 <= self.block <= self.intervals:
            raise ValueError(f"--block must be from 1 to --intervals, got {self.block}")


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    complete(options)
    records = {agent: tuned(options.out / agent)[: options.intervals] for agent in options.agents}
    print("\n".join(table(records, options.block)))
    return outcome(records, options.block)


def complete(options: Options) -> None:
    """Runs what is missing of all agents' intervals; ValueError where those there are of another seed."""
    for agent in options.agents:
        _check_seed(options.out / agent, options.seed)
    rounds = math.ceil(options.intervals / options.block)
    wanted = [min(options.intervals, (k + 1) * options.block) for k in range(rounds)]
    turns = [(agent, until) for k, until in enumerate(wanted) for agent in _turned(options.agents, k)]
    left = [(agent, until) for agent, until in turns if len(tuned(options.out / agent)) < until]
    if not left:
        return
    embedded = _embedded(options)
    try:
        embedded.start_server()
        embedded.start_load()
        _keep(options, embedded)
        target = EmbeddedTarget(embedded)
        target.connect()
        found = target.configuration()
        for agent, until in left:
            target.apply(found)
            print(f"{agent}: until interval {until}", flush=True)
            _tune(options, embedded.address, agent, until)
            embedded.check()
        target.close()
    finally:
        embedded.close()


def _check_seed(folder: Path, seed: int) -> None:
    if not journal.has_begun(folder):
        return
    header, _ = journal.read(folder)
    if header.seed != seed:
        raise ValueError(f"{folder} holds a run of seed {header.seed}, not of {seed}: give another --out")


def _turned(agents: Sequence[str], turn: int) -> Sequence[str]:
    first = turn % len(agents)
    return (*agents[first:], *agents[:first])


def _tune(options: Options, address: str, agent: str, until: int) -> None:
    """`rrl-tune`, up to so many intervals."""
    folder = options.out / agent
    arguments: list[object] = ["--target", address, "--intervals", until, "--validation", 0]
    if journal.has_begun(folder):
        arguments += ["--resume", folder]
    else:
        arguments += ["--agent", agent, "--seed", options.seed, "--out", folder, "--knobs", *KNOBS.split(" ")]
        arguments += ["--interval-s", INTERVAL_S, "--settle-s", SETTLE_S]
    with (options.out / f"{agent}.log").open("a") as log:
        status = subprocess.run(tune_command(*arguments), stdout=log, stderr=log).returncode
    if status:
        raise RuntimeError(f"rrl-tune ended with status {status} (see {options.out / agent}.log)")


def _embedded(options: Options) -> Embedded:
    """The server, with load and ports of the run so far: a journal goes on with its own target only."""
    path = options.out / SERVER_FILE
    kept: dict[str, Any] = {"rate_per_s": None, "ports": ("0", "0")}
    if path.exists():
        kept = json.loads(path.read_text())
    settings = EmbeddedSettings(rate_per_s=kept["rate_per_s"], seed=options.seed)
    found = Embedded(options.out / "server", settings)
    found.ports = (kept["ports"][0], kept["ports"][1])
    return found


def _keep(options: Options, embedded: Embedded) -> None:
    kept = {"rate_per_s": embedded.rate_per_s, "ports": embedded.ports}
    with written_whole(options.out / SERVER_FILE) as file:
        file.write(json.dumps(kept).encode() + b"\n")


def tuned(folder: Path) -> list[Record]:
    """The intervals that an agent decided; none where the run has not begun."""
    if not journal.has_begun(folder):
        return []
    _, records = journal.read(folder)
    return [record for record in records if record.kind == "tune" and record.counted]


def costs(records: Sequence[Record], block: int) -> np.ndarray:
    """(blocks,) mean costs of the intervals that have one."""
    each = np.array([record.cost for record in records])
    each[~np.isfinite(each)] = np.nan
    return np.array([float(np.nanmean(each[k : k + block])) for k in range(0, len(each), block)])


def change(
    records: Mapping[str, Sequence[Record]], agent: str, block: int, peer: str = PEER
) -> BootstrapInterval:
    """Of an agent's mean latency against a peer's, in percent."""
    ours, theirs = (costs(records[name], block) for name in (agent, peer))
    blocks = min(len(ours), len(theirs))
    return rules.percent_change(ours[:blocks], theirs[:blocks])


def verdicts(records: Mapping[str, Sequence[Record]], block: int) -> dict[str, str]:
    """Of RRL's reduction against each of the paper's peers that ran."""
    blocks = len(costs(records[OURS], block))
    return {
        peer: rules.judged(blocks, rules.verdict_of_reduction(percent, change(records, OURS, block, peer)))
        for peer, percent in PAPER_PERCENT.items()
        if peer in records
    }


def table(records: Mapping[str, Sequence[Record]], block: int) -> list[str]:
    """A line for each agent, and one for each of the paper's peers."""
    means_ms = _means_ms(records)
    lines = [
        f"{'agent':12} {'whole ms':>9} {'second half':>11} {'aborted':>8} {'settled':>8}  against {PEER}"
    ]
    for agent, each in records.items():
        half = costs(each[len(each) // 2 :], len(each))
        settled = settled_after(_near_best(each, means_ms))
        aborted = sum(bool(record.measurement.aborted) for record in each)
        lines.append(
            f"{agent:12} {np.mean(costs(each, len(each))):9.1f} {np.mean(half):11.1f} {aborted:8} "
            f"{settled or '-':>8}  {change(records, agent, block).text('+.0f', ' %')}"
        )
    return lines + [
        f"{OURS} against {peer}: {change(records, OURS, block, peer).text('+.0f', ' %')}, "
        f"in the paper up to {PAPER_PERCENT[peer]:+.1f} %: {verdict}"
        for peer, verdict in verdicts(records, block).items()
    ]


def outcome(records: Mapping[str, Sequence[Record]], block: int) -> dict[str, Any]:
    """RRL's mean latency beside CAPES', and the verdicts."""
    means = {agent: float(np.mean(costs(each, len(each)))) for agent, each in records.items()}
    against = change(records, OURS, block)
    return {
        "value": round(means[OURS], 3),
        "unit": "ms mean latency over the whole run",
        "peer": round(means[PEER], 3),
        "ratio": round(means[OURS] / means[PEER], 4),
        "reach": 1.0,
        "holds": bool(against.high < 0),
        "percent": [round(value, 1) for value in against],
        "verdicts": verdicts(records, block),
        "agents_ms": {agent: round(ms, 3) for agent, ms in means.items()},
        "intervals": {agent: len(each) for agent, each in records.items()},
    }


def _means_ms(records: Mapping[str, Sequence[Record]]) -> dict[int, float]:
    """Mean cost of each configuration that was measured often, by all agents' intervals."""
    by_number: dict[int, list[float]] = {}
    for record in chain.from_iterable(records.values()):
        if math.isfinite(record.cost):
            by_number.setdefault(record.number, []).append(record.cost)
    return {number: mean(each) for number, each in by_number.items() if len(each) >= OFTEN}


def _near_best(records: Sequence[Record], means_ms: Mapping[int, float]) -> list[bool]:
    """Whether each interval ran a configuration near the best."""
    lowest = min(means_ms.values(), default=math.nan)
    return [means_ms.get(record.number, math.inf) <= REACH * lowest for record in records]
