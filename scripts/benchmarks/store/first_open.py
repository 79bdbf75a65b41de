"""`store-first-open`: an open that every tier misses, against a plain load of the same weights.

The store reads the model from a `file://` repository, hashes it, puts it into sealed memory and answers. Its
disk tier is written afterwards. Each way, in turns, starts with the file out of the page cache (`disk`) or in
it (`cached`). It ends when the program has read every byte, as safetensors only maps the file.

    scripts/bench store-first-open [--rounds 7] [--models VGG16] [--quick]
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from scripts.benchmarks.store.paper_networks import shapes_of
from scripts.benchmarks.store.running_store import running_store
from scripts.benchmarks.store.weight_files import (
    MIB,
    MODELS,
    forget,
    touch,
    warm,
    write_pickled,
    write_weights,
)
from serving_adapter.flags.parsing import parse
from serving_adapter.model_store.torch_side.tensors import state_dict

REACH = 1.15
PLACES = ("disk", "cached")
STORE, PLAIN, UNPICKLED = "store", "load_file", "torch.load"


@dataclass(frozen=True)
class Options:
    """First opens against plain loads."""

    models: tuple[str, ...] = ("SqueezeNet-v1.0", "ResNet50", "VGG16", "VGG16-S2")
    """Networks of Tables 3 and 4."""
    rounds: int = 7
    """Rounds in which every way has its turn."""
    quick: bool = False
    """Only the two smallest, three rounds."""


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    names, rounds = (options.models[:2], 3) if options.quick else (options.models, options.rounds)
    ratios: dict[str, dict[str, float]] = {}
    ms: dict[str, dict[str, float]] = {}
    print("ms until every byte was read; (usable) until the state dict was there")
    print(f"{'model':16} {'file':7} {'store':>16} {'load_file':>17} {'torch.load':>17} "
          f"{'/ load_file':>12} {'/ torch.load':>12} {'on disk too':>12}")  # fmt: skip
    for name in names:
        for place in PLACES:
            seconds, settled_s = _measure(name, place, rounds)
            touched = {way: [s[1] for s in times] for way, times in seconds.items()}
            key = f"{name}, {place}"
            ratios[key] = {
                peer: median(a / b for a, b in zip(touched[STORE], touched[peer], strict=True))
                for peer in (PLAIN, UNPICKLED)
            }
            ms[key] = {way: round(1e3 * median(touched[way]), 1) for way in touched}
            print(f"{name:16} {place:7}", end="")
            for way in (STORE, PLAIN, UNPICKLED):
                usable_ms = 1e3 * median(s[0] for s in seconds[way])
                print(f" {ms[key][way]:8,.1f} ({usable_ms:6,.0f})", end="")
            print(
                f" {ratios[key][PLAIN]:12.2f} {ratios[key][UNPICKLED]:12.2f} {1e3 * settled_s:12,.0f}",
                flush=True,
            )
    worst = {peer: max(ratios[f"{name}, disk"][peer] for name in names) for peer in (PLAIN, UNPICKLED)}
    print(f"reach: at most {REACH} times the plain load from the disk, at every size")
    return {
        "value": round(worst[PLAIN], 3),
        "unit": "times the time of load_file from the disk, at worst",
        "peer": round(worst[UNPICKLED], 3),  # the same against torch.load
        "ratio": round(worst[PLAIN], 3),
        "reach": REACH,
        "holds": worst[PLAIN] <= REACH,
        "ratios": {key: {peer: round(value, 3) for peer, value in r.items()} for key, r in ratios.items()},
        "ms": ms,
    }


def _measure(name: str, place: str, rounds: int) -> tuple[dict[str, list[tuple[float, float]]], float]:
    """Seconds of each way until usable and until read; and the store's until its disk tier is written."""
    seconds: dict[str, list[tuple[float, float]]] = {STORE: [], PLAIN: [], UNPICKLED: []}
    settled_s = []
    host_bytes = int(1.1 * MODELS[name].mib * MIB) + 64 * MIB
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name / "1" / "model.safetensors"
        write_weights(path, shapes_of(name))
        pickled = write_pickled(path)
        flags = ("--remote", Path(folder).as_uri(), "--host-bytes", host_bytes)
        with running_store(*flags) as store, store.client() as client:
            ways: dict[str, tuple[Path, Callable[[], dict[str, Tensor]]]] = {
                STORE: (path, lambda: state_dict(client.open(name, "1"))),
                PLAIN: (path, lambda: load_file(path)),
                UNPICKLED: (pickled, lambda: torch.load(pickled, weights_only=True)),
            }
            for i in range(rounds + 1):  # the first is a rehearsal
                for way, (file, load) in ways.items():
                    forget(path)
                    forget(pickled)
                    if place == "cached":
                        warm(file)
                    start_s = time.perf_counter()
                    measured = _timed(load)
                    if way == STORE:
                        store.evict_all(client)  # which waits for the disk
                    if i and way == STORE:
                        settled_s.append(time.perf_counter() - start_s)
                    if i:
                        seconds[way].append(measured)
    return seconds, median(settled_s)


def _timed(load: Callable[[], dict[str, Tensor]]) -> tuple[float, float]:
    start_s = time.perf_counter()
    weights = load()
    usable_s = time.perf_counter() - start_s
    touch(weights.values())
    read_s = time.perf_counter() - start_s
    del weights
    gc.collect()
    return usable_s, read_s
