"""`store-open`: time to open a resident model by its name, for the sizes of TrIMS's Tables 3 and 4.

An open is what a program waits for: `Client.open` and the state dict, after which every tensor can be used.
The smallest model and the largest that fit into memory together are opened in turns. The same file is also
opened through its descriptor, as `model_store.load_file` does, and loaded by its peers. Peers load from the
page cache. safetensors maps the file, and reads no weights before somebody touches them.

    scripts/bench store-open [--host-bytes 12G] [--opens 60] [--quick]
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from safetensors.torch import load_file

from scripts.benchmarks.store.paper_networks import shapes_of
from scripts.benchmarks.store.running_store import RunningStore, running_store
from scripts.benchmarks.store.weight_files import (
    MIB,
    MODELS,
    forget,
    warm,
    write_pickled,
    write_weights,
)
from serving_adapter.flags.parsing import parse
from serving_adapter.model_store.clients.client import Client
from serving_adapter.model_store.command_line import parse_size
from serving_adapter.model_store.torch_side.tensors import state_dict

SMALLEST, LARGEST = "SqueezeNet-v1.0", "VGG16-S4"
NAMES = (
    *(SMALLEST, "Inception-v3", "ResNet152", "AlexNet", "ResNet269-v2", "VGG16", "AlexNet-S2"),
    *("AlexNet-S3", "VGG16-S2", "AlexNet-S4", "VGG16-S3", LARGEST),
)
QUICK_NAMES = (SMALLEST, "Inception-v3", "ResNet152", "VGG16")
REACH_RATIO = 1.5
REACH_MS = 5.0


@dataclass(frozen=True)
class Options:
    """Opens resident models of 4.8 MB to 6.4 GB."""

    opens: int = 60
    """Opens of each model."""
    peer_bytes: str = "8G"
    """Bytes that each peer loads of a model altogether; at least three loads, at most `opens`."""
    host_bytes: str = "14G"
    """Host memory of the store: what is resident together."""
    quick: bool = False
    """Only sizes up to 528 MB."""


@dataclass
class Times:
    """Seconds that each way of opening took."""

    store: list[float]
    by_file: list[float]
    safetensors: list[float]
    torch: list[float]


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    names = QUICK_NAMES if options.quick else NAMES
    times: dict[str, Times] = {}
    print(f"{'model':16} {'MB':>7} {'tensors':>7} {'segments':>8} {'open ms':>8} {'p90':>6} {'by file':>8} "
          f"{'load_file':>9} {'torch.load':>10}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        # Models of the repository are not kept on the disk twice.
        with running_store(
            *(
                "--remote",
                repository.as_uri(),
                "--host-bytes",
                options.host_bytes,
                "--disk-bytes",
                "1M",
                "--client-quota",
                "100%",
            )
        ) as store:
            smallest: Times | None = None
            for group in _groups(names, 0.95 * parse_size(options.host_bytes, 0, "--host-bytes")):
                measured = _measure(store, repository, group, options)
                smallest = smallest or measured[SMALLEST]
                times |= measured | {SMALLEST: smallest}
    return _result(times, names)


def _groups(names: Sequence[str], host_bytes: float) -> list[list[str]]:
    """What fits into memory together, the files in the page cache included; the smallest is in each."""
    groups, used = [[SMALLEST]], 0.0
    for name in names[1:]:
        size_bytes = MODELS[name].mib * MIB
        if used and used + size_bytes > host_bytes / 2:
            groups.append([SMALLEST])
            used = 0.0
        groups[-1].append(name)
        used += size_bytes
    return groups


def _measure(
    store: RunningStore, repository: Path, names: Sequence[str], options: Options
) -> dict[str, Times]:
    """The group's models, resident together and opened in turns."""
    times = {name: Times([], [], [], []) for name in names}
    segments = {}
    with store.client() as client:
        held = {}
        for name in names:
            path = _path(repository, name)
            shapes = shapes_of(name)
            write_weights(path, shapes)
            client.open(name, "1")
            with path.open("rb") as file:  # is the store's before it is opened in turns
                held[name] = client.open_file(file, name)
            segments[name] = len(held[name].segments)
        for _ in range(options.opens):
            for name in names:
                path = _path(repository, name)
                times[name].store.append(_seconds(partial(_by_name, client, name)))
                times[name].by_file.append(_seconds(partial(_by_file, client, path)))
        del held
        store.evict_all(client)
    for name in names:
        path = _path(repository, name)
        loads = int(parse_size(options.peer_bytes, 0, "--peer-bytes") / (MODELS[name].mib * MIB))
        loads = max(3, min(options.opens, loads))
        warm(path)
        times[name].safetensors += [_seconds(partial(load_file, path)) for _ in range(loads)]
        pickled = write_pickled(path)
        warm(pickled)
        times[name].torch += [_seconds(partial(torch.load, pickled, weights_only=True)) for _ in range(loads)]
        for written in (path, pickled):
            forget(written)
            written.unlink()
        _print(name, segments[name], times[name])
    return times


def _path(repository: Path, name: str) -> Path:
    return repository / name / "1" / "model.safetensors"


def _by_name(client: Client, name: str) -> dict[str, torch.Tensor]:
    return state_dict(client.open(name, "1"))


def _by_file(client: Client, path: Path) -> dict[str, torch.Tensor]:
    with path.open("rb") as file:
        return state_dict(client.open_file(file, path.parent.parent.name))


def _seconds(load: Callable[[], Any]) -> float:
    gc.collect()
    start_s = time.perf_counter()
    weights = load()
    seconds = time.perf_counter() - start_s
    del weights
    return seconds


def _print(name: str, segments: int, times: Times) -> None:
    model = MODELS[name]
    print(
        f"{name:16} {model.mib:7,.1f} {model.tensors:7} {segments:8} {1e3 * median(times.store):8.2f} "
        f"{_p90_ms(times.store):6.2f} {1e3 * median(times.by_file):8.2f} "
        f"{1e3 * median(times.safetensors):9.2f} {1e3 * median(times.torch):10.1f}",
        flush=True,
    )


def _p90_ms(seconds: Sequence[float]) -> float:
    return 1e3 * quantiles(seconds, n=10)[-1]


def _result(times: dict[str, Times], names: Sequence[str]) -> dict[str, Any]:
    medians_ms = {name: 1e3 * median(times[name].store) for name in names}
    largest = max(names, key=lambda name: MODELS[name].mib)
    ratio = medians_ms[largest] / medians_ms[SMALLEST]
    slowest_ms = max(medians_ms.values())
    peer_ms = 1e3 * median(times[largest].torch)
    print(f"reach: largest / smallest at most {REACH_RATIO}, each under {REACH_MS:g} ms")
    return {
        "value": round(ratio, 2),
        "unit": f"time of {largest} / time of {SMALLEST}",
        "peer": round(peer_ms / (1e3 * median(times[SMALLEST].torch)), 1),
        "ratio": round(peer_ms / medians_ms[largest], 1),
        "reach": REACH_RATIO,
        "holds": ratio <= REACH_RATIO and slowest_ms < REACH_MS,
        "slowest_ms": round(slowest_ms, 2),
        "slowest_p90_ms": round(max(_p90_ms(times[name].store) for name in names), 2),
        "slowest_to_fastest": round(slowest_ms / min(medians_ms.values()), 2),
        "ms": {name: round(value, 2) for name, value in medians_ms.items()},
    }
