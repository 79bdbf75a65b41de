"""`store-dedup`: memory of a base model and its fine-tuned ones, by the granularity of sharing.

All but the last layers of the fine-tuned models are the base model's, byte for byte. What is possible is each
distinct tensor once; sharing whole models, as loading privately once for each, takes a copy for each of them.

    scripts/bench store-dedup [--mib 250] [--fine-tuned 7] [--frozen 0.75] [--quick]
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from scripts.benchmarks.store.running_store import running_store
from scripts.benchmarks.store.weight_files import MIB, Shapes, touch, write_weights
from serving_adapter.flags.parsing import parse
from serving_adapter.model_store.torch_side.tensors import state_dict

LAYERS = 24  # transformer blocks, of which a share is frozen
GRANULARITIES = ("model", "tensor", "auto")
OPENS = 20
REACH = 1.05


@dataclass(frozen=True)
class Options:
    """Memory of models that share their frozen layers."""

    mib: int = 250
    """Megabytes of a model."""
    fine_tuned: int = 7
    """Fine-tuned models beside the base."""
    frozen: float = 0.75
    """Share of the layers that stay as they are."""
    quick: bool = False
    """Models of 20 MB, three of them fine-tuned."""

    def __post_init__(self) -> None:
        if not 0 <= self.frozen <= 1 or self.fine_tuned < 1:
            raise ValueError("--frozen must be from 0 to 1, and --fine-tuned at least 1")


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    if options.quick:
        options = Options(20, 3, options.frozen)
    models = options.fine_tuned + 1
    held: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        shapes = transformer(options.mib)
        own = len(shapes) - round(options.frozen * LAYERS) * len(shapes) // LAYERS
        paths = [Path(folder) / f"{i}.safetensors" for i in range(models)]
        for i, path in enumerate(paths):
            size_bytes = write_weights(path, shapes, [0] * (len(shapes) - own) + [i] * own)
        distinct = _distinct_bytes(shapes, own, models)
        print(
            f"{models} models of {size_bytes / MIB:,.0f} MB, of which {1 - own / len(shapes):.0%} of the "
            f"tensors are the same; distinct tensors: {distinct / MIB:,.0f} MB"
        )
        print(f"{'granularity':12} {'MB':>8} {'saved':>6} {'copies':>7} {'segments':>8} {'open ms':>8}")
        for granularity in GRANULARITIES:
            held[granularity], segments, open_s = _measure(granularity, paths, 2 * models * size_bytes)
            print(
                f"{granularity:12} {held[granularity] / MIB:8,.0f} "
                f"{1 - held[granularity] / (models * size_bytes):6.1%} "
                f"{held[granularity] / size_bytes:7.2f} {segments:8} {1e3 * open_s:8.2f}",
                flush=True,
            )
    value = held["auto"] / distinct
    print(f"reach: at most {REACH} of the distinct tensors' bytes by default")
    return {
        "value": round(value, 3),
        "unit": "of the distinct tensors' bytes",
        "peer": round(held["model"] / distinct, 2),
        "ratio": round(held["model"] / held["auto"], 2),
        "reach": REACH,
        "holds": value <= REACH,
        "saved": {way: round(1 - size / (models * size_bytes), 3) for way, size in held.items()},
    }


def transformer(mib: int) -> dict[str, tuple[int, ...]]:
    """The tensors of `LAYERS` transformer blocks of about so many megabytes."""
    width = max(64, int((mib * MIB / 4 / (12 * LAYERS)) ** 0.5))
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(LAYERS):
        for name, rows, columns in (
            ("qkv", 3 * width, width),
            ("attended", width, width),
            ("inner", 4 * width, width),
            ("outer", width, 4 * width),
        ):
            shapes |= {f"layers.{i}.{name}.weight": (rows, columns), f"layers.{i}.{name}.bias": (rows,)}
    return shapes


def _distinct_bytes(shapes: Shapes, own: int, models: int) -> int:
    sizes = [4 * shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes.values()]
    return sum(sizes[:-own] if own else sizes) + models * sum(sizes[len(sizes) - own :])


def _measure(granularity: str, paths: list[Path], host_bytes: int) -> tuple[int, int, float]:
    """The store's host bytes with all models open, a model's segments, and the time to open it again."""
    flags = ("--granularity", granularity, "--host-bytes", host_bytes)
    with running_store(*flags) as store, store.client() as client:

        def opened(path: Path) -> Any:
            with path.open("rb") as file:
                return client.open_file(file, path.stem)

        models = [opened(path) for path in paths]
        weights = [state_dict(model) for model in models]
        for tensors in weights:
            touch(tensors.values())
        seconds = []
        for _ in range(OPENS):
            start_s = time.perf_counter()
            again = state_dict(opened(paths[0]))
            seconds.append(time.perf_counter() - start_s)
            del again
        segments = len(models[0].segments)
        return store.tier("host", client).used_bytes, segments, median(seconds)
