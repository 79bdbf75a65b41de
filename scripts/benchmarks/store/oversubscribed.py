"""`store-oversubscribed`: the 37 models of TrIMS's Table 3, with room for a third of their bytes (Fig. 11).

Clients open models in a Pareto-popular order, read every byte and drop them. Each policy, and the private
loads beside it, serve the same requests. Unless `--cached`, a file is out of the page cache before it is
asked for, which matters only to those who read it.

The speed-up is the geometric mean over the models of the ratio of mean latencies. A model for which models in
use leave no room is loaded privately, as `model_store.load_file` does.

    scripts/bench store-oversubscribed [--clients 1 4 10] [--seeds 0 1 2] [--cached] [--quick]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

from scripts.benchmarks.store.forked import in_children
from scripts.benchmarks.store.running_store import RunningStore, running_store
from scripts.benchmarks.store.weight_files import (
    TABLE_3,
    forget,
    synthetic_shapes,
    touch,
    warm,
    write_pickled,
    write_weights,
)
from serving_adapter.flags.parsing import parse
from serving_adapter.model_store.errors import NoRoom
from serving_adapter.model_store.torch_side.tensors import state_dict

ROOM_SHARE = 1 / 3
PARETO_SHAPE = 1.16  # of the Pareto distribution: that of four fifths for a fifth
OWN, LRU = "reload-cost", "lru"
POLICIES = (LRU, "lcu", OWN)
PRIVATE = {"load_file": ".safetensors", "torch.load": ".pt"}
NOISE = 0.02  # of mean latencies


@dataclass(frozen=True)
class Options:
    """More models than there is room for."""

    scale: float = 0.25
    """Bytes of the models, as a share of the paper's."""
    requests: int = 300
    """Requests of each run, by all clients together."""
    clients: tuple[int, ...] = (1, 4, 10)
    """Client processes at once."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Sequences of requests."""
    cached: bool = False
    """Leaves all files in the page cache."""
    quick: bool = False
    """60 requests of two clients at a scale of 0.02, one seed."""


