"""Runs the pipeline: `python -m scripts.pipeline` prints what each function took, and the memory of all.

The functions are the same in every way of running them. Two pipelines are called at once, as those of two
users would be. Their processes have started before and have their libraries, so what is shown is what a call
takes that finds no weights loaded in them.

| way | the weights are |
|---|---|
| `torch.load` | copied into each process |
| `load_file` | mapped from the page cache by each process |
| `rrl-store run` | `load_file` as before, through the model store |
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from scripts.benchmarks.store.memory import pss_bytes
from scripts.benchmarks.store.paper_networks import shapes_of
from scripts.benchmarks.store.running_store import RunningStore, running_store
from scripts.benchmarks.store.weight_files import MIB, warm, write_pickled, write_weights
from scripts.pipeline.functions import Decoder
from serving_adapter import own_process
from serving_adapter.flags.parsing import parse
from serving_adapter.model_store.endpoint import FOLDER_VARIABLE, OFF

STORE = "serving_adapter.model_store.command_line"
SHARED = "rrl-store run"
WAYS = {"torch.load": ".pt", "load_file": ".safetensors", SHARED: ".safetensors"}
"""And the files that each reads."""


@dataclass(frozen=True)
class Options:
    """Runs a pipeline of three functions with the model store and without."""

    pipelines: int = 2
    """Pipelines at once, each with processes of its own."""
    calls: int = 2
    """Calls of each; before a call all processes are new."""
    quick: bool = False
    """One call of one pipeline of small networks, with the store only."""

    def __post_init__(self) -> None:
        if self.pipelines < 1 or self.calls < 1:
            raise ValueError("--pipelines and --calls must be at least 1")


class Function(NamedTuple):
    """A function of the pipeline, and the networks that it loads."""

    name: str
    networks: tuple[str, ...]


def functions_of(options: Options) -> tuple[Function, ...]:
    image, place = ("SqueezeNet-v1.0", "NIN") if options.quick else ("AlexNet", "ResNet50")
    return (
        Function("objects", (image,)),
        Function("scene", (image, place)),
        Function("description", ("Decoder",)),
    )


def write_all(folder: Path, functions: Sequence[Function]) -> None:
    """The weight files of all networks."""
    for name in {name for function in functions for name in function.networks}:
        state = {key: tuple(x.shape) for key, x in Decoder().state_dict().items()}
        path = folder / f"{name}.safetensors"
        write_weights(path, state if name == "Decoder" else shapes_of(name))
        for written in (path, write_pickled(path)):
            warm(written)


@contextlib.contextmanager
def started(
    function: Function, weights: Path, way: str, store: RunningStore
) -> Iterator[subprocess.Popen[str]]:
    """The function's process, ready to be called."""
    files = [str(weights / f"{name}{WAYS[way]}") for name in function.networks]
    program = [sys.executable, "-m", "scripts.pipeline.functions", function.name, *files]
    if way == SHARED:
        program = [*own_process.command(STORE, "run", "--"), *program]
    folder = str(store.endpoint.folder) if way == SHARED else OFF
    process = subprocess.Popen(
        program,
        env=os.environ | {FOLDER_VARIABLE: folder},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the function {function.name} did not start")
        yield process
    finally:
        process.kill()
        process.communicate()


def called(process: subprocess.Popen[str], asked: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
    return dict(json.loads(process.stdout.readline()))


def called_at_once(pipelines: Sequence[Sequence[subprocess.Popen[str]]]) -> list[list[dict[str, Any]]]:
    """What the functions of each pipeline reply. Each is asked with the answer of the one before."""

    def replies_of(pipeline: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
        replies: list[dict[str, Any]] = []
        for process in pipeline:
            replies.append(called(process, replies[-1]["answer"] if replies else {}))
        return replies

    with ThreadPoolExecutor(len(pipelines)) as threads:
        return list(threads.map(replies_of, pipelines))


def run(options: Options) -> dict[str, list[dict[str, Any]]]:
    """The calls of each way: milliseconds by function, memory of all processes, and the last answer."""
    functions = functions_of(options)
    pipelines, calls = (1, 1) if options.quick else (options.pipelines, options.calls)
    told: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder, running_store() as store:
        write_all(Path(folder), functions)
        for way in [SHARED] if options.quick else WAYS:
            for _ in range(calls):
                told[way].append(_call(functions, pipelines, Path(folder), way, store))
    return told


def _call(
    functions: Sequence[Function], pipelines: int, weights: Path, way: str, store: RunningStore
) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        processes = [
            [stack.enter_context(started(function, weights, way, store)) for function in functions]
            for _ in range(pipelines)
        ]
        pids = [process.pid for pipeline in processes for process in pipeline] + [store.pid]
        before = pss_bytes(pids)
        replies = called_at_once(processes)
        by_function = list(zip(functions, zip(*replies, strict=True), strict=True))

        def means(what: str) -> dict[str, float]:
            return {function.name: mean(reply[what] for reply in each) for function, each in by_function}

        return {
            "load_ms": means("load_ms"),
            "compute_ms": means("compute_ms"),
            "memory_mib": (pss_bytes(pids) - before) / MIB,
            "answer": replies[-1][-1]["answer"],
        }


def main() -> None:
    options = parse(Options, sys.argv[1:])
    told = run(options)
    names = [function.name for function in functions_of(options)]
    print(
        f"{'':16} {'call':>4}" + "".join(f"{name + ', ms':>22}" for name in names) + f"{'all':>10}{'MB':>8}"
    )
    for way, calls in told.items():
        for number, call in enumerate(calls, 1):
            load, compute = call["load_ms"], call["compute_ms"]
            cells = "".join(f"{f'{load[n]:.1f} + {compute[n]:.1f}':>22}" for n in names)
            total = sum(load.values()) + sum(compute.values())
            print(f"{way:16} {number:4}{cells}{total:10.1f}{call['memory_mib']:8.0f}")
    print("milliseconds are those of loading + computing; MB are those of all processes together (PSS)")
    print(f"the image, in random words: {told[SHARED][-1]['answer']['description']}")


if __name__ == "__main__":
    main()
