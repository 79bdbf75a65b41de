"""`store-workload`: cold starts of many users on an oversubscribed machine, with inference (TrIMS, Fig. 11).

Client processes ask for models in a Pareto-popular order. Each request is a cold start: weights are loaded,
the network is built and given them, one image is answered, and all is dropped. The store has room for a third
of the 37 models' bytes, and evicts by the paper's LRU or its own policy. Its peers load privately. All are in
a steady state: before a run its models are asked for once, in order, and the page cache has their files.

| axis | values |
|---|---|
| clients | processes at once, each with one thread, 1 to 10 |
| share | of the models that are asked for, 25 to 100 % |

The speed-up is the paper's: the geometric mean over the models of the ratio of mean latencies. Throughput is
all requests over the time of the batch. 29 models are networks that run; 8 are stand-ins of their size.

    scripts/bench store-workload [--clients 1 4 10] [--shares 0.25 1] [--out FILE.jsonl] [--weights FOLDER]
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from scripts.benchmarks.store.forked import in_children
from scripts.benchmarks.store.oversubscribed import popular
from scripts.benchmarks.store.paper_networks import image_for, on_meta, shapes_of
from scripts.benchmarks.store.running_store import RunningStore, huge_pages_settled, running_store
from scripts.benchmarks.store.weight_files import MIB, MODELS, TABLE_3, warm, write_pickled, write_weights
from scripts.benchmarks.store.workload_report import print_tables, result
from scripts.kept_rows import KeptRows, Row
from serving_adapter.flags.parsing import parse
from serving_adapter.model_store.clients.client import Client
from serving_adapter.model_store.errors import NoRoom
from serving_adapter.model_store.torch_side.tensors import state_dict

Way = Literal["torch.load", "load_file", "lru", "reload-cost"]
PRIVATE = {"torch.load": ".pt", "load_file": ".safetensors"}
ROOM_SHARE = 1 / 3
QUICK = ("SqueezeNet-v1.0", "SqueezeNet-v1.1", "NIN", "GoogLeNet")
PRIVATELY = "private"

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Options:
    """Cold starts of many users at once, with inference, on an oversubscribed machine."""

    clients: tuple[int, ...] = (1, 2, 4, 6, 8, 10)
    """Client processes at once."""
    shares: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    """Shares of the 37 models that are asked for."""
    requests: int = 120
    """Requests of each run, by all clients together."""
    seeds: tuple[int, ...] = (0,)
    """Sequences of requests; a seed also chooses the share's models."""
    ways: tuple[Way, ...] = ("torch.load", "load_file", "lru")
    """Private loads, or the store with a policy of eviction."""
    weights: Path | None = None
    """Folder that keeps the weight files (12 GB for all models) for the next run; the default is none."""
    out: Path | None = None
    """File that gets a row a run, and with which the benchmark goes on where it was stopped."""
    quick: bool = False
    """12 requests of two clients for four small models, by torch.load and the store."""

    def __post_init__(self) -> None:
        if not all(0 < share <= 1 for share in self.shares):
            raise ValueError(f"--shares must be above 0 and at most 1, got {self.shares}")
        if self.requests < 1 or not all(number >= 1 for number in self.clients):
            raise ValueError("--requests and --clients must be at least 1")


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    names = tuple(model.name for model in TABLE_3)
    setting: dict[str, Any] = {}
    if options.quick:
        names, setting = QUICK, {"models": QUICK}
        options = Options((2,), (1.0,), 12, (0,), ("torch.load", "lru"), options.weights, options.out)
    torch.set_num_threads(1)
    rows = KeptRows(options.out, ("clients", "share", "seed", "way", "requests"), setting)
    room_bytes = int(ROOM_SHARE * MIB * sum(MODELS[name].mib for name in names))
    with _folder(options.weights) as folder:
        for clients, share, seed, way in product(
            options.clients, options.shares, options.seeds, options.ways
        ):
            run_ = {
                "clients": clients,
                "share": share,
                "seed": seed,
                "way": way,
                "requests": options.requests,
            }
            if run_ not in rows:
                asked = asked_for(names, share, options.requests, seed)
                rows.add({**run_, **_served(way, asked, clients, folder, room_bytes)})
                print(_told(rows[run_]), file=sys.stderr, flush=True)
    judged = [row for row in rows if row["requests"] == options.requests]
    print_tables(judged)
    return result(judged) | {"commits": rows.commits}


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


