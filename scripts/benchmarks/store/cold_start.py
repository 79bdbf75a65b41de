"""`store-cold-start`: from a process that is ready to its first answer (TrIMS, Figs. 8 to 10).

Each measurement is a forked child of this process, which has imported torch, grpc and the store's client but
has connected to nothing and computed nothing. An answer takes three steps, as the paper's Fig. 9 has them:

| step | what is done |
|---|---|
| load | weights are read or shared: the child has a state dict |
| init | the network is built without weights and given them (`assign=True`) |
| compute | one image is answered, which touches the weights |

Ideal is an answer with the weights in the process already, so that loading takes no time. It has read them
itself before the clock starts. Memory that its parent had filled would cost it something at the first touch,
and no ideal has that. Its weights lie on small pages, as `torch.load` leaves them. Those of a hit lie on huge
pages, so a hit may be a little faster. Processors that were idle begin slowly, and those of the ideal have
just read. So every child is busy for a while before its clock starts.

A store hit finds the model in host memory (Fig. 8a). A miss has it in no tier, and its file not in the page
cache (Fig. 8b). The networks are the paper's, with random weights. Beside the time it prints what the
processors worked, which other programs on the machine change less.

    scripts/bench store-cold-start [--models VGG16 VGG16-S4] [--all] [--rounds 5] [--out FILE.jsonl] [--quick]
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc  # noqa: F401 (a process that is ready has it)
import torch
from safetensors.torch import load_file
from torch import Tensor

from scripts.benchmarks.store.cold_start_report import HIT, IDEAL, MISS, print_tables, result
from scripts.benchmarks.store.forked import in_children
from scripts.benchmarks.store.paper_networks import NETWORKS, image_for, on_meta, shapes_of
from scripts.benchmarks.store.running_store import RunningStore, huge_pages_settled, running_store
from scripts.benchmarks.store.weight_files import (
    MIB,
    MODELS,
    forget,
    touch,
    warm,
    write_pickled,
    write_weights,
)
from scripts.kept_rows import KeptRows
from serving_adapter.flags.parsing import parse
from serving_adapter.model_store.protocol import model_store_pb2_grpc  # noqa: F401 (as grpc)
from serving_adapter.model_store.torch_side.tensors import state_dict

SMALL = (
    *("SqueezeNet-v1.0", "GoogLeNet", "ResNet18-v2", "ResNet50", "ResNet152", "WRN50-v2", "AlexNet"),
    *("ResNet269-v2", "VGG16-SOD", "VGG16", "VGG19"),
)
LARGE = ("AlexNet-S2", "VGG16-S2", "AlexNet-S3", "AlexNet-S4", "VGG16-S3", "VGG16-S4")
QUICK = ("SqueezeNet-v1.0",)
ROUNDS_OF_LARGE = 3
BUSY_BEFORE_S = 0.2
PRIVATE = {
    "load_file, cached": "safetensors",
    "load_file, disk": "safetensors",
    "torch.load, cached": "torch",
    "torch.load, disk": "torch",
}
WAYS = (HIT, MISS, *PRIVATE, IDEAL)

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Options:
    """Cold starts with weights of 4.8 MB to 6.4 GB."""

    models: tuple[str, ...] = (*SMALL, *LARGE)
    """Networks of Tables 3 and 4."""
    all: bool = False
    """All networks that run: 29 of Table 3 and those of Table 4."""
    rounds: int = 5
    """Rounds in which every way has its turn; three for models of more than 1 GB."""
    out: Path | None = None
    """File that gets a row a measurement, and with which a run goes on where it was stopped."""
    quick: bool = False
    """The smallest model, once."""

    def __post_init__(self) -> None:
        for name in self.models:
            if name not in NETWORKS:
                raise ValueError(f"--models: there is no network {name!r}; there are {', '.join(NETWORKS)}")
        if self.rounds < 1:
            raise ValueError(f"--rounds must be at least 1, got {self.rounds}")

    @property
    def names(self) -> tuple[str, ...]:
        """From the smallest to the largest."""
        names = QUICK if self.quick else tuple(NETWORKS) if self.all else self.models
        return tuple(sorted(names, key=lambda name: MODELS[name].mib))

    def rounds_of(self, name: str) -> int:
        return 1 if self.quick else min(self.rounds, ROUNDS_OF_LARGE if MODELS[name].mib > 1024 else 99)


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    rows = KeptRows(options.out, ("model", "round", "way"))
    for name in options.names:
        missing = [
            (number, way)
            for number in range(options.rounds_of(name))
            for way in in_turn(number)
            if {"model": name, "round": number, "way": way} not in rows
        ]
        if missing:
            _measure(name, missing, rows)
    print_tables(rows)
    return result(rows) | {"commits": rows.commits}


def in_turn(number: int) -> tuple[str, ...]:
    """The ways in the order of a round: each begins with the next one."""
    first = number % len(WAYS)
    return WAYS[first:] + WAYS[:first]


def _measure(name: str, missing: list[tuple[int, str]], rows: KeptRows) -> None:
    host_bytes = int(1.1 * MODELS[name].mib * MIB) + 64 * MIB
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / name / "1" / "model.safetensors"
        write_weights(weights, shapes_of(name))
        files = {"safetensors": weights, "torch": write_pickled(weights)}
        gc.collect()
        flags = ("--remote", Path(folder).as_uri(), "--host-bytes", host_bytes, "--disk-bytes", "1M")
        with running_store(*flags) as store:
            for number, way in missing:
                _prepare(way, files, store, name)
                (seconds,) = in_children([partial(_answered, way, store, name, files)])
                times = dict(zip(("load_ms", "init_ms", "compute_ms", "cpu_ms"), seconds, strict=True))
                row = {key: 1e3 * value for key, value in times.items()}
                rows.add({"model": name, "round": number, "way": way} | row)
                total_ms = 1e3 * sum(seconds[:3])
                print(f"{name:18} {number} {way:20} {total_ms:10.1f} ms", file=sys.stderr, flush=True)


def _prepare(way: str, files: dict[str, Path], store: RunningStore, name: str) -> None:
    """The page cache holds what this way reads, or nothing of it; the store holds the model, or does not."""
    for path in files.values():
        forget(path)
    if way == HIT:
        in_children([partial(_open_and_drop, store, name)])
        huge_pages_settled()
        forget(files["safetensors"])
    elif way == MISS:
        in_children([store.evict_all])
    elif way.endswith("cached"):
        warm(files[PRIVATE[way]])


def _open_and_drop(store: RunningStore, name: str) -> None:
    touch(_from_store(store, name).values())


def _from_store(store: RunningStore, name: str) -> Weights:
    return state_dict(store.client().open(name, "1"))


def _loader(way: str, store: RunningStore, name: str, files: dict[str, Path]) -> Callable[[], Weights]:
    """What the clock is started for; it has been done already in the ideal."""
    if way in (HIT, MISS):
        return lambda: _from_store(store, name)
    if way == IDEAL:
        there: Weights = torch.load(files["torch"], weights_only=True)
        return lambda: there
    if way.startswith("load_file"):
        return lambda: load_file(files["safetensors"])
    return lambda: torch.load(files["torch"], weights_only=True)


def _be_busy(length_s: float) -> None:
    end_s = time.monotonic() + length_s
    while time.monotonic() < end_s:
        pass


def _answered(way: str, store: RunningStore, name: str, files: dict[str, Path]) -> list[float]:
    """Seconds of the three steps, and of the processors in all of them."""
    load, image = _loader(way, store, name, files), image_for(name)
    _be_busy(BUSY_BEFORE_S)
    start_s, cpu_start_s = time.perf_counter(), time.process_time()
    weights = load()
    loaded_s = time.perf_counter()
    network = on_meta(name)
    network.load_state_dict(weights, assign=True)
    ready_s = time.perf_counter()
    with torch.inference_mode():
        answer = network(image)
    end_s, cpu_end_s = time.perf_counter(), time.process_time()
    if not answer.isfinite().all():
        raise RuntimeError(f"{name} answered no finite numbers")
    return [loaded_s - start_s, ready_s - loaded_s, end_s - ready_s, cpu_end_s - cpu_start_s]
