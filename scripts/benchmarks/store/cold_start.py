"""`store-cold-start`: from a process that is ready to its first answer, by a store hit and by private loads.

Each measurement is a forked child of this process, which has imported torch, grpc and the store's client but
has connected to nothing and computed nothing. The load step ends with a usable state dict; as safetensors
(and the store) map weights without reading them, it is given with every byte touched, too. End to end is the
load step, the network built without weights, given them (`assign=True`), and one image's answer; ideal is
the same with the weights in the process already. The networks are the paper's, with random weights.

    scripts/bench store-cold-start [--models SqueezeNet-v1.0 VGG16-S4] [--rounds 5] [--quick]
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
from statistics import median
from typing import Any

import grpc  # noqa: F401 (a process that is ready has it)
import torch
from safetensors.torch import load_file
from torch import Tensor

from scripts.benchmarks.store.forked import in_children
from scripts.benchmarks.store.paper_networks import image_for, on_meta, shapes_of
from scripts.benchmarks.store.running_store import RunningStore, running_store
from scripts.benchmarks.store.weight_files import (
    MIB,
    MODELS,
    TABLE_3,
    forget,
    touch,
    warm,
    write_pickled,
    write_weights,
)
from serving_adapter.model_store.protocol import model_store_pb2_grpc  # noqa: F401 (as grpc)
from serving_adapter.model_store.tensors import state_dict
from serving_adapter.options import parse

ALL = ("SqueezeNet-v1.0", "ResNet50", "AlexNet", "VGG16", "AlexNet-S3", "VGG16-S3", "VGG16-S4")
QUICK = ("SqueezeNet-v1.0", "ResNet50")
REACH_SMALL, REACH_LARGEST, REACH_IDEAL = 24.0, 210.0, 1.10
STORE, IDEAL = "store", "ideal"
PEERS = {
    "load_file, cached": "safetensors",
    "load_file, disk": "safetensors",
    "torch.load, cached": "torch",
    "torch.load, disk": "torch",
}
HEADLINE_PEERS = ("torch.load, cached", "torch.load, disk")  # of which the faster counts

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Options:
    """Cold starts with weights of 4.8 MB to 6.4 GB."""

    models: tuple[str, ...] = ALL
    """Networks of Tables 3 and 4, from the smallest to the largest."""
    rounds: int = 5
    """Rounds in which every way has its turn; three for models of more than 1 GB."""
    quick: bool = False
    """Only the two smallest, twice."""


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    load_ms: dict[str, dict[str, float]] = {}
    touched_ms: dict[str, dict[str, float]] = {}
    answer_ms: dict[str, dict[str, float]] = {}
    ways = (STORE, *PEERS)
    header = "".join(f"{way:>20}" for way in ways)
    for name in QUICK if options.quick else options.models:
        rounds = 2 if options.quick else min(options.rounds, 3 if MODELS[name].mib > 1024 else 99)
        load_ms[name], touched_ms[name], answer_ms[name] = _medians_ms(name, rounds)
        print(f"{name}, {MODELS[name].mib:,.1f} MB, ms{'':>{max(0, 14 - len(name))}}{header}{IDEAL:>10}")
        for label, ms in (
            ("usable", load_ms[name]),
            ("touched", touched_ms[name]),
            ("first answer", answer_ms[name]),
        ):
            print(f"  {label:28}" + "".join(f"{ms[way]:20,.1f}" for way in ways), end="")
            print(f"{ms[IDEAL]:10,.1f}" if IDEAL in ms else "", flush=True)
    return _result(load_ms, touched_ms, answer_ms)


def _medians_ms(name: str, rounds: int) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Times of each way: until the state dict is there, every byte was read, and the first answer."""
    host_bytes = int(1.1 * MODELS[name].mib * MIB) + 64 * MIB
    load_s: dict[str, list[float]] = {}
    touched_s: dict[str, list[float]] = {}
    answer_s: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / name / "1" / "model.safetensors"
        write_weights(weights, shapes_of(name))
        files = {"safetensors": weights, "torch": write_pickled(weights)}
        gc.collect()
        flags = ("--remote", Path(folder).as_uri(), "--host-bytes", host_bytes, "--disk-bytes", "1M")
        with running_store(*flags) as store:
            in_children([lambda: _times(lambda: _from_store(store, name), touch_all)])  # makes it resident
            for _ in range(rounds):
                for way in (STORE, *PEERS, IDEAL):
                    _prepare(way, files)
                    if way != IDEAL:
                        (seconds,) = in_children([partial(_times_of, way, store, name, files)])
                        load_s.setdefault(way, []).append(seconds[0])
                        touched_s.setdefault(way, []).append(seconds[1])
                        _prepare(way, files)
                    (seconds,) = in_children([partial(_to_first_answer, way, store, name, files)])
                    answer_s.setdefault(way, []).append(seconds[1])
    load_ms, touched_ms, answer_ms = (
        {way: 1e3 * median(seconds) for way, seconds in times.items()}
        for times in (load_s, touched_s, answer_s)
    )
    return load_ms, touched_ms, answer_ms


