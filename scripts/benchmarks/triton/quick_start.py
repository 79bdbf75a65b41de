"""`model-analyzer-quick-start`: Model Analyzer's quick start, by Model Analyzer and by `rrl-tune`.

The model is the quick start's `add_sub`, with its tensors, batches and instances. A stock Triton serves it in
its Python backend, as the package index has none for LibTorch. Both tools read one and the same file: the
quick start's options, `run_config_search_mode: quick`, and where the Triton is. Model Analyzer brings its own
load. `rrl-tune` brings none: its users are another perf_analyzer, which asks without a pause.

    rrl-tune --from-model-analyzer config.yaml --intervals 6
    model-analyzer profile -f config.yaml

Model Analyzer is NVIDIA's own, installed beside this project. Where that cannot be, its quick search as an
agent of ours takes its place, both bring a load of ours (`--bench`), and the result says so. Each tool begins
with the quick start's configuration.

| word | meaning |
|---|---|
| *kept* | what `rrl-tune` leaves in force; of Model Analyzer's table the variant of the highest throughput |
| *measurements* | all intervals of `rrl-tune`; Model Analyzer's runs of its perf_analyzer |
| *of the search* | Model Analyzer's without the last ones, of the best variants at each concurrency |
| *failed* | requests of its users that failed meanwhile |

In the end what each kept, and the start, are measured in turns, by perf_analyzer, or by a closed loop of ours
where that is not there. The loads are 4, 16 and 64 requests at once, and as many as Model Analyzer found its
best with. A round puts each in force once, in an order of its own, and warms it up. Ratios are medians over
the rounds. The one that is judged is their geometric mean over the loads.

    scripts/bench model-analyzer-quick-start [--intervals 6] [--users 64] [--at-once 4 16 64] [--rounds 5]
                                             [--seed 0] [--out FOLDER]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from rrl import journal
from rrl.knobs import in_words
from scripts.serving.closed_loop import closed_loop
from scripts.serving.processes import tune_command
from scripts.triton_server import model_analyzer
from scripts.triton_server.repository import ADD_SUB, ModelSpec, write_repository
from scripts.triton_server.running import RunningTriton, running
from serving_adapter.flags.parsing import parse
from serving_adapter.target import OpenInferenceTarget

OURS, THEIRS, START = "rrl-tune", "Model Analyzer", "the start"
QUICK_STARTS = {"instances": 1, "max_batch_size": 8, "max_queue_delay_us": 0}
REACH = 0.97  # of Model Analyzer's throughput: two runs of one configuration differ by as much
LONGEST_S = 1800.0  # of a run of rrl-tune

Configuration = Mapping[str, int]
Load = Callable[[int], float]  # answers per second with so many requests at once


@dataclass(frozen=True)
class Options:
    """Tunes the model of Model Analyzer's quick start by both tools."""

    intervals: int = 6
    """Decisions of rrl-tune, beside its baseline and validation."""
    users: int = 64
    """Requests at once of the users while rrl-tune runs."""
    at_once: tuple[int, ...] = (4, 16, 64)
    """Requests at once of the loads in the end."""
    rounds: int = 5
    """In which what each kept is measured in turns."""
    window_s: float = 2.0
    """Of the three windows that make one figure."""
    seed: int = 0
    """Of rrl-tune."""
    out: Path | None = None
    """Folder for the file, journals, tables and logs (default runs/model-analyzer-quick-start-TIME)."""

    def __post_init__(self) -> None:
        if not self.at_once or min(*self.at_once, self.users, self.rounds) < 1 or self.window_s <= 0:
            raise ValueError("--at-once, --users, --rounds and --window-s must be above 0")


@dataclass(frozen=True)
class QuickStartRun:
    """What a tool kept, and what finding it took."""

    configuration: Configuration
    measurements: int
    seconds: float
    failed: int = 0
    search: int | None = None  # measurements of Model Analyzer's search alone
    requests_at_once: int | None = None  # at which Model Analyzer found it


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    folder = options.out or Path("runs") / f"model-analyzer-quick-start-{datetime.now():%Y%m%d-%H%M%S}"
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    commands = _installed()
    repository = write_repository(folder / "models", {ADD_SUB: ModelSpec(ADD_SUB, knobs=QUICK_STARTS)})
    with running(repository) as server:
        config = folder / "config.yaml"
        text = model_analyzer.quick_search_file(server, repository, ADD_SUB, folder)
        config.write_text(text, encoding="utf-8")
        found = {OURS: _ours(server, config, options, folder, commands)}
        print(_in_words(OURS, found[OURS]), flush=True)
        found[THEIRS] = _theirs(server, config, options, folder, commands)
        print(_in_words(THEIRS, found[THEIRS]), flush=True)
        at_once = sorted({*options.at_once, found[THEIRS].requests_at_once or options.at_once[0]})
        load = _load(server, folder, commands, options.window_s)
        per_s = _in_turns(server, found, at_once, options.rounds, load)
    (folder / "turns.json").write_text(json.dumps(per_s, indent=2) + "\n", encoding="utf-8")
    print(f"logs, journal and tables in {folder}")
    return outcome(found, per_s, is_theirs=commands is not None)


def _installed() -> Path | None:
    try:
        return model_analyzer.install()
    except RuntimeError as error:
        print(f"{error}; its quick search as an agent of ours takes its place", flush=True)
        return None