class ServedRequest(NamedTuple):
    """A request as a client saw it; `where` is the tier that had the model, or "private"."""

    model: int
    seconds: float
    where: str


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    if options.quick:
        options = Options(0.02, 60, (2,), (0,), options.cached)
    torch.set_num_threads(1)
    rows: dict[tuple[int, int, str], list[ServedRequest]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{model.name}.safetensors" for model in TABLE_3]
        total = 0
        for i, (path, model) in enumerate(zip(files, TABLE_3, strict=True)):
            total += write_weights(path, synthetic_shapes(model, options.scale), i)
            write_pickled(path)
        print(f"{len(files)} models of {total / 1e6:,.0f} MB in all, room for {ROOM_SHARE:.0%} of them; "
              f"{options.requests} requests; mean over {len(options.seeds)} sequences")  # fmt: skip
        print(f"{'clients':>7} {'by':12} {'mean ms':>8} {'hits':>6} {'reload s':>8} {'private':>7} "
              f"{'vs load_file':>12} {'vs torch.load':>13}")  # fmt: skip
        for clients in options.clients:
            for seed in options.seeds:
                sequence = popular(seed, options.requests, len(files))
                for way in (*PRIVATE, *POLICIES):
                    rows[clients, seed, way] = _serve(
                        way, sequence, clients, files, int(ROOM_SHARE * total), options.cached
                    )
            for way in (*PRIVATE, *POLICIES):
                _print(clients, way, rows, options.seeds)
    return _result(rows, options)


def popular(seed: int, requests: int, models: int) -> list[int]:
    """Models whose popularities are the quantiles of a Pareto distribution; who has which is random."""
    rng = np.random.default_rng(seed)
    popularity = np.arange(1, models + 1) ** (-1 / PARETO_SHAPE)
    ranks = rng.choice(models, requests, p=popularity / popularity.sum())
    return [int(model) for model in rng.permutation(models)[ranks]]


def _serve(
    way: str, sequence: Sequence[int], clients: int, files: Sequence[Path], room: int, cached: bool
) -> list[ServedRequest]:
    if way in PRIVATE:
        paths = [path.with_suffix(PRIVATE[way]) for path in files]
        return _by_clients(sequence, clients, paths, cached, lambda: lambda path: _privately(way, path))
    flags = ("--host-bytes", room, "--policy", way)
    with running_store(*flags) as store:
        return _by_clients(sequence, clients, files, cached, lambda: _opening(store))


def _by_clients(
    sequence: Sequence[int],
    clients: int,
    paths: Sequence[Path],
    cached: bool,
    connect: Callable[[], Callable[[Path], tuple[Any, str]]],
) -> list[ServedRequest]:
    """Each client takes every so-many-th request."""

    def client(number: int) -> list[ServedRequest]:
        load, served = connect(), []
        for model in sequence[number::clients]:
            if not cached:
                forget(paths[model], others_map_it=clients > 1)
            start_s = time.perf_counter()
            weights, where = load(paths[model])
            touch(weights.values())
            served.append(ServedRequest(model, time.perf_counter() - start_s, where))
            del weights
        return served

    if cached:
        for path in paths:
            warm(path)
    told = in_children([partial(client, number) for number in range(clients)])
    return [ServedRequest(*row) for rows in told for row in rows]


def _privately(way: str, path: Path) -> tuple[Any, str]:
    return (load_file(path) if way == "load_file" else torch.load(path, weights_only=True)), "private"


def _opening(store: RunningStore) -> Callable[[Path], tuple[Any, str]]:
    client = store.client()

    def load(path: Path) -> tuple[Any, str]:
        try:
            with path.open("rb") as file:
                opened = client.open_file(file, path.stem)
        except NoRoom:
            return _privately("load_file", path)
        return state_dict(opened), opened.found_in

    return load


def speed_up(private: Sequence[ServedRequest], served: Sequence[ServedRequest]) -> float:
    """Geometric mean over the models of the ratio of mean latencies."""
    ratios = []
    for model in {row.model for row in served}:
        theirs, ours = (fmean(r.seconds for r in rows if r.model == model) for rows in (private, served))
        ratios.append(theirs / ours)
    return geometric_mean(ratios)


def _print(clients: int, way: str, rows: Any, seeds: Sequence[int]) -> None:
    runs = [rows[clients, seed, way] for seed in seeds]
    served = [row for rows in runs for row in rows]
    hits = fmean(row.where == "host" for row in served)
    reload_s = sum(row.seconds for row in served if row.where != "host") / len(seeds)
    private = sum(row.where == "private" for row in served) / len(seeds)
    ups = [
        geometric_mean(speed_up(rows[clients, s, peer], rows[clients, s, way]) for s in seeds)
        for peer in PRIVATE
    ]
    print(
        f"{clients:7} {way:12} {1e3 * fmean(row.seconds for row in served):8.1f} {hits:6.1%} "
        f"{reload_s:8.2f} {private:7.0f} {ups[0]:12.2f} {ups[1]:13.2f}",
        flush=True,
    )


def _result(rows: Any, options: Options) -> dict[str, Any]:
    runs = [(clients, seed) for clients in options.clients for seed in options.seeds]
    ups = {
        f"{way}, {peer}": geometric_mean(speed_up(rows[*run_, peer], rows[*run_, way]) for run_ in runs)
        for way in POLICIES
        for peer in PRIVATE
    }
    mean_s = {(*r, way): fmean(row.seconds for row in rows[*r, way]) for r in runs for way in POLICIES}
    own_to_lru = median(mean_s[*run_, OWN] / mean_s[*run_, LRU] for run_ in runs)
    hits = {way: fmean(row.where == "host" for r in runs for row in rows[*r, way]) for way in POLICIES}
    print(f"reach: the mean latency of {OWN} at most that of {LRU} (measured to {NOISE:.0%})")
    return {
        "value": round(ups[f"{OWN}, load_file"], 2),
        "unit": "times as fast as load_file, geometric mean over the models",
        "peer": round(ups[f"{LRU}, load_file"], 2),  # the same with the least recently used
        "ratio": round(own_to_lru, 3),
        "reach": 1.0,
        "holds": own_to_lru <= 1 + NOISE,
        "speed_ups": {key: round(value, 2) for key, value in ups.items()},
        "hit_rates": {way: round(value, 3) for way, value in hits.items()},
    }