def _prepare(way: str, files: dict[str, Path]) -> None:
    """The page cache holds what this way reads, or nothing of it, and nothing that another way reads."""
    for path in files.values():
        forget(path)
    if way.endswith("cached"):
        warm(files[PEERS[way]])


def _loader(way: str, store: RunningStore, name: str, files: dict[str, Path]) -> Callable[[], Weights]:
    if way == STORE:
        return lambda: _from_store(store, name)
    if way.startswith("load_file"):
        return lambda: load_file(files["safetensors"])
    return lambda: torch.load(files["torch"], weights_only=True)


def _from_store(store: RunningStore, name: str) -> Weights:
    return state_dict(store.client().open(name, "1"))


def touch_all(weights: Weights) -> None:
    touch(weights.values())


def _to_first_answer(way: str, store: RunningStore, name: str, files: dict[str, Path]) -> list[float]:
    load = _loader(way, store, name, files)
    if way == IDEAL:
        there = torch.load(files["torch"], weights_only=True)
        touch_all(there)
        load = lambda: there  # noqa: E731

    def answer(weights: Weights) -> None:
        network = on_meta(name)
        network.load_state_dict(weights, assign=True)
        with torch.inference_mode():
            answered = network(image)
        if not answered.isfinite().all():
            raise RuntimeError(f"{name} answered no finite numbers")

    image = image_for(name)
    return _times(load, answer)


def _times_of(way: str, store: RunningStore, name: str, files: dict[str, Path]) -> list[float]:
    return _times(_loader(way, store, name, files), touch_all)


def _times(load: Callable[[], Weights], then: Callable[[Weights], None]) -> list[float]:
    """Seconds until the weights are there, and until something was done with them."""
    start_s = time.perf_counter()
    weights = load()
    loaded_s = time.perf_counter() - start_s
    then(weights)
    return [loaded_s, time.perf_counter() - start_s]


def _result(load_ms: Any, touched_ms: Any, answer_ms: Any) -> dict[str, Any]:
    names = list(load_ms)
    small = [model.name for model in TABLE_3 if model.name in names]
    usable = {n: {peer: round(load_ms[n][peer] / load_ms[n][STORE], 1) for peer in PEERS} for n in names}
    touched = {
        n: {peer: round(touched_ms[n][peer] / touched_ms[n][STORE], 1) for peer in PEERS} for n in names
    }
    to_ideal = {n: round(answer_ms[n][STORE] / answer_ms[n][IDEAL], 3) for n in names}
    headline = {n: min(usable[n][peer] for peer in HEADLINE_PEERS) for n in names}
    best_small = max((headline[n] for n in small), default=0.0)
    largest = headline[names[-1]]
    print("load step, private / store:")
    for name in names:
        print(f"  {name:16} usable {usable[name]}  touched {touched[name]}")
    print(f"end to end, store / ideal: {to_ideal}")
    print(
        f"reach: the load step {REACH_SMALL:g} times as fast as torch.load for the best of Table 3's "
        f"models, {REACH_LARGEST:g} times for the largest; end to end within {REACH_IDEAL - 1:.0%} of ideal"
    )
    return {
        "value": largest,
        "unit": f"times as fast as torch.load, {names[-1]}",
        "peer": round(min(load_ms[names[-1]][peer] for peer in HEADLINE_PEERS), 1),
        "ratio": largest,
        "reach": REACH_LARGEST,
        "holds": largest >= REACH_LARGEST
        and best_small >= REACH_SMALL
        and max(to_ideal.values()) <= REACH_IDEAL,
        "small": {name: headline[name] for name in small},
        "usable": usable,
        "touched": touched,
        "end_to_end_to_ideal": to_ideal,
        "first_answer_ms": {n: {way: round(ms, 1) for way, ms in answer_ms[n].items()} for n in names},
    }