def _ours(
    server: RunningTriton, config: Path, options: Options, folder: Path, commands: Path | None
) -> QuickStartRun:
    out = folder / "rrl-tune"
    if commands is None:
        return _tuned(server, config, options, out, "--bench")
    with model_analyzer.users(commands, server.address, ADD_SUB, folder, options.users):
        return _tuned(server, config, options, out)


def _tuned(
    server: RunningTriton, config: Path, options: Options, out: Path, *arguments: object
) -> QuickStartRun:
    """From the quick start's configuration, by `rrl-tune` with the file."""
    _put_in_force(server, QUICK_STARTS)
    how = ("--intervals", options.intervals, "--seed", options.seed, "--out", out)
    command = tune_command("--from-model-analyzer", config, *how, *arguments)
    began_s = time.monotonic()
    with out.with_suffix(".log").open("w", encoding="utf-8") as log:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=LONGEST_S,
            check=True,
        )
    seconds = time.monotonic() - began_s
    _, records = journal.read(out)
    failed = sum(record.measurement.failures for record in records)
    with closing(_target(server)) as target:
        kept = target.configuration()
    return QuickStartRun(kept, sum(r.counted for r in records), seconds, failed)


def _theirs(
    server: RunningTriton, config: Path, options: Options, folder: Path, commands: Path | None
) -> QuickStartRun:
    if commands is None:
        return _tuned(server, config, options, folder / "quick-search", "--bench", "--agent", "quick-search")
    _put_in_force(server, QUICK_STARTS)
    found = model_analyzer.profile(commands, config, folder)
    kept = QuickStartRun(found.best, found.measurements, found.seconds)
    return replace(kept, search=found.search, requests_at_once=found.requests_at_once)


def _target(server: RunningTriton) -> OpenInferenceTarget:
    target = OpenInferenceTarget(server.address, ADD_SUB, server.metrics_url)
    target.connect()
    return target


def _put_in_force(server: RunningTriton, configuration: Configuration) -> None:
    with closing(_target(server)) as target:
        target.apply(configuration)


def _in_turns(
    server: RunningTriton, found: Mapping[str, QuickStartRun], at_once: Sequence[int], rounds: int, load: Load
) -> dict[str, dict[int, list[float]]]:
    """Answers per second of what each kept, and of the start, by the requests at once; a figure a round."""
    named = {name: kept.configuration for name, kept in found.items()} | {START: QUICK_STARTS}
    different = {in_words(each): each for each in named.values()}
    per_s: dict[str, dict[int, list[float]]] = {words: {n: [] for n in at_once} for words in different}
    for k in range(rounds):
        for words in np.random.default_rng(k).permutation(list(different)).tolist():
            _put_in_force(server, different[words])
            load(max(at_once))  # which warms it up
            for n in at_once:
                per_s[words][n].append(load(n))
    return {name: per_s[in_words(each)] for name, each in named.items()}


def _load(server: RunningTriton, folder: Path, commands: Path | None, window_s: float) -> Load:
    """By perf_analyzer, or else a closed loop of ours."""
    if commands is not None:
        return partial(model_analyzer.answers_per_s, commands, server.address, ADD_SUB, window_s, folder)
    request = pb.ModelInferRequest(model_name=ADD_SUB)
    for k in (0, 1):
        request.inputs.add(name=f"INPUT__{k}", datatype="FP32", shape=[1, 16])
        request.raw_input_contents.append(np.ones(16, np.float32).tobytes())
    requests, seconds = [request.SerializeToString()], model_analyzer.WINDOWS * window_s
    return lambda at_once: closed_loop(server.address, requests, at_once, seconds).requests_per_s


def _in_words(name: str, kept: QuickStartRun) -> str:
    search = "" if kept.search is None else f" ({kept.search} of the search)"
    return (
        f"{name}: {in_words(kept.configuration)} after {kept.measurements} measurements{search}, "
        f"{kept.seconds:.0f} s, {kept.failed} requests failed"
    )


def outcome(
    found: Mapping[str, QuickStartRun], per_s: Mapping[str, Mapping[int, Sequence[float]]], is_theirs: bool
) -> dict[str, Any]:
    """What `rrl-tune` kept beside what Model Analyzer kept."""
    ratios = {
        n: median(ours / theirs for ours, theirs in zip(per_s[OURS][n], per_s[THEIRS][n], strict=True))
        for n in per_s[OURS]
    }
    for n, ratio in ratios.items():
        each = ", ".join(f"{name} {median(rates[n]):.0f}/s" for name, rates in per_s.items())
        print(f"{n} requests at once: {each}; ratio {ratio:.3f}")
    ratio = geometric_mean(ratios.values())
    ours, theirs = (geometric_mean(median(each) for each in per_s[name].values()) for name in (OURS, THEIRS))
    measurements = {name: kept.measurements for name, kept in found.items()}
    fewer = measurements[OURS] < (found[THEIRS].search or measurements[THEIRS])
    return {
        "value": round(ours, 1),
        "unit": "answers/s of what is kept, geometric mean over the loads",
        "peer": round(theirs, 1),
        "ratio": round(ratio, 3),
        "reach": REACH,
        "holds": ratio >= REACH and fewer and not found[OURS].failed,
        "by": "Model Analyzer's own" if is_theirs else "quick search as an agent of ours",
        "ratios": {str(n): round(each, 3) for n, each in ratios.items()},
        "kept": {name: dict(kept.configuration) for name, kept in found.items()},
        "measurements": measurements | {"search": found[THEIRS].search},
        "seconds": {name: round(kept.seconds) for name, kept in found.items()},
        "failed": found[OURS].failed,
    }
