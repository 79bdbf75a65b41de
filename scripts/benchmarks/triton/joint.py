"""`triton-joint`: two models of a stock Triton tuned together, against in turn, and Optuna over their grid.

Both models are under load all the time, each at a share of what its start serves of a burst alone. First the
joint grid is swept, with the two models' requests together. Then each agent tunes by `rrl-tune`, behind its
guard and validation. *Latency* is the mean of both models' requests, as clients see it; the other words are
those of `scripts.serving.against_sweep`.

    scripts/bench triton-joint [--models minilm efficientnet_lite0] [--agents guided optuna-tpe] [--seeds 3]
                               [--out FILE.jsonl] [--quick]

With `--out`, a window of the sweep, a run and a turn at the end are a line each as soon as they are over.
What the file has is not done again. It is of the same models, load and lengths, or it is refused.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rrl import journal
from rrl.joint import JointSpace, of_models
from rrl.space import ConfigurationSpace
from scripts.benchmarks.triton.served import (
    COLD_S,
    OPTIONS,
    TRITONS_DEFAULT,
    Traffic,
    Triton,
    capacity_per_s,
    load,
)
from scripts.kept_rows import KeptRows, setting_of
from scripts.serving.against_sweep import AgainstSweep, Window, searching, window_of
from scripts.serving.client_log import Requests
from scripts.serving.processes import check_under_way, ended_well, tune_command
from scripts.triton_server.repository import ModelSpec, write_repository
from scripts.triton_server.running import running
from serving_adapter.flags.parsing import parse
from serving_adapter.target import OpenInferenceTarget
from serving_adapter.target.open_inference.joint_target import JointTarget

TOGETHER, IN_TURN = "guided", "in turn"
KNOBS = "instances=1:2,intra_op_threads=1,2,max_batch_size=1,8"
REACH = 1.05
START = {name: TRITONS_DEFAULT[name] for name in ("instances", "intra_op_threads", "max_batch_size")}
LIMIT_S = 3600.0  # of one run


@dataclass(frozen=True)
class Options:
    """Tunes two models of a stock Triton together."""

    models: tuple[str, ...] = ("minilm", "efficientnet_lite0")
    """Two models."""
    load: float = 0.4
    """Share of the rate at which each start serves a burst alone."""
    cores: int = 4
    """Budget: threads of both models."""
    agents: tuple[str, ...] = (TOGETHER, IN_TURN, "optuna-tpe")
    """Which agents."""
    seeds: int = 2
    """Runs of each agent."""
    intervals: int = 30
    """Decisions of a run."""
    interval_s: float = 5.0
    """Length of an interval."""
    window_s: float = 10.0
    """Length of a window of the sweep."""
    rounds: int = 3
    """Turns at the end."""
    out: Path | None = None
    """A file that gets a line for whatever is over; what it has is not done again."""
    quick: bool = False
    """Two light models, short windows and runs: a first look."""

    def __post_init__(self) -> None:
        if len(set(self.models)) != 2:
            raise ValueError(f"--models must name two models, got {', '.join(self.models)}")
        if TOGETHER not in self.agents:
            raise ValueError(f"give {TOGETHER} among the --agents")


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    kinds = {name: name for name in options.models}
    if options.quick:
        kinds = {"first": "burn", "second": "burn"}
        options = replace(
            options, models=tuple(kinds), seeds=1, intervals=6, interval_s=2.0, window_s=5.0, rounds=1
        )
    rows = rows_of(options)
    member = ConfigurationSpace.parse(KNOBS)
    space = JointSpace(dict.fromkeys(options.models, member)).space
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rrl-joint-")))
        bench = stack.enter_context(_served(options, kinds, folder))
        against_sweep = AgainstSweep(
            (TOGETHER, *(name for name in options.agents if name != TOGETHER)),
            options.seeds,
            options.window_s,
            options.rounds,
            lambda number, window_s: bench.window(space.configuration(number), window_s),
            lambda agent, seed: bench.tuned(agent, seed, space, folder),
            rows,
        )
        rates = against_sweep.done("rates", partial(bench.rates, options.load))
        bench.traffic = {name: Traffic("poisson", rate, seed=1) for name, rate in rates.items()}
        allowed = [int(n) for n in np.flatnonzero(space.threads <= options.cores)]
        return against_sweep.outcome(allowed, REACH)


def rows_of(options: Options) -> KeptRows:
    """What the file has of the same models, load and lengths; of others it is refused."""
    setting = {"benchmark": "triton-joint", "knobs": KNOBS}
    setting |= setting_of(options, "agents", "seeds", "rounds", "out")
    return KeptRows(options.out, ("what",), setting)


@dataclass
class Bench:
    """A Triton with both models, and their loads."""

    options: Options
    servers: dict[str, Triton]
    target: JointTarget
    traffic: dict[str, Traffic]

    def rates(self, share: float) -> dict[str, float]:
        """Requests per s of each model: this share of a burst's."""
        self.start()
        return {name: round(share * capacity_per_s(server), 1) for name, server in self.servers.items()}

    def start(self) -> None:
        """Puts the start of both models in force."""
        self.target.apply(of_models(dict.fromkeys(self.servers, START)))

    def window(self, configuration: Mapping[str, int], window_s: float) -> Window:
        """What clients see of both models under a joint configuration."""
        self.target.apply(configuration)
        with tempfile.TemporaryDirectory(prefix="rrl-joint-") as folder, contextlib.ExitStack() as stack:
            places = {name: Path(folder) / name for name in self.servers}
            loads = [
                stack.enter_context(load(server, self.traffic[name], places[name], COLD_S + window_s))
                for name, server in self.servers.items()
            ]
            for process in loads:
                ended_well(process, COLD_S + window_s + 120)
            seen = Requests.joined(Requests.read(place).after(COLD_S) for place in places.values())
        return window_of(seen)

    def tuned(self, agent: str, seed: int, space: ConfigurationSpace, folder: Path) -> dict[str, Any]:
        """One run of an agent under endless load: what was in force by interval, and what it kept."""
        self.start()
        out = folder / f"{agent.replace(' ', '-')}-{seed}"
        with contextlib.ExitStack() as stack:
            places = {name: folder / f"load-{agent.replace(' ', '-')}-{seed}-{name}" for name in self.servers}
            loads = [
                stack.enter_context(load(server, replace(self.traffic[name], seed=100 + seed), places[name]))
                for name, server in self.servers.items()
            ]
            self._tune(agent, seed, out)
            for process in loads:
                check_under_way(process, agent)
        failed = sum(Requests.read(place).failures for place in places.values())
        folders = [out / name for name in self.servers] if agent == IN_TURN else [out]
        numbers = self._numbers(folders, space)
        kept = space.number({name: self.target.configuration()[name] for name in space.names})
        return {"kept": kept, "numbers": numbers, "failed": failed}

    def _tune(self, agent: str, seed: int, out: Path) -> None:
        server, options = next(iter(self.servers.values())), self.options
        together = agent != IN_TURN
        intervals = options.intervals if together else options.intervals // 2
        arguments: list[object] = ["--target", server.address]
        arguments += ["--metrics-url", server.metrics_url, "--model", ",".join(self.servers)]
        arguments += ["--jointly"] if together else []
        arguments += ["--agent", agent if together else TOGETHER, "--cores", options.cores, "--knobs", KNOBS]
        arguments += ["--intervals", intervals, "--interval-s", options.interval_s]
        arguments += ["--seed", seed, "--out", out]
        subprocess.run(tune_command(*arguments), check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)

    def _numbers(self, folders: list[Path], space: ConfigurationSpace) -> list[int]:
        """The joint configurations in force, interval by interval, until the result is measured in turns."""
        if len(folders) == 1:
            return [record.number for record in searching(folders[0])]
        present = of_models(dict.fromkeys(self.servers, START))
        numbers = []
        for name, folder in zip(self.servers, folders, strict=True):
            for record in searching(folder):
                present |= of_models({name: record.configuration})
                numbers.append(space.number({knob: present[knob] for knob in space.names}))
            ending = journal.read_ending(folder)
            present |= of_models({name: {} if ending is None else ending.kept})
        return numbers


@contextlib.contextmanager
def _served(options: Options, kinds: Mapping[str, str], folder: Path) -> Iterator[Bench]:
    specs = {name: ModelSpec(kind, OPTIONS.get(kind, {}), TRITONS_DEFAULT) for name, kind in kinds.items()}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running(write_repository(folder / "repository", specs)))
        joint = JointTarget(server.address, list(kinds), server.metrics_url)
        joint.connect()
        stack.callback(joint.close)
        servers = {}
        for name in kinds:
            target = OpenInferenceTarget(server.address, name, server.metrics_url)
            target.connect()
            stack.callback(target.close)
            servers[name] = Triton(target, server.address, server.metrics_url, name)
        yield Bench(options, servers, joint, {})
