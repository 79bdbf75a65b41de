"""`store-churn`: random opens, closes, kills (-9) and evictions by several clients of a small store.

Clients open models by name or by file, hold some, close some, evict what they can and die at any moment;
another takes a dead one's place. Every tensor is compared with its checksum when it is opened and before it
is closed, whatever was evicted meanwhile. Afterwards the store must hold what it held at the start: no bytes,
no references, no more descriptors.

    scripts/bench store-churn [--operations 10000] [--clients 4] [--seed 0] [--quick]
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import torch
from safetensors.torch import load_file

from scripts.benchmarks.store.running_store import RunningStore, running_store, wait_until
from scripts.benchmarks.store.weight_files import MIB, Shapes, write_weights
from serving_adapter.flags.parsing import parse
from serving_adapter.model_store.clients.client import Client
from serving_adapter.model_store.errors import NoRoom, UnknownModel
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.torch_side.tensors import state_dict

MODELS = 16
SHAPES: Shapes = {"embedding": (64, 1024), "bias": (17,), "empty": (0, 3)} | {
    f"layers.{i}": (i + 1, 128, 128) for i in range(4)
}
SHARED_TENSORS = 4  # the first of each, which models share in fours
HOST_BYTES, DISK_BYTES = 5 * MIB, 8 * MIB  # of about 15
MAX_HELD_MODELS = 3  # that a client has open at most
LOOKS = 50  # at the descriptors
OPERATIONS = ("by name", "by file", "close", "evict", "kill")
WEIGHTS = (0.3, 0.15, 0.35, 0.15, 0.05)

Checksums = Mapping[str, Mapping[str, int]]  # by model and tensor


@dataclass(frozen=True)
class Options:
    """Random operations on a store, and what they leave behind."""

    operations: int = 10_000
    """Opens, closes, kills and evictions in all."""
    clients: int = 4
    """Clients at once."""
    seed: int = 0
    """Of the operations; when which client has its turn is the machine's affair."""
    quick: bool = False
    """500 operations."""


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    operations = 500 if options.quick else options.operations
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        checksums = {}
        for i in range(MODELS):
            path = _path(repository, str(i))
            family = [i // 4] * SHARED_TENSORS + [100 + i] * (len(SHAPES) - SHARED_TENSORS)
            write_weights(path, SHAPES, family)
            checksums[str(i)] = {name: _checksum(t) for name, t in load_file(path).items()}
        flags = ("--remote", repository.as_uri(), "--host-bytes", HOST_BYTES, "--disk-bytes", DISK_BYTES)
        with running_store(*flags, "--max-clients", 64) as store:
            return _churn(store, repository, checksums, operations, options)


def _churn(
    store: RunningStore, repository: Path, checksums: Checksums, operations: int, options: Options
) -> dict[str, Any]:
    _run_clients(store, repository, checksums, 50, options)  # what the store opens once and keeps
    at_start = _left(store)
    start_s = time.perf_counter()
    counts = _run_clients(store, repository, checksums, operations, options)
    seconds = time.perf_counter() - start_s
    evictions = {tier.tier: tier.evictions for tier in store.stats().tiers if tier.capacity_bytes}
    at_end = _left(store, at_start["descriptors"])
    leaks = sum(max(0, at_end[what] - at_start[what]) for what in at_start)
    wrong = counts["wrong tensor"] + counts["unexpected error"]
    done = sum(counts[name] for name in OPERATIONS)
    print(f"{done:,} operations of {options.clients} clients in {seconds:.0f} s")
    print(f"evicted to make room: {evictions}")
    for name, count in sorted(counts.items()):
        print(f"  {name:20} {count:8,}")
    print(f"{'left behind':22} {'start':>8} {'end':>8}")
    for what, count in at_end.items():
        print(f"  {what:20} {at_start[what]:8,} {count:8,}")
    print("reach: nothing wrong, nothing left")
    return {
        "value": wrong + leaks,
        "unit": "wrong tensors, errors, and what is left behind",
        "peer": None,
        "ratio": None,
        "reach": 0,
        "holds": wrong == 0 and leaks == 0 and counts["checked tensor"] > 0,
        "operations": done,
        "counts": dict(counts),
        "left": at_end,
    }


def _left(store: RunningStore, descriptors_before: int | None = None) -> dict[str, int]:
    """What the store holds when all clients are gone and every model has been evicted."""
    wait_until(lambda: store.stats().references == 0, "the dead clients' references are given back")
    store.evict_all()
    seen = []
    for _ in range(LOOKS):  # it closes a connection a moment after its client has gone
        seen.append(store.descriptors())
        if descriptors_before is not None and seen[-1] <= descriptors_before:
            break
        time.sleep(0.02)
    stats = store.stats()
    used = {f"{tier.tier} bytes": tier.used_bytes for tier in stats.tiers if tier.capacity_bytes}
    return used | {"references": stats.references, "descriptors": min(seen)}


# --- clients ---------------------------------------------------------------------------------------


def _run_clients(
    store: RunningStore, repository: Path, checksums: Checksums, operations: int, options: Options
) -> Counter[str]:
    """Each line that a client writes counts something, so a killed one's counts are not lost."""
    reading, writing = os.pipe()
    share = -(-operations // options.clients)
    starters = []
    for number in range(options.clients):
        pid = os.fork()
        if not pid:
            os.close(reading)
            _replace_the_dead(store, repository, checksums, share, 1000 * options.seed + number, writing)
        starters.append(pid)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        counts = Counter(line.rstrip("\n") for line in pipe)
    for pid in starters:
        os.waitpid(pid, 0)
    return counts


def _replace_the_dead(
    store: RunningStore, repository: Path, checksums: Checksums, operations: int, seed: int, writing: int
) -> NoReturn:
    """Starts one client after the other until all operations are done."""
    rng = random.Random(seed)
    left = operations
    progress = mmap.mmap(-1, 1 << 20)  # a byte for each operation that the client began
    while left > 0:
        plan: list[str] = []
        while len(plan) < min(left, len(progress)):
            plan.append(rng.choices(OPERATIONS, WEIGHTS)[0])
            if plan[-1] == "kill":
                break
        progress[: len(plan)] = bytes(len(plan))
        pid = os.fork()
        if not pid:
            client = _Client(store, repository, checksums, rng.randrange(1 << 30), writing, progress)
            client.run(plan)
        # A client that is to die may also be shot by its parent, in the middle of an operation.
        if plan[-1] == "kill" and rng.random() < 0.5:
            time.sleep(rng.random() * 0.02 * len(plan))
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        left -= sum(progress[: len(plan)])
    os._exit(0)


class _Client:
    def __init__(
        self,
        store: RunningStore,
        repository: Path,
        checksums: Checksums,
        seed: int,
        writing: int,
        progress: mmap.mmap,
    ) -> None:
        self._store, self._repository, self._checksums = store, repository, checksums
        self._rng, self._writing, self._progress = random.Random(seed), writing, progress
        self._held: list[tuple[str, dict[str, torch.Tensor]]] = []

    def run(self, plan: list[str]) -> NoReturn:
        try:
            with self._store.client() as client:
                for i, operation in enumerate(plan):
                    self._count(operation)
                    self._progress[i] = 1
                    try:
                        self._do(operation, client)
                    except NoRoom:
                        self._count("no room")
                    except UnknownModel:  # nothing of that name to evict
                        self._count("not there")
                for model, weights in self._held:
                    self._check(model, weights)
        except BaseException as error:
            self._count("unexpected error")
            print(f"{type(error).__name__}: {error}", flush=True)
        finally:
            os._exit(0)

    def _do(self, operation: str, client: Client) -> None:
        model = str(self._rng.randrange(MODELS))
        if operation == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif operation == "evict":
            tier = self._rng.choice(("", "host", "disk"))
            address = pb.Address(namespace="safetensors", name=model)
            client.call("Evict", pb.EvictRequest(address=address, tier=tier))
        elif operation == "close":
            self._close()
        else:
            if len(self._held) == MAX_HELD_MODELS:
                self._close()
            path = _path(self._repository, model)
            if operation == "by name":
                weights = state_dict(client.open(model, self._rng.choice(("", "1"))))
            else:
                with path.open("rb") as file:
                    weights = state_dict(client.open_file(file, model))
            self._held.append((model, weights))
            self._check(model, weights)

    def _close(self) -> None:
        if self._held:
            model, weights = self._held.pop(self._rng.randrange(len(self._held)))
            self._check(model, weights)

    def _check(self, model: str, weights: dict[str, torch.Tensor]) -> None:
        expected = self._checksums[model]
        if set(weights) != set(expected):
            self._count("wrong tensor")
        for name, tensor in weights.items():
            right = _checksum(tensor) == expected[name]
            self._count("checked tensor" if right else "wrong tensor")

    def _count(self, what: str) -> None:
        os.write(self._writing, f"{what}\n".encode())


def _checksum(tensor: torch.Tensor) -> int:
    return crc32(tensor.numpy().tobytes())


def _path(repository: Path, model: str) -> Path:
    return repository / model / "1" / "model.safetensors"
