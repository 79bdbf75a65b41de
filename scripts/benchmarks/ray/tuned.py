"""`ray-tune`: what rrl-tune leaves on a cluster, against a sweep, and against Optuna in its measurements.

MiniLM is served on two nodes, first by `rrl-serve`, then by a stock application of Ray Serve. Each starts
with one worker and no batches, which cannot bear the load. `rrl-tune` runs as it is, behind its guard and
validation, and so does Optuna. The words are those of `scripts.serving.against_sweep`.

    scripts/bench ray-tune [--seeds 3] [--out FILE.jsonl] [--quick]

With `--out`, what is over is a line at once. What the file has is not done again. It is of the same lengths,
or it is refused.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rrl.space import ConfigurationSpace
from scripts.benchmarks.ray.nodes import nodes
from scripts.benchmarks.ray.stock import SPREAD, StockMiniLM
from scripts.benchmarks.triton.served import COLD_S
from scripts.kept_rows import KeptRows, setting_of
from scripts.serving.against_sweep import AgainstSweep, Run, Window, searching, window_of
from scripts.serving.client_log import Requests
from scripts.serving.processes import check_under_way, ended_well, serving, started, tune_command
from serving_adapter.flags.parsing import parse
from serving_adapter.target import OpenInferenceTarget
from serving_adapter.target.ray_serve.ray_serve_target import RayServeTarget
from serving_adapter.target.target import Target

AGENTS = ("guided", "optuna-tpe")
REACH = 1.1
LIMIT_S = 3600.0  # of one run


@dataclass(frozen=True)
class Options:
    """Tunes a server on a cluster, and a stock Ray Serve application."""

    seeds: int = 2
    """Runs of each agent."""
    intervals: int = 30
    """Decisions of a run."""
    interval_s: float = 5.0
    """Length of an interval."""
    window_s: float = 15.0
    """Length of a window of the sweep."""
    rounds: int = 3
    """Turns at the end."""
    out: Path | None = None
    """A file that gets a line for whatever is over; what it has is not done again."""
    quick: bool = False
    """Short windows and runs: only to see that it works."""


@dataclass(frozen=True)
class Tuned:
    """A server that is tuned, its load, and how `rrl-tune` is told of them."""

    target: Target
    arguments: Sequence[object]
    knobs: str
    load: tuple[str, ...]  # a module, and its arguments but for --seed, --duration-s and --out
    options: Options

    @property
    def space(self) -> ConfigurationSpace:
        return ConfigurationSpace.parse(self.knobs)

    def window(self, number: int, window_s: float) -> Window:
        """What clients see of a configuration."""
        self.target.apply(self.space.configuration(number))
        with tempfile.TemporaryDirectory(prefix="rrl-ray-") as folder:
            with self._requests(1, COLD_S + window_s, Path(folder)) as load:
                ended_well(load, COLD_S + window_s + 120)
            return window_of(Requests.read(Path(folder)).after(COLD_S))

    def run(self, agent: str, seed: int) -> Run:
        """One run of an agent, from the first configuration on, under endless load."""
        self.target.apply(self.space.configuration(0))
        options = self.options
        with tempfile.TemporaryDirectory(prefix="rrl-ray-") as folder:
            place, out = Path(folder) / "load", Path(folder) / "run"
            how = ("--agent", agent, "--knobs", self.knobs, "--seed", seed, "--out", out)
            pace = ("--intervals", options.intervals, "--interval-s", options.interval_s)
            command = tune_command(*self.arguments, *how, *pace)
            with self._requests(100 + seed, 0, place) as load:
                subprocess.run(command, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
                check_under_way(load, agent)
            numbers = [record.number for record in searching(out)]
            failed = Requests.read(place).failures
        kept = self.space.number({name: self.target.configuration()[name] for name in self.space.names})
        return {"kept": kept, "numbers": numbers, "failed": failed}

    @contextlib.contextmanager
    def _requests(self, seed: int, duration_s: float, folder: Path) -> Iterator[subprocess.Popen[str]]:
        when = ("--seed", seed, "--duration-s", duration_s, "--out", folder)
        with started(*self.load, *when, patience_s=120.0) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("sending"):
                raise RuntimeError(f"the load did not start: {line.strip() or 'it said nothing'}")
            yield process


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    if options.quick:
        options = replace(options, seeds=1, intervals=4, interval_s=2.0, window_s=3.0, rounds=1)
    rows = rows_of(options)
    found = {}
    for name, served in {"rrl-serve": on_rrl_serve, "Ray Serve": on_ray_serve}.items():
        with served(options) as tuned:
            against_sweep = AgainstSweep(
                AGENTS, options.seeds, options.window_s, options.rounds, tuned.window, tuned.run, rows, name
            )
            print(name, flush=True)
            found[name] = against_sweep.outcome(range(len(tuned.space)), REACH)
    worst = max(found.values(), key=lambda each: float(each["value"]))
    return worst | {
        "holds": all(each["holds"] for each in found.values()),
        "by_server": {name: each["value"] for name, each in found.items()},
        "measurements": {name: each["measurements"] for name, each in found.items()},
        "failed": {name: each["failed"] for name, each in found.items()},
        "commits": rows.commits,
    }


def rows_of(options: Options) -> KeptRows:
    """What the file has of the same lengths; of others it is refused."""
    setting = {"benchmark": "ray-tune"} | setting_of(options, "seeds", "rounds", "out")
    return KeptRows(options.out, ("what",), setting)


@contextlib.contextmanager
def on_rrl_serve(options: Options) -> Iterator[Tuned]:
    with (
        nodes() as cluster,
        serving("minilm", "--engine", "ray", "--address", cluster.address) as address,
        contextlib.closing(OpenInferenceTarget(address)) as target,
    ):
        target.connect()
        load = ("serving_adapter.load.command_line", "--target", address, "--rate", "35", "--requests")
        knobs = "instances=1:2,intra_op_threads=1,2,max_batch_size=1,4,8"
        yield Tuned(target, ("--target", address), knobs, load, options)


@contextlib.contextmanager
def on_ray_serve(options: Options) -> Iterator[Tuned]:
    with nodes(dashboard=True, settings=SPREAD) as cluster, StockMiniLM.on(cluster.dashboard) as stock:
        place = f"ray://{cluster.dashboard}"
        deployment = "minilm#MiniLMDeployment"
        with contextlib.closing(RayServeTarget(place, deployment)) as target:
            target.connect()
            load = ("scripts.benchmarks.ray.http_load", "--port", str(stock.port), "--rate", "20")
            knobs = "instances=1:2,max_batch_size=1,4,16,max_queue_delay_us=0,20000"
            yield Tuned(target, ("--target", place, "--deployment", deployment), knobs, load, options)