def _write(folder: Path, name: str) -> None:
    """Writes the model's files where they are not there; whole, or not at all."""
    if (folder / f"{name}.pt").exists():  # the last to come
        return
    with tempfile.TemporaryDirectory(dir=folder) as new:
        path = Path(new) / f"{name}.safetensors"
        write_weights(path, shapes_of(name))
        for written in (path, write_pickled(path)):
            written.replace(folder / written.name)


def asked_for(names: Sequence[str], share: float, requests: int, seed: int) -> list[str]:
    """The models of a run, in order: a share of them by chance, Pareto-popular."""
    rng = np.random.default_rng([seed, 1])
    count = max(1, round(share * len(names)))
    chosen = [names[i] for i in rng.permutation(len(names))[:count]]
    return [chosen[i] for i in popular(seed, requests, count)]


def _served(way: Way, asked: Sequence[str], clients: int, folder: Path, room_bytes: int) -> Row:
    for name in set(asked):
        _write(folder, name)
        warm(folder / f"{name}{PRIVATE.get(way, '.safetensors')}")
    if way in PRIVATE:
        return _batch(asked, clients, lambda: partial(_privately, folder, way))
    with running_store("--host-bytes", room_bytes, "--policy", way) as store:
        in_children([partial(_open_all, store, folder, asked)])
        huge_pages_settled()
        return _batch(asked, clients, partial(_sharing, store, folder))


def _open_all(store: RunningStore, folder: Path, asked: Sequence[str]) -> None:
    client = store.client()
    for name in asked:
        _shared(client, folder, name)


def _batch(
    asked: Sequence[str], clients: int, connect: Callable[[], Callable[[str], tuple[Weights, str]]]
) -> Row:
    """Every client takes every so-many-th request, at its own pace."""

    def client(number: int) -> list[tuple[str, float, str]]:
        load, served = connect(), []
        for name in asked[number::clients]:
            image = image_for(name)
            start_s = time.perf_counter()
            weights, where = load(name)
            _answer(name, weights, image)
            served.append((name, time.perf_counter() - start_s, where))
            del weights
        return served

    start_s = time.perf_counter()
    told = in_children([partial(client, number) for number in range(clients)])
    batch_s = time.perf_counter() - start_s
    served = [tuple(row) for rows in told for row in rows]
    by_model = {name: [1e3 * s for n, s, _ in served if n == name] for name in set(asked)}
    return {
        "batch_s": batch_s,
        "latency_ms": {name: fmean(values) for name, values in by_model.items()},
        "hits": sum(where in ("host", "gpu") for _, _, where in served),
        "private": sum(where == PRIVATELY for _, _, where in served),
    }


def _answer(name: str, weights: Weights, image: Tensor) -> None:
    network = on_meta(name)
    network.load_state_dict(weights, assign=True)
    with torch.inference_mode():
        network(image)


def _privately(folder: Path, way: str, name: str) -> tuple[Weights, str]:
    path = folder / f"{name}{PRIVATE[way]}"
    return (load_file(path) if way == "load_file" else torch.load(path, weights_only=True)), PRIVATELY


def _sharing(store: RunningStore, folder: Path) -> Callable[[str], tuple[Weights, str]]:
    return partial(_shared, store.client(), folder)


def _shared(client: Client, folder: Path, name: str) -> tuple[Weights, str]:
    """As `model_store.load_file`: what finds no room is loaded privately."""
    with (folder / f"{name}.safetensors").open("rb") as file:
        try:
            opened = client.open_file(file, name)
        except NoRoom:
            return _privately(folder, "load_file", name)
    return state_dict(opened), opened.found_in


def _told(row: Row) -> str:
    rate = row["requests"] / row["batch_s"]
    return f"{row['clients']:3} clients, {row['share']:.0%}, {row['way']:12} {rate:6.2f} requests/s"
