"""`store-memory`: memory of eight processes with a 500 MB model each, and of a server's eight instances.

Memory is the proportional set size (PSS) of all processes together, the store's included. A page that eight
processes map counts an eighth in each. What the same processes had before they loaded anything is subtracted.
The processes are started one by one, not forked after loading, and read every byte.

Their peers load privately. torch.load has a copy in each process. safetensors maps the file, so its one copy
is the page cache's, as long as that keeps it.

Last, `rrl-serve` runs a model of this size with eight instances, with and without the store. What it takes
with eight instances of a model with next to no weights is subtracted.

    scripts/bench store-memory [--mib 500] [--processes 8] [--quick]
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file

from scripts.benchmarks.store.running_store import running_store, wait_until
from scripts.benchmarks.store.weight_files import (
    MIB,
    PaperModel,
    synthetic_shapes,
    touch,
    write_pickled,
    write_weights,
)
from scripts.serving.processes import started
from serving_adapter import model_store
from serving_adapter.flags.parsing import parse
from serving_adapter.model_store.endpoint import FOLDER_VARIABLE, OFF

TENSORS = 32
WIDTH = 1024  # of a request to the served model: next to its weights, activations are small
REACH = 1.1


@dataclass(frozen=True)
class Options:
    """Memory of several processes with one model."""

    mib: int = 500
    """Megabytes of weights."""
    processes: int = 8
    """Processes, or instances of the server."""
    quick: bool = False
    """50 MB and three processes."""


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    mib, processes = (50, 3) if options.quick else (options.mib, options.processes)
    copies: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, running_store("--host-bytes", 2 * mib * MIB) as store:
        path = Path(folder) / "model.safetensors"
        size_bytes = write_weights(path, synthetic_shapes(PaperModel("workers", TENSORS, mib)))
        pickled = write_pickled(path)
        print(f"{processes} processes with {size_bytes / MIB:,.0f} MB of weights; PSS of all of them")
        print(f"{'loaded by':28} {'MB':>8} {'copies':>7}")
        os.environ[FOLDER_VARIABLE] = str(store.endpoint.folder)
        for label, load, source in (
            ("the store", model_store.load_file, path),
            ("safetensors.load_file", load_file, path),
            ("torch.load", _unpickle, pickled),
        ):
            copies[label] = _copies(processes, load, source, store.pid, size_bytes, label)
    with running_store("--host-bytes", 2 * mib * MIB) as store:  # another: that one still has the weights
        folders = {"rrl-serve, the store": str(store.endpoint.folder), "rrl-serve, private": OFF}
        for label, folder in folders.items():
            os.environ[FOLDER_VARIABLE] = folder
            copies[label] = _copies_of_server(processes, mib, store.pid, size_bytes, label)
    value = copies["the store"]
    return {
        "value": round(value, 3),
        "unit": "copies of the weights",
        "peer": round(copies["torch.load"], 2),
        "ratio": round(copies["torch.load"] / value, 2),
        "reach": REACH,
        "holds": max(value, copies["rrl-serve, the store"]) <= REACH,
        "copies": {label: round(value, 3) for label, value in copies.items()},
    }


def _unpickle(path: Path) -> Any:
    return torch.load(path, weights_only=True)


# --- processes that load ---------------------------------------------------------------------------


def _copies(
    processes: int, load: Callable[[Path], Any], path: Path, store_pid: int, size_bytes: int, label: str
) -> float:
    context = multiprocessing.get_context("spawn")
    workers, pipes = [], []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        worker = context.Process(target=_work, args=(load, path, theirs), daemon=True)
        worker.start()
        workers.append(worker)
        pipes.append(ours)
    pids = [worker.pid or 0 for worker in workers] + [store_pid]
    try:
        _in_step(pipes)  # each has imported what it needs
        before = pss_bytes(pids)
        _in_step(pipes)  # now each has loaded and read its weights too
        return _told(label, pss_bytes(pids) - before, size_bytes)
    finally:
        for pipe in pipes:
            pipe.send("end")
        for worker in workers:
            worker.join()


def _in_step(pipes: list[Connection]) -> None:
    for pipe in pipes:
        pipe.send("go on")
    for pipe in pipes:
        pipe.recv()


def _work(load: Callable[[Path], dict[str, torch.Tensor]], path: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    touch([torch.ones(1 << 20)])
    pipe.recv()
    pipe.send("ready")
    pipe.recv()
    weights = load(path)
    touch(weights.values())
    pipe.send("loaded")
    pipe.recv()
    del weights


def pss_bytes(pids: list[int]) -> int:
    """Memory files that are open count with all they hold.

    Once the store has put their pages together, a page is in the PSS of those alone who have read it since.
    """
    total, shared, files = 0, 0, {}
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += 1024 * int(re.findall(r"^Pss: +(\d+)", rollup, re.M)[0])
        shared += 1024 * int(re.findall(r"^Pss_Shmem: +(\d+)", rollup, re.M)[0])
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if os.readlink(link).startswith("/memfd:"):
                    file = link.stat()
                    files[file.st_dev, file.st_ino] = 512 * file.st_blocks
    return total - shared + max(shared, sum(files.values()))


# --- a server's instances --------------------------------------------------------------------------


def served(mib: int) -> tuple[torch.nn.Module, list[Any]]:
    """A model for `rrl-serve` whose answer reads all of its weights."""
    from serving_adapter.tensors import TensorSpec

    rows = mib * MIB // (4 * WIDTH * TENSORS)
    parts = [torch.nn.Linear(WIDTH, rows, bias=False) for _ in range(TENSORS)]
    return Sums(parts), [TensorSpec("x", "FP32", (WIDTH,))]


class Sums(torch.nn.Module):
    def __init__(self, parts: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([part(x).sum(-1) for part in self.parts], -1)


def _copies_of_server(instances: int, mib: int, store_pid: int, size_bytes: int, label: str) -> float:
    """The memory of a server with all instances, less one whose model has next to no weights."""
    before = _server_bytes(instances, 1, store_pid)
    return _told(label, _server_bytes(instances, mib, store_pid) - before, size_bytes)


def _server_bytes(instances: int, mib: int, store_pid: int) -> int:
    with started(
        *("serving_adapter.server.command_line", "--model", "scripts.benchmarks.store.memory:served"),
        *("--model-option", f"mib={mib}", "--port", 0, "--metrics-port", 0, "--instances", instances),
        quiet=True,
    ) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("rrl-serve did not start")
        return _settled_pss_bytes([process.pid, store_pid])


def _settled_pss_bytes(roots: list[int]) -> int:
    """The memory once it no longer changes; instances try the model when they start."""
    seen = [0, -1, -2]

    def settled() -> bool:
        pids = [p.pid for root in roots for p in (psutil.Process(root), *psutil.Process(root).children(True))]
        seen.append(pss_bytes(pids))
        return max(seen[-3:]) - min(seen[-3:]) < MIB

    wait_until(settled, "the server's memory stays as it is")
    return seen[-1]


def _told(label: str, more_bytes: int, size_bytes: int) -> float:
    copies = more_bytes / size_bytes
    print(f"{label:28} {more_bytes / MIB:8,.0f} {copies:7.2f}", flush=True)
    return copies
